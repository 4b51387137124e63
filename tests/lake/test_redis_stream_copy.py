"""The journal straight into files: the same rows as through Spark, each once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from angarium.lake.copying import copy_journal
from angarium.lake.sinks.delta import committed_batch
from tests.kit.server import ServerProcess
from tests.lake.kit import QUERY_S_MAX, fill_journal, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_copied_events_and_rejects_are_in_their_tables_once(
    spark: SparkSession, redis_server: ServerProcess, prefix: str, tmp_path: Path
) -> None:
    client = redis_server.client()
    key = f"{prefix}journal"
    total = fill_journal(client, key, entries=500, events=100)
    client.xadd(key, {"foo": "bar"})
    options = {"url": redis_server.url, "prefix": prefix, "maxRowsPerBatch": "30000"}

    def copy() -> None:
        query = copy_journal(spark, str(tmp_path), str(tmp_path / "cp"), options, once=True)
        assert query.awaitTermination(QUERY_S_MAX)
        # Under its own id, or another query's batches would pass for this one's.
        assert committed_batch(str(tmp_path / "events"), str(query.id)) >= 0

    copy()
    total = fill_journal(client, key, entries=1, events=7, first=total)
    copy()
    events = rows_of(tmp_path / "events")
    assert Counter(events["subject"].to_pylist()) == Counter(f"m{n}" for n in range(total))
    assert {day.isoformat() for day in events["date"].to_pylist()} == {"2023-11-14"}
    assert set(events["room"].to_pylist()) == {"dispatch"}
    rejects = rows_of(tmp_path / "rejects")
    assert rejects["reason"].to_pylist() == ["not a journal entry"]
    # A batch whose commit Spark has not recorded is repeated, and finds itself in the table.
    last = max((tmp_path / "cp" / "commits").iterdir(), key=lambda path: path.name)
    last.unlink()
    copy()
    assert rows_of(tmp_path / "events").num_rows == total
