"""What one trigger of the lake consists of: jobs, stages, tasks, shuffles, files and CPU.

Counts from Spark's event log and CPU times from the kernel; neither depends on what else the
machine does. The journal comes from Parquet files, so that neither Redis nor a Python worker is
part of it. Run: `python -m benchmarks.lake_triggers [triggers before] [triggers measured]`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import angarium.lake
from angarium.lake.parquet import java_path
from angarium.lake.pipeline import Pipeline
from angarium.lake.sources.journal import SCHEMA as JOURNAL_SCHEMA
from angarium.settings import Settings
from benchmarks.processes import family

TICKS = os.sysconf("SC_CLK_TCK")
ROWS = 2_450


def event_log(folder: Path) -> dict[str, str]:
    """Settings of Spark under which a session writes its event log into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.buffer.kb": "1k",
    }


def cpu_seconds() -> dict[str, float]:
    """CPU that the processes of this run have used: `driver`, `jvm` and Python `workers`."""
    found = {"driver": 0.0, "jvm": 0.0, "workers": 0.0}
    for each in family():
        if each.pid != os.getpid() and each.name != "java" and b"pyspark" not in each.command:
            continue
        try:
            text = Path(f"/proc/{each.pid}/stat").read_text()
        except OSError:
            continue
        values = text.rpartition(")")[2].split()
        # Its own, and that of children which have ended.
        ticks = sum(int(values[place]) for place in (11, 12, 13, 14))
        name = "driver" if each.pid == os.getpid() else "jvm" if each.name == "java" else "workers"
        found[name] += ticks / TICKS
    return found


def compiled(spark: Any) -> int:
    """Classes that Spark has made and compiled so far."""
    metrics = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics
    return int(metrics.METRIC_COMPILATION_TIME().getCount())


@dataclass
class Summary:
    """What an event log says of the time between two moments."""

    jobs: int = 0
    stages: int = 0
    shuffles: int = 0
    tasks: int = 0
    executor_cpu_s: float = 0.0
    jobs_of: Counter[str] = field(default_factory=Counter)
    plans: list[str] = field(default_factory=list)


def events_in(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            with file.open() as lines:
                for line in lines:
                    if line.endswith("}\n"):
                        yield json.loads(line)


def summary(folder: Path, from_ms: float, to_ms: float) -> Summary:
    found = Summary()
    for each in events_in(folder):
        kind = each["Event"].rpartition(".")[2]
        if kind == "SparkListenerSQLExecutionStart" and from_ms <= each["time"] < to_ms:
            found.plans.append(each["physicalPlanDescription"])
        elif kind == "SparkListenerJobStart" and from_ms <= each["Submission Time"] < to_ms:
            found.jobs += 1
            about = each.get("Properties") or {}
            found.jobs_of[about.get("callSite.short", "")[:40]] += 1
        elif kind == "SparkListenerStageCompleted":
            found.stages += from_ms <= each["Stage Info"].get("Submission Time", 0) < to_ms
        elif kind == "SparkListenerTaskEnd" and (
            from_ms <= each["Task Info"]["Launch Time"] < to_ms
        ):
            found.tasks += 1
            found.shuffles += each["Task Type"] == "ShuffleMapTask"
            metrics = each.get("Task Metrics") or {}
            found.executor_cpu_s += metrics.get("Executor CPU Time", 0) / 1e9
    return found


def journal_of(spark: SparkSession, number: int) -> DataFrame:
    """A batch as the source gives it: three modules, and lives that end in the batch after."""
    kinds = (
        ("dispatch", "accepted", 0), ("transactions", "started", 0), ("pickup", "accepted", 0),
        ("transactions", "taken", 0), ("dispatch", "completed", 1), ("pickup", "delivered", 1),
        ("transactions", "completed", 1),
    )  # fmt: skip
    each = ROWS // len(kinds)
    names = ", ".join(f"struct('{module}', '{event}', {ago})" for module, event, ago in kinds)
    rows = spark.range(number * ROWS, (number + 1) * ROWS, numPartitions=1).selectExpr(
        "id", f"array({names})[cast(id % {ROWS} / {each} as int)] as kind",
    )  # fmt: skip
    life = f"id % {each} + ({number} - kind.col3) * {each}"
    given = {
        "partition": "0", "id": "concat(id, '-0')", "sequence": "id + 1", "version": "1",
        "module": "kind.col1", "at_ms": f"{int(time.time() * 1000)}", "actor": "'bench'",
        "event": "kind.col2", "subject": f"concat(substr(kind.col1, 1, 2), lpad({life}, 30, '0'))",
        "key": "'orders'", "owner": "'acme'", "attempt": "1",
    }  # fmt: skip
    columns = [part.split(" ") for part in JOURNAL_SCHEMA.split(", ")]
    return rows.selectExpr(
        *(f"cast({given.get(name, 'null')} as {kind}) as {name}" for name, kind in columns)
    )


def main() -> None:
    warm, measured = (int(each) for each in (*sys.argv[1:], "10", "20")[:2])
    folder = Path(tempfile.mkdtemp(prefix="angarium-lake-"))
    log = folder / "log"
    chosen = dict(pair.split("=", 1) for pair in os.environ.get("CONF", "").split())
    try:
        spark = angarium.lake.session(
            Settings(home=folder),
            master="local[2]",
            conf={"spark.driver.memory": "1g", **event_log(log), **chosen},
        )
        print("CPU of a session's start, s:", _shown(cpu_seconds()), flush=True)
        pipeline = Pipeline(spark, Settings(home=folder / "lake"), "redis://127.0.0.1:1")
        # Without a stream there is no checkpoint that could give a batch its number.
        pipeline._place = lambda name, batch_id: (batch_id, {})  # type: ignore[method-assign]
        total = warm + measured
        for number in range(total):
            journal_of(spark, number).write.parquet(java_path(f"{folder}/journal/{number}"))

        def run(first: int, last: int) -> None:
            for number in range(first, last):
                source = java_path(f"{folder}/journal/{number}")
                frame = spark.read.schema(JOURNAL_SCHEMA).parquet(source)
                pipeline.store_journal(frame, number)

        before = cpu_seconds()
        run(0, 1)
        first = {name: used - before[name] for name, used in cpu_seconds().items()}
        print("CPU of the first trigger, s:", _shown(first), flush=True)
        run(1, warm)
        cpu, classes, from_ms = cpu_seconds(), compiled(spark), time.time() * 1000
        run(warm, total)
        to_ms, classes = time.time() * 1000, compiled(spark) - classes
        spent = {name: (used - cpu[name]) / measured for name, used in cpu_seconds().items()}
        lake = pipeline.lake
        files = {name: len(lake.files(name)) / total for name in lake.existing()}
        assert lake.rows("events") == total * ROWS
        pipeline.stop()
        spark.stop()
        found = summary(log, from_ms, to_ms)
        print(f"\n{measured} triggers of {ROWS:,} events after {warm}; of each:\n")
        print(
            "| jobs | stages | tasks | of these with shuffle | classes compiled | executor CPU s |"
        )
        print("|---:|---:|---:|---:|---:|---:|")
        counts = (found.jobs, found.stages, found.tasks, found.shuffles, classes)
        print("| " + " | ".join(f"{each / measured:.1f}" for each in counts), end="")
        print(f" | {found.executor_cpu_s / measured:.3f} |")
        print("\nCPU s:", _shown(spent), f"; {(to_ms - from_ms) / measured:.0f} ms by the clock")
        print("Files of a trigger:", _shown({name: n for name, n in files.items() if n}))
        if file := os.environ.get("PLANS"):
            Path(file).write_text("\n\n".join(found.plans[-3:]))
        print("Jobs by what began them:", {k: v / measured for k, v in found.jobs_of.items()})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _shown(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in figures.items())


if __name__ == "__main__":
    main()
