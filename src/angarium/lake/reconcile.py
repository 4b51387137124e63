"""Proves that the lake's statistics are those of the transactions module.

For windows that are closed, both in Redis (their counters not yet expired) and in the lake, the
counters that the scripts wrote are compared with the table of the same level, field by field. What
differs is named. Reads only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from angarium.lake.checkpoint import ENTRY, position_of
from angarium.lake.schemas import INTERVALS_S
from angarium.lake.steps import LakeTables
from angarium.runtime import keys as runtime_keys
from angarium.runtime.journal import Journal
from angarium.runtime.keyspace import Key
from angarium.runtime.runtime import Runtime
from angarium.transactions import keys as transactions_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from angarium.lake.tables import LakeTable

LEVELS: Mapping[str, Key] = MappingProxyType(
    {
        "stats_fine": transactions_keys.STATS_FINE,
        "stats_medium": transactions_keys.STATS_MEDIUM,
        "stats_coarse": transactions_keys.STATS_COARSE,
    }
)
PAGE = 500


class Difference(msgspec.Struct, frozen=True):
    """One counter that is not the same on both sides."""

    table: str
    start_s: int
    counter: str
    redis: int
    lake: int


class Reconciliation(msgspec.Struct, frozen=True):
    """How many windows of each level and how many counters in all were compared."""

    windows: dict[str, int]
    counters: int
    differences: list[Difference]


async def reconcile(runtime: Runtime, spark: SparkSession, tables: LakeTables) -> Reconciliation:
    """Compare every closed window that Redis still has."""
    tables.lake.need("stats_fine")
    windows, counters = dict.fromkeys(LEVELS, 0), 0
    differences: list[Difference] = []
    closed_ms = await _closed_ms(runtime, spark, tables)
    for table, key in LEVELS.items():
        interval_s = INTERVALS_S[table]
        redis: dict[int, dict[str, int]] = {}
        async for start_s, fields in _windows(runtime, key):
            if (start_s + interval_s) * 1000 <= closed_ms:
                merged = redis.setdefault(start_s, {})
                for field, count in fields.items():
                    merged[field] = merged.get(field, 0) + count
        ours = _counters(spark, tables[table], list(redis))
        for start_s in sorted(redis):
            windows[table] += 1
            for field in sorted({*redis[start_s], *ours.get(start_s, {})}):
                counters += 1
                pair = redis[start_s].get(field, 0), ours.get(start_s, {}).get(field, 0)
                if pair[0] != pair[1]:
                    differences.append(Difference(table, start_s, field, *pair))
    return Reconciliation(windows, counters, differences)


async def _closed_ms(runtime: Runtime, spark: SparkSession, tables: LakeTables) -> int:
    """The lake has every event before this time.

    A partition of which it has read all is as far as the clock, one that it has yet to catch up
    with only as far as the last event that it has of it.
    """
    closed_ms = await _now_ms(runtime)
    journal, events = Journal(runtime), tables["events"]
    behind = []
    for partition in range(runtime.settings.partitions):
        name = runtime.keyspace.name(runtime_keys.JOURNAL, partition)
        last_id = (await journal.status(partition)).last_id
        if position_of(last_id) > (events.last_batch(f"{ENTRY}{name}") or -1):
            behind.append(partition)
    if behind:
        rows = events.read(spark).groupBy("partition").agg({"at_ms": "max"}).collect()
        newest = {row[0]: row[1] for row in rows}
        closed_ms = min(closed_ms, *(newest.get(partition, 0) for partition in behind))
    return closed_ms


async def _now_ms(runtime: Runtime) -> int:
    owned = runtime.clock.now_ms()
    if owned is not None:
        return owned
    seconds, _ = await runtime.redis.call("TIME")
    return int(seconds) * 1000


async def _windows(runtime: Runtime, key: Key) -> AsyncIterator[tuple[int, dict[str, int]]]:
    """Every window of a level that is in Redis, partition by partition."""
    for partition in range(runtime.settings.partitions):
        stem = runtime.keyspace.name(key, partition, "")
        for start in await _starts(runtime, partition, key):
            name = f"{stem}{start}"
            reply = await runtime.redis.call("HGETALL", name, key=name)
            fields = {
                field.decode(): int(count)
                for field, count in zip(reply[::2], reply[1::2], strict=True)
                if not field.startswith(b"queue:")  # a length, nothing that happened
            }
            yield start, fields


async def _starts(runtime: Runtime, partition: int, key: Key) -> list[int]:
    """Asked by name, because retention and interval say which there can be: no scan."""
    interval_s, retention_s = _TIMES_S[key]
    newest = await _now_ms(runtime) // 1000 // interval_s * interval_s
    stem = runtime.keyspace.name(key, partition, "")
    wanted = [newest - back * interval_s for back in range(retention_s // interval_s + 1)]
    found: list[int] = []
    for at in range(0, len(wanted), PAGE):
        some = wanted[at : at + PAGE]
        commands = [("EXISTS", f"{stem}{start}") for start in some]
        replies = await runtime.redis.execute(commands, key=stem, repeatable=True)
        found += [start for start, there in zip(some, replies, strict=True) if there == 1]
    return found


# Interval and retention of each level, as the scripts of the transactions module have them.
_TIMES_S: Mapping[Key, tuple[int, int]] = MappingProxyType(
    {
        transactions_keys.STATS_FINE: (5, 300),
        transactions_keys.STATS_MEDIUM: (100, 7_200),
        transactions_keys.STATS_COARSE: (1_000, 86_400),
    }
)


def _counters(
    spark: SparkSession, table: LakeTable, starts: list[int]
) -> dict[int, dict[str, int]]:
    """The lake's counts of the transactions module, under the names that the scripts use."""
    from pyspark.sql import functions as f

    if not starts:
        return {}
    names = f.concat_ws("|", "node_group", "pipeline", "owner", "event").alias("field")
    rows = table.read(spark).where("module = 'transactions'")
    rows = rows.where(f.col("start_s").between(min(starts), max(starts)))
    found: dict[int, dict[str, int]] = {}
    for row in rows.groupBy("start_s", names).agg(f.sum("count").alias("count")).collect():
        found.setdefault(row.start_s, {})[row.field] = row["count"]
    return found
