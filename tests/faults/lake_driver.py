"""A driver to be killed: the journal into a table and into a stream, the archive into a table.

    python -m tests.faults.lake_driver SETTINGS FOLDER MASTER

It goes on until a file `stop` stands in the folder; then it takes what is left and ends.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import angarium.lake
from angarium.lake.sources.archive_store import options_of
from angarium.settings import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

CONF = {"spark.driver.memory": "768m", "spark.sql.streaming.numRecentProgressUpdates": "5"}


def main(settings_text: str, folder_text: str, master: str) -> int:
    folder = Path(folder_text)
    settings = load(**json.loads(settings_text))
    spark = angarium.lake.session(settings, master=master, conf=CONF)

    def journal(reader: str) -> DataFrame:
        return (
            spark.readStream.format("redis-stream")
            .option("url", settings.redis_url)
            .option("prefix", settings.prefix)
            .option("decode", "journal")
            .option("reader", reader)
            .option("maxRowsPerBatch", "1500")
            .load()
            .where("event = 'noted'")
        )

    def start(frame: DataFrame, to: str, target: str, name: str) -> StreamingQuery:
        writer = frame.writeStream.format(to).option("url", settings.redis_url)
        if to == "angarium-delta":
            writer = frame.writeStream.format(to)
        writer = writer.option("checkpointLocation", str(folder / "checkpoints" / name))
        query = writer.start(target)
        # One after the other: a Python worker has to be there within ten seconds.
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.05)
        return query

    archive = spark.readStream.format("angarium-archive").option("maxRowsPerBatch", "50")
    queries = [
        start(journal("events"), "angarium-delta", str(folder / "events"), "events"),
        start(
            # A shuffle, whose rows come in another order each time.
            journal("copy").repartition(2).select("subject"),
            "redis-stream",
            f"{settings.prefix}copy",
            "copy",
        ),
        start(
            archive.options(**options_of(settings, settings.redis_url)).load(),
            "angarium-delta",
            str(folder / "transactions"),
            "transactions",
        ),
    ]
    print("started", flush=True)
    while not (folder / "stop").exists():
        for query in queries:
            if not query.isActive:
                error = query.exception()
                raise SystemExit(f"a query ended: {error}")
        time.sleep(0.1)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
