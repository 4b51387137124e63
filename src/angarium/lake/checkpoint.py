"""Which number in the lake a query's batches have, and where it goes on without its checkpoint.

Spark numbers the batches of a checkpoint from 0. In the lake numbers only grow, whatever became of
a checkpoint: a file beside it says which number its first batch has, and of which lake it is. A
checkpoint that is of another lake, or that does not fit the table it fills (one of them was put
back from a copy), is dropped: the table's own log says up to which entry it has each stream, and
the query begins there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from angarium.lake.tables import Lake, LakeTable
from angarium.runtime import keys
from angarium.runtime.keyspace import Keyspace

BESIDE = ".lake.json"
ENTRY = "entry:"
# An entry's id as one number that orders like it: 2^20 entries of one millisecond are enough, and
# milliseconds fit until the year 2248.
SEQUENCE_BITS = 20


@dataclass(frozen=True)
class QueryCheckpoint:
    """`first` is the number of its batch 0; `starting` is set where the query begins anew."""

    folder: Path
    first: int
    starting: Mapping[str, str] | None = None

    @classmethod
    def of(cls, folder: Path, lake_id: str, table: LakeTable, writer: str) -> QueryCheckpoint:
        last = table.last_batch(writer)
        known = _read(folder)
        if known is not None and known["lake"] == lake_id:
            first = int(known["first"])
            if _fits(folder, first, -1 if last is None else last):
                # A query that died before it planned a batch begins where the table ends.
                return cls(folder, first, {} if _newest(folder / "offsets") < 0 else None)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        first = 0 if last is None else last + 1
        text = json.dumps({"lake": lake_id, "first": first})
        # Whole or not at all: a process may die here.
        fresh = _file(folder).with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(_file(folder))
        return cls(folder, first, {})

    def offset(self, batch_id: int) -> dict[str, Any]:
        """Where a batch ends, as its source planned it: Spark writes it before the batch runs."""
        lines = (self.folder / "offsets" / str(batch_id)).read_text().splitlines()
        found: dict[str, Any] = json.loads(lines[-1])
        return found


def positions_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """Marks for a commit: up to which entry it has each stream."""
    return {f"{ENTRY}{key}": position_of(text) for key, text in offset.get("ids", {}).items()}


def starting_of(table: LakeTable, keys: tuple[str, ...]) -> dict[str, str]:
    """The entry up to which the table has each stream."""
    found = {key: table.last_batch(f"{ENTRY}{key}") for key in keys}
    return {key: entry_id_of(position or 0) for key, position in found.items()}


def stored_positions(lake: Lake, keyspace: Keyspace) -> dict[int, int]:
    """Partition -> how far the lake has its journal; -1 before the first entry."""
    events = lake.open("events")
    found: dict[int, int] = {}
    for partition in range(lake.partitions):
        name = f"{ENTRY}{keyspace.name(keys.JOURNAL, partition)}"
        last = None if events is None else events.transaction_version(name)
        found[partition] = -1 if last is None else int(last)
    return found


def position_of(entry_id: str) -> int:
    ms, _, sequence = entry_id.partition("-")
    low = (1 << SEQUENCE_BITS) - 1
    return min((int(ms) << SEQUENCE_BITS) + min(int(sequence or 0), low), (1 << 63) - 1)


def entry_id_of(position: int) -> str:
    return f"{position >> SEQUENCE_BITS}-{position & (1 << SEQUENCE_BITS) - 1}"


def _fits(folder: Path, first: int, last: int) -> bool:
    """Whether the table's last batch is the checkpoint's last one, or the one it has planned."""
    committed, planned = (_newest(folder / name) for name in ("commits", "offsets"))
    return last in (first + committed, first + planned)


def _newest(folder: Path) -> int:
    if not folder.is_dir():
        return -1
    return max((int(each.name) for each in folder.iterdir() if each.name.isdecimal()), default=-1)


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(_file(folder).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"lake", "first"} <= set(found) else None


def _file(folder: Path) -> Path:
    return folder.with_name(folder.name + BESIDE)
