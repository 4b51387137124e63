"""A driver that writes numbered batches into one table, and goes on where the table's log ends.

Arguments: master, URL of the lake, home folder, batches, rows in each. Says each commit on stdout.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import angarium.lake
from angarium.lake.tables import Lake, LakeTable
from angarium.settings import Settings

TASKS = 4
WRITER = "numbers"


def main() -> None:
    master, url, home = sys.argv[1:4]
    batches, rows = int(sys.argv[4]), int(sys.argv[5])
    settings = Settings(home=Path(home), lake_url=url)
    events = Path(home) / "events"
    events.mkdir(parents=True, exist_ok=True)
    conf = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    spark = angarium.lake.session(settings, master=master, conf=conf)
    table = LakeTable(Lake.of(settings), "numbers", numbers(spark, 0, 1).schema, ("part",))
    last = table.last_batch(WRITER)
    for batch in range(0 if last is None else last + 1, batches):
        frame = numbers(spark, batch * rows, rows)
        print(f"writing {batch}", flush=True)
        done = table.write(frame, writer=WRITER, batch=batch)
        print(f"committed {batch} {done.added} {done.rows}", flush=True)
    found = table.read(spark).agg(f.count("*"), f.count_distinct("n"), f.max("n")).first()
    assert found is not None
    print(f"read {found[0]} {found[1]} {found[2]}", flush=True)
    spark.stop()


def numbers(spark: SparkSession, first: int, count: int) -> DataFrame:
    rows = spark.range(first, first + count, numPartitions=TASKS)
    text, part = f.sha2(f.col("id").cast("string"), 512), (f.col("id") % 2).cast("int")
    return rows.select(f.col("id").alias("n"), text.alias("text"), part.alias("part"))


if __name__ == "__main__":
    main()
