"""Spark as the lake uses it: found, sized for the machine, and taught our formats.

A session runs in this process and on this machine unless a master is named. What a session needs
of the environment (Java, the address it binds to, the Python of its workers) is set here and only
when one is started. It has no web page and downloads nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from angarium.core.limits import MIB
from angarium.core.settings import Settings, load
from angarium.lake.errors import MemoryShort
from angarium.lake.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark refuses a heap below 450 MiB, and its Python workers need about as much again.
HEAP_MIB_MIN, HEAP_MIB_MAX = 512, 4_096
MEMORY_MIB_MIN = 1_024
ROWS_PER_ARROW_BATCH = 65_536

# Renaming a file is atomic on a disk, and three times as fast as the default's way to do it.
CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def start(
    settings: Settings | None = None,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    settings = settings or load()
    home = settings.home.absolute()
    prepare_environment(home)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master or "local[*]").appName("angarium")
    for name, value in {**_configuration(home, master), **(conf or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    make_known(spark)
    return spark


def make_known(spark: SparkSession) -> None:
    from angarium.lake.sinks.delta_format import DeltaFormat
    from angarium.lake.sources.archive import ArchiveFormat
    from angarium.lake.sources.redis_stream import RedisStreamFormat

    for each in (RedisStreamFormat, ArchiveFormat, DeltaFormat):
        spark.dataSource.register(each)


def prepare_environment(home: Path) -> None:
    """What Spark reads from the environment before it is there to be configured."""
    os.environ["JAVA_HOME"] = str(find_java(home))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(home / "spark" / "scratch"))
    os.environ.setdefault("SPARK_WORKER_DIR", str(home / "spark" / "work"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _configuration(home: Path, master: str | None) -> dict[str, str]:
    local = master is None or master.startswith("local")
    cores = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": f"{heap_mib(memory_mib())}m",
        # Stopping a query in the middle of a Python batch, Spark searches the error's text with a
        # pattern that needs more stack than a thread has by default.
        "spark.driver.extraJavaOptions": "-Xss4m",
        **({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
           if local else {}),
        "spark.sql.warehouse.dir": str(home / "spark" / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # The default of 200 makes 200 tasks of each small batch.
        "spark.sql.shuffle.partitions": cores if local else "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_ARROW_BATCH),
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.ui.showConsoleProgress": "false",
    }  # fmt: skip


def heap_mib(available_mib: int) -> int:
    """A quarter of what is free: Python, Arrow and Redis need the rest."""
    if available_mib < MEMORY_MIB_MIN:
        raise MemoryShort(
            "memory",
            f"{available_mib} MiB are free, and Spark needs {MEMORY_MIB_MIN} MiB on this machine",
            "free some, give the container more, or run the lake elsewhere with --master",
        )
    return max(HEAP_MIB_MIN, min(HEAP_MIB_MAX, available_mib // 4))


def memory_mib() -> int:
    """What this process may still take: of the machine, and of its container if it is in one."""
    free: list[int] = []
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) * 1024)
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if limit.strip().isdigit() and used.strip().isdigit():
        free.append(int(limit) - int(used))
    return min(free) // MIB if free else HEAP_MIB_MAX * 4


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
