"""Single things out of the lake: an archived transaction, the history of an id, what is where.

For the API and anyone who asks by id. Files are left out whose statistics say that the id is not in
them. Blocking reads in threads, so that an event loop can wait for them. Reads only, no Spark. The
server imports this file, with or without the packages of the extra `lake`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from angarium.lake.audit import Audit, last_audit
from angarium.lake.schemas import TABLES
from angarium.lake.tables import Lake

HISTORY_MAX = 1_000


class TableFigures(msgspec.Struct, frozen=True):
    """`written_ms`: when its newest file was added."""

    name: str
    rows: int
    files: int
    meaning: str
    written_ms: int


class LakeEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of the journal, as the table `events` has it."""

    partition: int
    entry_id: str
    sequence: int
    module: str
    at_ms: int
    actor: str
    event: str
    subject: str
    key: str | None = None
    owner: str | None = None
    pipeline: str | None = None
    node: str | None = None
    attempt: int | None = None
    status: str | None = None
    detail: str | None = None


class Lookup:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    async def find_transaction(self, tx_id: str) -> bytes | None:
        """The state of an archived transaction as its module's own JSON; None if it is not here."""
        return await asyncio.to_thread(self._find_transaction, tx_id)

    async def history(self, subject: str) -> list[LakeEvent] | None:
        """Everything the journal told of an id, oldest first; None when the lake never ran."""
        return await asyncio.to_thread(self._history, subject)

    async def tables(self) -> list[TableFigures]:
        return await asyncio.to_thread(self._tables)

    async def last_audit(self) -> Audit | None:
        return await asyncio.to_thread(last_audit, self._lake)

    def _find_transaction(self, tx_id: str) -> bytes | None:
        rows = self._rows("transactions", "id", tx_id, ["state"])
        return rows[0]["state"].encode() if rows else None

    def _history(self, subject: str) -> list[LakeEvent] | None:
        if self._lake.open("events") is None:
            return None
        rows = self._rows("events", "subject", subject, list(LakeEvent.__struct_fields__))
        rows.sort(key=lambda row: (row["partition"], row["sequence"]))
        return [LakeEvent(**row) for row in rows[:HISTORY_MAX]]

    def _tables(self) -> list[TableFigures]:
        names, found = self._lake.existing(), list[TableFigures]()
        import pyarrow as pa

        for name in names:
            table = self._lake.need(name)
            actions = pa.table(table.get_add_actions(flatten=True))
            times = actions["modification_time"].to_pylist()
            meaning = TABLES[name].meaning if name in TABLES else "A table of the application."
            newest = max(times, default=0)
            rows = sum(actions["num_records"].to_pylist())
            found.append(TableFigures(name, rows, len(times), meaning, newest))
        return found

    def _rows(self, table: str, column: str, value: str, names: list[str]) -> list[dict[str, Any]]:
        found = self._lake.open(table)
        if found is None:
            return []
        import pyarrow.dataset as ds

        chosen = found.to_pyarrow_dataset().scanner(names, filter=ds.field(column) == value)
        return list(chosen.to_table().to_pylist())
