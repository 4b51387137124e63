"""Journals to read, written as the scripts write them, and queries that run to their end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

QUERY_S_MAX = 300


def fill_journal(
    client: Any, key: str = "journal", *, entries: int, events: int, first: int = 0
) -> int:
    """Entries of `events` events each, subjects `m0`, `m1`, …; returns how many events in all."""
    pipe = client.pipeline(transaction=False)
    number = first
    for _ in range(entries):
        rows = "\n".join(
            json.dumps({"e": "accepted", "s": f"m{number + n}", "k": "chan", "a": n})
            for n in range(events)
        )
        number += events
        pipe.xadd(
            key,
            {"v": 1, "module": "dispatch", "at": 1_700_000_000_000 + number, "by": "w1",
             "n": events, "seq": number, "end": number * 40, "rows": rows},
        )  # fmt: skip
    pipe.execute()
    return number


def stream(spark: SparkSession, url: str, **options: object) -> DataStreamReader:
    reader = spark.readStream.format("redis-stream").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader


def run_once(
    frame: DataFrame, to: str, target: str, checkpoint: Path, **options: object
) -> list[Mapping[str, Any]]:
    """Everything there is now, then the query ends; its progress, batch by batch."""
    writer = frame.writeStream.format(to).option("checkpointLocation", str(checkpoint))
    for name, value in options.items():
        writer = writer.option(name, str(value))
    query = writer.trigger(availableNow=True).start(target)
    try:
        assert query.awaitTermination(QUERY_S_MAX), "the query did not end"
    finally:
        query.stop()
    return [json.loads(each.json) for each in query.recentProgress]


def rows_of(table: Path | str) -> pa.Table:
    return DeltaTable(str(table)).to_pyarrow_table()
