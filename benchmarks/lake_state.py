"""The two ways to keep open messages: as a table, or as the state of a streaming aggregation.

Both take the same events, a batch at a time, from Parquet files, and write what has ended and what
is open: *table* is the lake's own step; *state* is Spark's stateful aggregation in update mode with
its RocksDB store. Counts come from Spark's event log, CPU from the kernel.
Run: `python -m benchmarks.lake_state [batches] [open messages]`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import angarium.lake
from angarium.lake import silver
from angarium.lake.parquet import java_path
from angarium.lake.schemas import EVENTS
from angarium.lake.steps import LakeTables, MessagesStep
from angarium.lake.tables import Lake
from angarium.settings import Settings
from benchmarks.lake_triggers import cpu_seconds, event_log, summary

ROWS = 2_500  # a trigger of half a second at 5,000 events/s
AT_MS = 1_760_000_000_000
WARM = 4
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def batch_of(spark: SparkSession, number: int, open_rows: int) -> DataFrame:
    """Half of the events begin messages, half end those of the batch before; first what stays."""
    first = open_rows + (number - 1) * ROWS + 1 if number else 1
    rows = spark.range(first, first + (ROWS if number else open_rows), numPartitions=1)
    half = ROWS // 2
    ends = f"(id - {first} >= {half})" if number > 1 else "false"
    subject = f"cast(if({ends}, id - {ROWS + half}, id) as string)"
    given = {
        "partition": "0", "entry_id": "concat(id, '-0')", "sequence": "id", "version": "1",
        "module": "'dispatch'", "at_ms": f"{AT_MS} + id", "actor": "'bench'",
        "event": f"if({ends}, 'completed', 'accepted')", "subject": f"lpad({subject}, 32, '0')",
        "key": "'orders'", "owner": "'acme'", "date": f"to_date(timestamp_millis({AT_MS}))",
        "batch": f"{number}",
    }  # fmt: skip
    kinds = {"long": "bigint"}
    return rows.selectExpr(
        *(
            f"cast({given.get(e.name, 'null')} as {kinds.get(e.type, e.type)}) as {e.name}"
            for e in EVENTS.columns
        )
    )


def by_table(spark: SparkSession, lake: Lake) -> Callable[[int], None]:
    step = MessagesStep(spark, LakeTables(lake))

    def run(upto: int) -> None:
        for number in range(step.position() + 1, upto + 1):
            step.run_once(number)

    return run


def by_state(spark: SparkSession, source: Path, target: Path) -> Callable[[int], None]:
    """Emitted rows are written as they come; a table of open rows would have to be made of them."""
    catalogue = silver.catalogue(spark)

    def store(frame: DataFrame, batch_id: int) -> None:
        rows = silver.placed(silver.flat(frame))
        rows.coalesce(1).write.partitionBy("table").parquet(java_path(f"{target}/{batch_id}"))

    stream = (
        spark.readStream.schema(EVENTS.struct())
        .option("maxFilesPerTrigger", 1)
        .parquet(java_path(str(source)))
    )
    rows = silver.combined(silver.rows_of_events(stream, catalogue))

    def run(upto: int) -> None:
        for number in range(upto + 1):
            if (target / str(number)).exists():
                continue
            part = source.parent / "later" / f"{number:06}.parquet"
            part.rename(source / part.name)
            query = rows.writeStream.outputMode("update").foreachBatch(store)
            if not started:
                option = query.option("checkpointLocation", str(target.parent / "checkpoint"))
                started.append(option.trigger(processingTime="0 seconds").start())
            while not (target.parent / "checkpoint" / "commits" / str(number)).exists():
                if (error := started[0].exception()) is not None:
                    raise error
                time.sleep(0.02)

    started: list[StreamingQuery] = []
    return run


def main() -> None:
    batches, open_rows = (int(each) for each in (*sys.argv[1:], "20", "20000")[:2])
    folder = Path(tempfile.mkdtemp(prefix="angarium-lake-"))
    log = folder / "log"
    spark = angarium.lake.session(
        Settings(home=folder),
        master="local[2]",
        conf={
            "spark.driver.memory": "1g",
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            **event_log(log),
        },
    )
    lake = Lake(str(folder / "lake"))
    tables = LakeTables(lake)
    (folder / "source").mkdir()
    (folder / "later").mkdir()
    total = WARM + batches
    for number in range(total + 1):
        frame = batch_of(spark, number, open_rows)
        tables["events"].write(frame, writer="journal", batch=number)
        frame.write.parquet(java_path(str(folder / "made")))
        (file,) = (folder / "made").glob("*.parquet")
        file.rename(folder / "later" / f"{number:06}.parquet")
        shutil.rmtree(folder / "made")
    print(f"made {total} batches", flush=True)
    ways = {
        "table": by_table(spark, lake),
        "state": by_state(spark, folder / "source", folder / "emitted"),
    }
    spans = {}
    for name, run in ways.items():
        run(WARM)
        cpu, from_ms = cpu_seconds(), time.time() * 1000
        run(total)
        spent = {n: used - cpu[n] for n, used in cpu_seconds().items()}
        spans[name] = (from_ms, time.time() * 1000, spent)
        print(name, spent, flush=True)
    for each in spark.streams.active:
        each.stop()
    spark.stop()
    print(f"\n{ROWS:,} events a batch, {open_rows:,} messages stay open, {batches} batches\n")
    print("| way | jobs | stages | tasks | executor CPU s | JVM CPU s | driver CPU s | s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, (from_ms, to_ms, spent) in spans.items():
        found = summary(log, from_ms, to_ms)
        counts = [n / batches for n in (found.jobs, found.stages, found.tasks)]
        times = [found.executor_cpu_s, spent["jvm"], spent["driver"], (to_ms - from_ms) / 1000]
        shown = [f"{n:.1f}" for n in counts] + [f"{n / batches:.3f}" for n in times]
        print(f"| {name} | " + " | ".join(shown) + " |")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
