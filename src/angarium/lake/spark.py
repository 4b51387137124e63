"""Spark as the lake uses it: found, sized for the machine, and taught our formats.

A session runs in this process and on this machine unless a master is named. What a session needs
of the environment (Java, the Python of its workers) is set here and only when one is started. It
binds to the loopback address with a local master, else to the address from which the master is
reached. It has no web page unless a port is set, and downloads nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import socket
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from angarium.lake.errors import MasterUnavailable, MemoryShort
from angarium.lake.java import find_java
from angarium.lake.settings import LakeSettings
from angarium.runtime.limits import MIB
from angarium.runtime.settings import CommonSettings
from angarium.settings import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark refuses a heap below 450 MiB, and its Python workers need about as much again.
HEAP_MIB_MIN, HEAP_MIB_MAX = 512, 4_096
MEMORY_MIB_MIN = 1_024
ROWS_PER_ARROW_BATCH = 65_536
FILES_LISTED_MAX = 10_000

LOOPBACK = "127.0.0.1"
TASK_TRIES = 2
_HOST = re.compile(r"(?:spark|k8s)://(?:https?://)?(?P<host>[^:/,]+)(?::(?P<port>\d+))?")
_LOCAL = re.compile(r"local\[[^,\]]+\]")
LOGGING = Path(__file__).with_name("log4j2.properties")

# Renaming a file is atomic on a disk, and three times as fast as the default's way to do it.
CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def start(
    settings: CommonSettings | None = None,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    settings = settings or load()
    home = settings.home.absolute()
    master = master or settings.group(LakeSettings).master
    prepare_environment(home, driver_host(master, settings.group(LakeSettings).driver_host))
    from pyspark.sql import SparkSession

    wanted = {
        **configuration(settings, master),
        **settings.group(LakeSettings).spark_settings(),
        **(conf or {}),
    }
    builder = SparkSession.builder.master(with_retries(master)).appName("angarium")
    for name, value in wanted.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        if is_local(master):
            raise
        problem = f"Spark can't start on {master}"
        fix = "see that it runs, and check --master or ANGARIUM_LAKE__MASTER"
        raise MasterUnavailable(f"{problem}: {_said(error)}; {fix}") from error
    spark.sparkContext.setLogLevel("ERROR")
    make_known(spark)
    return spark


def executors(spark: SparkSession) -> int:
    """How many work for the session; a master that came back without its memory gives none."""
    context: Any = spark.sparkContext._jsc.sc()
    return 1 if context.isLocal() else int(context.getExecutorMemoryStatus().size()) - 1


def is_local(master: str | None) -> bool:
    return master is None or master.startswith("local")


def _said(error: Exception) -> str:
    """Java's own reason, where Java was what failed."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = [line.partition(": ")[2] for line in lines if line.startswith((": ", "Caused by: "))]
    return causes[-1] if causes else (lines or ["it gave no reason"])[0]


def with_retries(master: str) -> str:
    """On this machine a task is tried twice, as a cluster would: a worker may be killed."""
    return f"{master[:-1]},{TASK_TRIES}]" if _LOCAL.fullmatch(master) else master


def make_known(spark: SparkSession) -> None:
    from angarium.lake.sinks.delta_format import DeltaFormat
    from angarium.lake.sources.archive import ArchiveFormat
    from angarium.lake.sources.redis_stream import RedisStreamFormat

    for each in (RedisStreamFormat, ArchiveFormat, DeltaFormat):
        spark.dataSource.register(each)


def prepare_environment(home: Path, host: str = "") -> None:
    """What Spark reads from the environment before it is there to be configured."""
    if host:  # else it asks the system, which need not know this machine's name
        os.environ.setdefault("SPARK_LOCAL_IP", host)
    if host == LOOPBACK and not Path(os.environ.get("SPARK_HOME") or "/nowhere").is_dir():
        folder = home_of_spark(home)
        if folder is not None:
            os.environ["SPARK_HOME"] = str(folder)
    os.environ["JAVA_HOME"] = str(find_java(home))
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(home / "spark" / "scratch"))
    os.environ.setdefault("SPARK_WORKER_DIR", str(home / "spark" / "work"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def home_of_spark(home: Path) -> Path | None:
    """Spark's folder by links, without the archive of its Python package; None where none can be.

    Spark puts that archive in front of what is installed, and Python compiles what it takes from
    an archive each time: a worker would start with three times the work. Only for this machine: a
    cluster needs the archive.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    package = Path(found.origin).parent
    folder = home / "spark" / f"home-{zlib.crc32(str(package).encode()):08x}"
    try:
        (folder / "python").mkdir(parents=True, exist_ok=True)
        for name in ("bin", "jars", "sbin", "python/pyspark"):
            with contextlib.suppress(FileExistsError):  # made by another run
                (folder / name).symlink_to(package / name)
    except OSError:
        return None
    return folder


@contextmanager
def stderr_in_file(file: Path) -> Iterator[None]:
    """Java and its Python workers write their stderr into the file; this process does not."""
    ours, terminal = sys.stderr, os.dup(2)
    try:
        with fresh_log(file) as log:
            os.dup2(log.fileno(), 2)
        if _descriptor(ours) == 2:
            sys.stderr = os.fdopen(os.dup(terminal), "w", buffering=1, encoding=ours.encoding)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        if sys.stderr is not ours:
            sys.stderr.close()
            sys.stderr = ours


def fresh_log(file: Path) -> BinaryIO:
    """An empty file; the one before is kept beside it, for it may say why there is another."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists():
        file.replace(file.with_name(f"{file.name}.1"))
    return file.open("wb")


def _descriptor(stream: object) -> int | None:
    try:
        return stream.fileno() if isinstance(stream, io.IOBase) else None
    except OSError:
        return None


def driver_host(master: str, chosen: str = "") -> str:
    """The address at which executors reach this process."""
    if chosen or is_local(master):
        return chosen or LOOPBACK
    found = _HOST.match(master)
    if found is None:
        return ""  # YARN and the like: Spark asks the system for this machine's name
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: the system only says from where it would send.
            probe.connect((found["host"], int(found["port"] or 443)))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def configuration(settings: CommonSettings, master: str) -> dict[str, str]:
    local, home = is_local(master), settings.home.absolute()
    host, port = (
        driver_host(master, settings.group(LakeSettings).driver_host),
        settings.group(LakeSettings).ui_port,
    )
    cores = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
    return {
        "spark.ui.enabled": "true" if port else "false",
        **({"spark.ui.port": str(port)} if port else {}),
        "spark.driver.memory": f"{heap_mib(memory_mib())}m",
        # Stopping a query in the middle of a Python batch, Spark searches the error's text with a
        # pattern that needs more stack than a thread has by default. What Spark makes of a wide
        # aggregation is longer than what Java compiles unless told to; it would be interpreted.
        "spark.driver.extraJavaOptions": "-Xss4m -XX:-DontCompileHugeMethods "
        f'"-Dlog4j2.configurationFile={LOGGING.as_uri()}"',
        "spark.executor.extraJavaOptions": "-XX:-DontCompileHugeMethods",
        # A micro-batch is small: planning it again between its stages costs more than it saves.
        "spark.sql.adaptive.enabled": "false",
        **({"spark.driver.host": host, "spark.driver.bindAddress": host} if host else {}),
        "spark.sql.warehouse.dir": str(home / "spark" / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # The log has named the files of a batch already: pruning them once more is a broadcast.
        "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
        # Our plans are more than the 100 classes that Spark keeps compiled unless told to.
        "spark.sql.codegen.cache.maxEntries": "2000",
        # The default of 200 makes 200 tasks of each small batch.
        "spark.sql.shuffle.partitions": cores if local else "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_ARROW_BATCH),
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.sql.streaming.stopTimeout": "30s",
        # Delta's type; the default is one that only Spark reads.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Files are named by the table's log; past 32 of them Spark would run a job to look at them.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": str(FILES_LISTED_MAX),
        # `angarium-delta` chooses files by them.
        "spark.sql.python.filterPushdown.enabled": "true",
        # Without a checksum file beside each file of a table.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
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
