"""What can go wrong in the lake, named by what happened.

SettingInvalid
├── JavaMissing           no Java that Spark can use
├── MemoryShort           too little memory for Spark on this machine
└── OptionInvalid         an option of a source or sink is unknown or can't be used
Conflict
├── CheckpointMismatch    the checkpoint belongs to another source
└── StreamReplaced        the stream is not the one that was read before
AngariumError
├── EntriesTrimmed        entries were removed from a stream before they were read
├── RowsMissing           rows that were about to be appended are no longer in Redis
└── TableUnwritable       a table's folder is full, read-only or gone
"""

from __future__ import annotations

from angarium.core.errors import AngariumError, Conflict, SettingInvalid


class JavaMissing(SettingInvalid):
    code = "java_missing"


class MemoryShort(SettingInvalid):
    code = "memory_short"


class OptionInvalid(SettingInvalid):
    code = "option_invalid"

    def __reduce__(self) -> tuple[type[OptionInvalid], tuple[str, str, str]]:
        return OptionInvalid, (self.setting, self.problem, self.fix)


class CheckpointMismatch(Conflict):
    code = "checkpoint_mismatch"


class StreamReplaced(Conflict):
    code = "stream_replaced"


class EntriesTrimmed(AngariumError):
    code = "entries_trimmed"


class RowsMissing(AngariumError):
    code = "rows_missing"


class TableUnwritable(AngariumError):
    code = "table_unwritable"
