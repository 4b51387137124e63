"""Rows of the lake sent back into a module: chosen by a filter, shown first, sent once.

What is sent again is what the lake has the content of: results (`results`) go into the durable
inbox of dispatch, archived transactions (`transactions`) are started anew with the data they had.
A replay has a name. Each row that was sent is written down under it, and the module is given an
idempotency key made of the name and the row's id, so a replay that is repeated, after a crash in
its middle too, sends only what is missing. How a module takes a row is the caller's to say: the
lake knows no modules.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from angarium.lake.query import QueryInvalid
from angarium.lake.schemas import REPLAYS
from angarium.lake.steps import LakeTables
from angarium.runtime.errors import InputInvalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# So many are sent before they are written down: what a crash in between repeats is caught by the
# modules' own idempotency keys.
PORTION = 200
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
# Table -> the column that is a row's id, and the columns that are needed to send it.
SOURCES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "results": ("message_id", "fields"),
        "transactions": ("id", "pipeline, owner, version, state"),
    }
)


class Planned(msgspec.Struct, frozen=True):
    """One row that the filter chose. `done`: sent by an earlier run of this replay."""

    id: str
    row: dict[str, Any]
    done: bool = False

    def key(self, replay: str) -> str:
        return f"replay:{replay}:{self.id}"


@dataclass(frozen=True)
class Plan:
    replay: str
    source: str
    rows: Sequence[Planned]

    @property
    def waiting(self) -> Sequence[Planned]:
        return [each for each in self.rows if not each.done]


# Takes a row and its idempotency key, and answers with the id that the row got in its module.
Send = Callable[[Planned, str], Awaitable[str]]


def plan(
    spark: SparkSession, tables: LakeTables, replay: str, source: str, where: str, limit: int
) -> Plan:
    """What a replay would send; the filter is SQL over the columns of its source."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    check(replay, source)
    tables.lake.need(source)
    id_column, columns = SOURCES[source]
    try:
        rows = tables[source].read(spark).where(f"{id_column} is not null").where(where)
        chosen = rows.selectExpr(f"{id_column} as id", *columns.split(", "))
        chosen = chosen.dropDuplicates(["id"]).orderBy("id").limit(limit)
        sent = tables[REPLAYS.name].read(spark).where(f.col("replay") == replay)
        sent = sent.where(f.col("source") == source).select("id", f.lit(True).alias("done"))
        found = chosen.join(sent.distinct(), "id", "left").orderBy("id").collect()
    except PySparkException as error:
        raise QueryInvalid(f"the filter can't be run: {str(error).splitlines()[0]}") from None
    planned = []
    for row in found:
        values = row.asDict()
        done = bool(values.pop("done"))
        planned.append(Planned(values.pop("id"), values, done))
    return Plan(replay, source, planned)


def check(replay: str, source: str) -> None:
    if source not in SOURCES:
        known = " and ".join(SOURCES)
        raise InputInvalid(f"'{source}' can't be replayed: only {known} have the content of a row")
    if not _NAME.fullmatch(replay):
        raise InputInvalid(f"'{replay}' can't name a replay: use letters, digits or any of _.-")


async def send_all(
    spark: SparkSession,
    tables: LakeTables,
    chosen: Plan,
    send: Send,
    tell: Callable[[int], None],
) -> int:
    """Send what waits, in portions; `tell` hears of each portion. How many were sent."""
    waiting = chosen.waiting
    for start in range(0, len(waiting), PORTION):
        portion = waiting[start : start + PORTION]
        async with asyncio.TaskGroup() as group:  # together, so that they share a script call
            tasks = [
                (each.id, group.create_task(_sent(send, each, chosen.replay))) for each in portion
            ]
        sent = [(id, task.result()) for id, task in tasks]
        await asyncio.to_thread(_write_down, spark, tables, chosen, sent)
        tell(len(portion))
    return len(waiting)


async def _sent(send: Send, planned: Planned, replay: str) -> str:
    return await send(planned, planned.key(replay))


def _write_down(
    spark: SparkSession, tables: LakeTables, chosen: Plan, sent: Sequence[tuple[str, str]]
) -> None:
    at_ms = time.time_ns() // 1_000_000
    table = tables[REPLAYS.name]
    rows = [(chosen.replay, chosen.source, id, name, at_ms) for id, name in sent]
    frame = spark.createDataFrame(rows, table.schema).coalesce(1)
    table.write(frame, writer=f"replay-{uuid.uuid4()}", batch=0)
