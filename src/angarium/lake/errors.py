"""What can go wrong in the lake, named by what happened.

SettingInvalid
├── JavaMissing           no Java that Spark can use
├── LakeMismatch          the folder holds something else than the lake of this keyspace
├── MemoryShort           too little memory for Spark on this machine
├── OptionInvalid         an option of a source or sink is unknown or can't be used
└── PackagesMissing       the extra `lake` is not installed
NotFound
└── LakeEmpty             nothing was ever stored here
Conflict
├── CheckpointMismatch    the checkpoint belongs to another source
├── StreamReplaced        the stream is not the one that was read before
└── TableConflict         another writer changed the table at the same time
AngariumError
├── EntriesTrimmed        entries were removed from a stream before they were read
├── LakeStopped           a query ended with an error
├── MasterUnavailable     Spark's master does not answer, or has no place for us
├── RowsMissing           rows that were about to be appended are no longer in Redis
├── StoreUnavailable      an object store does not answer, or not as it should
└── TableUnwritable       a table's folder is full, read-only or gone
"""

from __future__ import annotations

import re
from typing import Self

from angarium.runtime.errors import AngariumError, Conflict, NotFound, SettingInvalid
from angarium.runtime.urls import redacted

_COLOUR = re.compile(r"\x1b\[\d+m")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)


class JavaMissing(SettingInvalid):
    code = "java_missing"


class LakeMismatch(SettingInvalid):
    code = "lake_mismatch"
    http_status = 503


class MemoryShort(SettingInvalid):
    code = "memory_short"


class PackagesMissing(SettingInvalid):
    code = "packages_missing"
    http_status = 503


class LakeEmpty(NotFound):
    code = "lake_empty"


class OptionInvalid(SettingInvalid):
    code = "option_invalid"

    def __reduce__(self) -> tuple[type[OptionInvalid], tuple[str, str, str]]:
        return OptionInvalid, (self.setting, self.problem, self.fix)


class CheckpointMismatch(Conflict):
    code = "checkpoint_mismatch"


class StreamReplaced(Conflict):
    code = "stream_replaced"


class TableConflict(Conflict):
    code = "table_conflict"


class EntriesTrimmed(AngariumError):
    code = "entries_trimmed"


class LakeStopped(AngariumError):
    """A query ended with an error; what was stored stays, and the next run goes on from there."""

    code = "lake_stopped"


class MasterUnavailable(AngariumError):
    code = "master_unavailable"


class RowsMissing(AngariumError):
    code = "rows_missing"


class StoreUnavailable(AngariumError):
    code = "store_unavailable"
    http_status = 503

    @classmethod
    def of(cls, url: str, error: Exception) -> Self:
        """Of a long chain of causes the last one, or what the store itself said."""
        text = _COLOUR.sub("", str(error))
        said = _MESSAGE.search(text)
        reason = said[1] if said else text.rpartition("↳")[2]
        return cls(
            f"{redacted(url)} can't be read: {reason.strip()}; check ANGARIUM_LAKE_URL, and the "
            "store's address and credentials in the environment"
        )


class TableUnwritable(AngariumError):
    code = "table_unwritable"
