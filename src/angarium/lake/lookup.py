"""Single things out of the lake: an archived transaction, the history of an id, what is where.

For the API and anyone who asks by id. Blocking reads in threads, one at a time each with a
connection of its own, so that an event loop can wait for them. Reads only, no Spark.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from angarium.lake.audit import Balance, last_audit
from angarium.lake.query import connect, interrupted_after, run
from angarium.lake.schemas import TABLES
from angarium.lake.tables import Lake

HISTORY_MAX = 1_000
# An id is found by reading one column of every file at the worst; longer than this nobody waits.
LOOK_S_MAX = 30.0


class TableFigures(msgspec.Struct, frozen=True):
    """`rows` as they are stored: parts of one life are made one when they are read."""

    name: str
    rows: int
    files: int
    meaning: str


class LakeEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of the journal, as the table `events` has it."""

    partition: int
    entry_id: str
    sequence: int
    room: str
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
        """The state of an archived transaction as the room's own JSON; None if it is not here."""
        return await asyncio.to_thread(self._find_transaction, tx_id)

    async def history(self, subject: str) -> list[LakeEvent] | None:
        """Everything the journal told of an id, oldest first; None when the lake never ran."""
        return await asyncio.to_thread(self._history, subject)

    async def tables(self) -> list[TableFigures]:
        return await asyncio.to_thread(self._tables)

    async def last_audit(self) -> list[Balance]:
        return await asyncio.to_thread(last_audit, self._lake)

    def _find_transaction(self, tx_id: str) -> bytes | None:
        rows = self._rows(
            "transactions", "select state from transactions where id = ? limit 1", [tx_id]
        )
        return rows[0][0].encode() if rows else None

    def _history(self, subject: str) -> list[LakeEvent] | None:
        if self._lake.open("events") is None:
            return None
        names = ", ".join(LakeEvent.__struct_fields__)
        sql = (
            f"select {names} from events where subject = ? "
            f"order by partition, sequence limit {HISTORY_MAX}"
        )
        return [LakeEvent(*row) for row in self._rows("events", sql, [subject])]

    def _tables(self) -> list[TableFigures]:
        lake = self._lake
        return [
            TableFigures(name, lake.rows(name), len(lake.files(name)), TABLES[name].meaning)
            for name in lake.existing()
        ]

    def _rows(self, table: str, sql: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
        if self._lake.open(table) is None:
            return []
        with connect(self._lake, (table,)) as connection:
            timer = interrupted_after(connection, LOOK_S_MAX)
            try:
                return run(connection, sql, parameters).rows
            finally:
                timer.cancel()
