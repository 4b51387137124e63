"""The source and the sink `redis-stream`, in a real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.server import ServerProcess
from tests.lake.kit import fill_journal, rows_of, run_once, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_journal_becomes_a_table_and_every_event_is_there_once(
    spark: SparkSession, redis_server: ServerProcess, prefix: str, tmp_path: Path
) -> None:
    key = f"{prefix}journal"
    client = redis_server.client()
    total = fill_journal(client, key, entries=300, events=100)
    client.xadd(key, {"foo": "bar"})
    frame = stream(
        spark, redis_server.url, prefix=prefix, decode="journal", reader="lake",
        maxRowsPerBatch=12_000,
    ).load()  # fmt: skip
    table, checkpoint = tmp_path / "events", tmp_path / "checkpoint"
    progress = run_once(frame, "angarium-delta", str(table), checkpoint, partitionBy="module")
    assert sum(each["numInputRows"] > 0 for each in progress) >= 3
    rows = rows_of(table).to_pylist()
    good = [row for row in rows if row["reject"] is None]
    assert sorted(row["subject"] for row in good) == sorted(f"m{n}" for n in range(total))
    assert all(row["sequence"] == int(row["subject"][1:]) + 1 for row in good)
    assert [row["reject"] for row in rows if row["reject"]] == ["not a journal entry"]
    # What was stored before the last batch no longer stays in Redis, but for a node of the stream.
    assert client.xlen(key) < 300
    more = fill_journal(client, key, entries=1, events=10, first=total)
    run_once(frame, "angarium-delta", str(table), checkpoint, partitionBy="module")
    assert rows_of(table).num_rows == more + 1


def test_a_users_rows_go_from_one_stream_to_another(
    spark: SparkSession, any_redis_url: str, request: pytest.FixtureRequest, prefix: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    single = any_redis_url.startswith("redis://")
    witness = request.getfixturevalue("redis_server" if single else "cluster").client()
    names = [f"{prefix}in:{n}" for n in range(3)]
    for number in range(60):
        witness.xadd(names[number % 3], {"order": number, "name": f"n{number}"})
    frame = (
        stream(spark, any_redis_url, keys=f"{prefix}in:*")
        .schema("order long, name string")
        .load()
        .selectExpr("order * 2 AS double", "upper(name) AS name")
    )
    for _ in range(2):
        run_once(frame, "redis-stream", f"{prefix}out", tmp_path / "checkpoint", url=any_redis_url)
        out = [fields for _, fields in witness.xrange(f"{prefix}out")]
        assert sorted(int(each[b"double"]) for each in out) == [2 * n for n in range(60)]
    assert {each[b"name"] for each in out} == {b"N%d" % n for n in range(60)}


def test_reading_at_once_gives_the_fields_as_a_map(
    spark: SparkSession, redis_server: ServerProcess, prefix: str
) -> None:
    client = redis_server.client()
    ids = [client.xadd(f"{prefix}s", {"a": n, "b": b"\xff"}).decode() for n in range(5)]
    reader = spark.read.format("redis-stream").option("url", redis_server.url)
    reader = reader.option("keys", f"{prefix}s")
    rows = reader.load().orderBy("id").collect()
    assert [row.id for row in rows] == ids
    assert rows[3].fields == {"a": "3", "b": "\ufffd"}
    assert int(rows[3].timestamp.timestamp() * 1000) == int(ids[3].partition("-")[0])
    some = (
        reader.option("startingOffsets", json.dumps({f"{prefix}s": ids[0]}))
        .option("endingOffsets", json.dumps({f"{prefix}s": ids[2]}))
        .schema("id string, a int, fields map<string,binary>")
        .load()
    )
    rows = some.orderBy("id").collect()
    assert [(row.id, row.a) for row in rows] == [(ids[1], 1), (ids[2], 2)]
    assert rows[0].fields["b"] == b"\xff"
