"""Redis gone in the middle of a batch: the query waits, and then each row is there once."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.profile import rounds
from tests.kit.eventually import wait_until
from tests.kit.server import ServerProcess
from tests.lake.kit import fill_journal, rows_of, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.timeout(400)
AWAY_S = rounds(3, 60)
DEADLINE_S = 100.0


def test_redis_away_in_mid_batch_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        total = fill_journal(server.client(), entries=600, events=50)
        # Known from the start, as readers that have run before are: else the journal is trimmed
        # behind the faster of the two before the other one has asked for its beginning.
        server.client().hset("journal:readers", mapping={"table": "0-0", "copy": "0-0"})
        url = server.url

        def start(to: str, name: str, target: str) -> StreamingQuery:
            reader = stream(spark, url, decode="journal", reader=name, maxRowsPerBatch=3_000)
            writer = reader.load().select("subject").writeStream.format(to)
            if to == "redis-stream":
                writer = writer.option("url", url)
            checkpoint = str(tmp_path / "checkpoints" / name)
            return writer.option("checkpointLocation", checkpoint).start(target)

        queries = [
            start("angarium-delta", "table", str(tmp_path / "table")),
            start("redis-stream", "copy", "copy"),
        ]
        log = tmp_path / "table" / "_delta_log"
        wait_until(lambda: log.exists() and len(list(log.glob("*.json"))) > 2, DEADLINE_S)
        server.kill()
        # Long enough that each side has met the silence; the fault itself, not a wait for it.
        time.sleep(AWAY_S)
        server.restart()
        total = fill_journal(server.client(), entries=20, events=50, first=total)
        expected = Counter(f"m{n}" for n in range(total))
        try:
            for query in queries:
                query.processAllAvailable()
        finally:
            for query in queries:
                query.stop()
        assert Counter(rows_of(tmp_path / "table")["subject"].to_pylist()) == expected
        copy = [fields[b"subject"].decode() for _, fields in server.client().xrange("copy")]
        assert Counter(copy) == expected
