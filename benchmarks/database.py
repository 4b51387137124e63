"""What ordered ids bring in SQLite, and what it costs to answer «stored» only from the disk.

Rows go through `insert_once`, as the modules send them. Every contender has a file of its own that
grows from round to round, since random ids hurt the more the larger the index is. The files lie
beside the sources, because a temporary folder is often kept in memory, where fsync is free.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import sqlalchemy as sa
import uvloop
from sqlalchemy.ext.asyncio import AsyncConnection

from angarium.runtime.database.database import Database, insert_once
from angarium.runtime.ids import time_ordered_id
from benchmarks.measure import ATTEMPTS_MAX, STEAL_MAX, cpu_times, steal_since
from benchmarks.sizes import count, rounds

ROUNDS = rounds(5)
PAYLOAD_BYTES = 200
# As a persister sends them: enough rows for one fsync to be shared by many.
BATCH_ROWS = 1_000
ROWS_PER_ROUND = count(20_000, least=BATCH_ROWS)
# As single callers would: the price of one fsync each.
SMALL_BATCH_ROWS = 10
SMALL_ROWS_PER_ROUND = count(1_000, least=SMALL_BATCH_ROWS)
# No round begins after this, so that a slow disk makes the result coarser and not later.
BUDGET_S = 16.0

ROWS = sa.Table(
    "row",
    sa.MetaData(),
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)


@dataclass
class Contender:
    name: str
    database: Database
    new_id: Callable[[], UUID]
    synchronous: str
    rates: dict[int, list[float]] = field(default_factory=dict)

    async def run(self, rows: int, batch_rows: int) -> None:
        """One round; one from which too much CPU time was stolen is repeated."""
        for _ in range(ATTEMPTS_MAX):
            batches = [self._batch(batch_rows) for _ in range(rows // batch_rows)]
            before, began = cpu_times(), time.perf_counter()
            for batch in batches:
                async with self.database.begin() as connection:
                    await insert_once(connection, ROWS, batch)
            seconds = time.perf_counter() - began
            if steal_since(before) <= STEAL_MAX:
                break
        self.rates.setdefault(batch_rows, []).append(rows / seconds)

    def _batch(self, rows: int) -> list[dict[str, object]]:
        body = os.urandom(PAYLOAD_BYTES)
        return [{"id": self.new_id(), "owner": "anna", "body": body} for _ in range(rows)]


def main() -> None:
    uvloop.run(_main())


async def _main() -> None:
    cache = Path(__file__).parents[1] / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        async with AsyncExitStack() as stack:
            contenders = [
                await _contender(stack, Path(folder), name, new_id, synchronous)
                for synchronous in ("FULL", "NORMAL")
                for name, new_id in (("ordered", time_ordered_id), ("random", uuid4))
            ]
            deadline = time.monotonic() + BUDGET_S
            for _ in range(ROUNDS):
                for contender in contenders:
                    if time.monotonic() < deadline or not contender.rates:
                        await contender.run(ROWS_PER_ROUND, BATCH_ROWS)
                        await contender.run(SMALL_ROWS_PER_ROUND, SMALL_BATCH_ROWS)
    _report(contenders)


async def _contender(
    stack: AsyncExitStack, folder: Path, name: str, new_id: Callable[[], UUID], synchronous: str
) -> Contender:
    title = f"{name} ids, synchronous={synchronous}"
    database = await Database.open(f"sqlite:///{folder}/{name}-{synchronous}.db")
    stack.push_async_callback(database.close)
    async with database.begin() as connection:
        await connection.run_sync(ROWS.metadata.create_all)
        await _set_synchronous(connection, synchronous)
    return Contender(title, database, new_id, synchronous)


async def _set_synchronous(connection: AsyncConnection, level: str) -> None:
    """The product has no such switch, and SQLite takes it only between transactions."""
    for statement in ("COMMIT", f"PRAGMA synchronous={level}", "BEGIN IMMEDIATE"):
        await connection.exec_driver_sql(statement)
    answer = (await connection.exec_driver_sql("PRAGMA synchronous")).scalar()
    assert answer == {"NORMAL": 1, "FULL": 2}[level]


def _report(contenders: list[Contender]) -> None:
    for batch_rows in (BATCH_ROWS, SMALL_BATCH_ROWS):
        print(f"## SQLite, transactions of {batch_rows:,} rows of {PAYLOAD_BYTES} bytes\n")
        print("| | rows/s | ratio | spread |\n|---|---:|---:|---:|")
        base = contenders[0].rates[batch_rows]
        for contender in contenders:
            rates = contender.rates[batch_rows]
            # The deadline may have cut the last round short.
            ratios = [rate / other for rate, other in zip(rates, base, strict=False)]
            print(
                f"| {contender.name} | {statistics.median(rates):,.0f} "
                f"| {statistics.median(ratios):.2f} | {min(ratios):.2f}–{max(ratios):.2f} |"
            )
        print()
