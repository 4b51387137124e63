"""The lake's streaming queries: the journal, the results, the archive, each batch stored once.

One query reads the journal and fills `events`, `rejects`, `messages` and the statistics; another
one reads the results, a third archives transactions. A batch that is repeated after a crash finds
in each table how far it has come and adds only what is missing, so that the tables agree again
after it. Runs until stopped, or until all that was there at the beginning is stored.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from angarium.core import keyspace as keys
from angarium.core.errors import AngariumError
from angarium.core.keyspace import Keyspace
from angarium.core.settings import Settings
from angarium.lake import upserts
from angarium.lake.jobs import events as journal_jobs
from angarium.lake.jobs import messages as message_jobs
from angarium.lake.jobs import statistics as statistics_jobs
from angarium.lake.schemas import INTERVALS_S, STATS_FINE, TABLES
from angarium.lake.tables import Lake, positions_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from angarium.lake.sinks.delta import DataFile

READER = "lake"
JOURNAL, RESULTS, ARCHIVE = "journal", "processed", "archive"
JOURNAL_TABLES = ("events", "rejects", "messages", *INTERVALS_S)
# Small files cost every reader; at a batch in half a second, this is about two minutes' worth.
BATCHES_PER_COMPACTION = 240
_REASON = re.compile(r"^(?:angarium\.)[\w.]+: (.+)$", re.MULTILINE)


class LakeStopped(AngariumError):
    """A query ended with an error; what was stored stays, and the next run goes on from there."""

    code = "lake_stopped"


@dataclass
class Figures:
    """What this run has done so far; written by the queries' threads, read by anybody."""

    batches: int = 0
    events: int = 0
    rejects: int = 0
    results: int = 0
    transactions: int = 0
    newest_ms: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, newest_ms: int = 0, **counts: int) -> None:
        with self.lock:
            self.batches += 1
            self.newest_ms = max(self.newest_ms, newest_ms)
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def shown(self) -> dict[str, int]:
        with self.lock:
            return {
                name: getattr(self, name)
                for name in ("batches", "events", "rejects", "results", "transactions", "newest_ms")
            }


@dataclass(frozen=True)
class Arrived:
    """What a batch holds: the first and last entry of each partition, and how many rows."""

    first: Mapping[int, int]
    last: Mapping[int, int]
    rows: int
    newest_ms: int


class Pipeline:
    """`start` it, then `wait`. `url` is where Redis is: an embedded one has been asked already."""

    def __init__(self, spark: SparkSession, settings: Settings, url: str) -> None:
        self._spark = spark
        self._settings = settings
        self._url = url
        self._keyspace = Keyspace.from_settings(settings)
        self._queries: list[StreamingQuery] = []
        self._batches: Counter[str] = Counter()
        self.lake = Lake.of(settings)
        self.figures = Figures()

    def start(self, *, once: bool = False) -> None:
        """Begin all queries; with `once` each ends when it has what is there now."""
        self.lake.check()
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if once
            else {"processingTime": f"{self._settings.lake.interval_ms} milliseconds"}
        )
        for name, source, store in self._sources():
            query = (
                source.writeStream.foreachBatch(store)
                .option("checkpointLocation", self.lake.checkpoint(name))
                .queryName(f"angarium-{name}")
                .trigger(**trigger)
                .start()
            )
            self._queries.append(query)

    @property
    def running(self) -> bool:
        return any(each.isActive for each in self._queries)

    def wait(self, seconds: float) -> bool:
        """Whether all queries have ended; raises what one of them failed of."""
        from pyspark.errors import StreamingQueryException

        for each in self._queries:
            if each.isActive:
                # What it failed of is told below, by its name.
                with contextlib.suppress(StreamingQueryException):
                    each.awaitTermination(max(1, int(seconds)))
                break
        for each in self._queries:
            error = each.exception()
            if error is not None:
                raise LakeStopped(f"{each.name} stopped: {reason_of(str(error))}")
        return not self.running

    def stop(self) -> None:
        for each in self._queries:
            if each.isActive:
                each.stop()
        self._queries = []

    def _sources(self) -> Iterator[tuple[str, DataFrame, Callable[[DataFrame, int], None]]]:
        rows_max = str(self._settings.lake.batch_rows_max)
        partitions = range(self._settings.partitions)
        journals = [self._keyspace.name(keys.JOURNAL, number) for number in partitions]
        yield (
            JOURNAL,
            self._stream(
                keys=",".join(journals),
                decode="journal",
                into=self.lake.url,  # tasks write files; Spark passes on their names
                reader=READER,
                maxRowsPerBatch=rows_max,
                onGap="count",  # the audit names what is missing; the rest must not wait for it
            ),
            self.store_journal,
        )
        results = [self._keyspace.name(keys.MESSAGES_PROCESSED, number) for number in partitions]
        yield (
            RESULTS,
            self._stream(keys=",".join(results), maxRowsPerBatch=rows_max, onGap="count"),
            self.store_results,
        )
        if self._settings.lake.archive:
            yield ARCHIVE, self._archive(), self.store_transactions

    def _stream(self, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("redis-stream").option("url", self._url)
        return reader.options(**options).load()

    def _archive(self) -> DataFrame:
        settings = self._settings
        room = settings.transactions
        options = {
            "prefix": settings.prefix,
            "partitions": str(settings.partitions),
            "lock1Seconds": str(room.persisting_permission_lock1_period),
            "lock2Seconds": str(room.persisting_permission_lock2_period),
            "journalBytesMax": str(settings.journal.bytes_max if settings.journal.enabled else 0),
        }
        reader = self._spark.readStream.format("angarium-archive").option("url", self._url)
        return reader.options(**options).load()

    # The journal

    def store_journal(self, written: DataFrame, _: int) -> None:
        """One batch of the journal into all of its tables; its tasks have written files of it."""
        from angarium.lake.sources.files import files_in

        files = files_in(written.collect())
        good, bad = files.get("events", []), files.get("rejects", [])
        if bad:
            self._keep("rejects", JOURNAL, bad)
        if good:
            arrived = self._keep("events", JOURNAL, good)
            self._sum_up(self._rows("events", good), arrived)
            self.figures.add(arrived.newest_ms, events=arrived.rows)
        if bad:
            self.figures.add(rejects=sum(each.rows for each in bad))
        self._tidy(*JOURNAL_TABLES)

    def _sum_up(self, events: DataFrame, arrived: Arrived) -> None:
        """Messages and statistics, from the files that are part of `events` by now."""
        marks = positions_of(JOURNAL, arrived.last.items())
        fresh = self._fresh("messages", JOURNAL, events, arrived)
        self.lake.merge("messages", message_jobs.partial(fresh).toArrow(), upserts.MESSAGES, marks)
        levels = {name: self._overlap(name, JOURNAL, arrived) for name in INTERVALS_S}
        fine = self._fresh(STATS_FINE.name, JOURNAL, events, arrived)
        counts = statistics_jobs.statistics(fine, INTERVALS_S[STATS_FINE.name]).toArrow()
        for name, interval_s in INTERVALS_S.items():
            if levels[name] == levels[STATS_FINE.name]:
                level = coarser(counts, interval_s)
            else:  # a crash came between two levels: this one lacks other rows than the first
                own = self._fresh(name, JOURNAL, events, arrived)
                level = statistics_jobs.statistics(own, interval_s).toArrow()
            self.lake.merge(name, level, upserts.STATISTICS, marks)

    # The results

    def store_results(self, rows: DataFrame, _: int) -> None:
        """One batch of the workers' results."""
        files = self._write("processed", journal_jobs.processed(rows))
        if files:
            self._keep("processed", RESULTS, files)
            self.figures.add(results=sum(each.rows for each in files))
            self._tidy("processed")

    # The archive

    def store_transactions(self, rows: DataFrame, _: int) -> None:
        """Ended transactions, each once by its id; Redis is told when this has returned."""
        found = rows.toArrow()
        if found.num_rows:
            self.lake.merge("transactions", found, upserts.KEEP)
            self.figures.add(transactions=found.num_rows)
            self._tidy("transactions")

    # Shared

    def _keep(self, name: str, stream: str, files: Sequence[DataFile]) -> Arrived:
        """Make files part of their table, without rows that it has already."""
        arrived = self._arrived(name, files)
        kept = files
        if self._overlap(name, stream, arrived):
            # This batch, or its like, came before: after a crash, or with a new checkpoint.
            kept = self._write(name, self._fresh(name, stream, self._rows(name, files), arrived))
        if kept:
            self.lake.add_files(name, kept, positions_of(stream, arrived.last.items()))
        return arrived

    def _overlap(self, table: str, stream: str, arrived: Arrived) -> dict[int, int]:
        """How far the table has come, for partitions where that is inside this batch."""
        stored = self.lake.positions(table, stream)
        return {
            partition: stored[partition]
            for partition, first in arrived.first.items()
            if stored.get(partition, -1) >= first
        }

    def _fresh(self, table: str, stream: str, rows: DataFrame, arrived: Arrived) -> DataFrame:
        """Without the rows that the table has already."""
        from pyspark.sql import functions as f

        for partition, position in self._overlap(table, stream, arrived).items():
            here = f.col("partition") == partition
            rows = rows.where(~here | (journal_jobs.position("entry_id") > position))
        return rows

    def _write(self, name: str, rows: DataFrame) -> list[DataFile]:
        """Files in the table's folder, written by the executors; no part of the table yet."""
        from angarium.lake.sinks.delta import DataFile

        write = _writer(self.lake.path(name), TABLES[name].partition_by)
        written = rows.mapInArrow(write, "file string").collect()
        return [DataFile(**json.loads(each.file)) for each in written]

    def _rows(self, name: str, files: Sequence[DataFile]) -> DataFrame:
        """What stands in some files, whether they are part of the table or not."""
        table, root = TABLES[name], self.lake.path(name)
        root = root if "://" in root else f"file://{root}"
        reader = self._spark.read.schema(table.ddl()).option("basePath", root)
        return reader.parquet(*(f"{root}/{each.path}" for each in files)).select(*table.names)

    def _arrived(self, name: str, files: Sequence[DataFile]) -> Arrived:
        """Read by the driver: a column or two, which is faster than any job."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        from angarium.lake.sinks.parquet import filesystem_of

        filesystem, root = filesystem_of(self.lake.path(name), None)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        newest_ms = 0
        for each in files:
            with filesystem.open_input_file(f"{root}/{each.path}") as file:
                found = pq.ParquetFile(file).read(["partition", "entry_id", "at_ms"])
            newest_ms = max(newest_ms, pc.max(found["at_ms"]).as_py() or 0)
            ids = found.select(["partition", "entry_id"]).group_by(["partition", "entry_id"])
            for row in ids.aggregate([]).to_pylist():
                partition, position = row["partition"], journal_jobs.position_of(row["entry_id"])
                first[partition] = min(first.get(partition, position), position)
                last[partition] = max(last.get(partition, position), position)
        return Arrived(first, last, sum(each.rows for each in files), newest_ms)

    def _tidy(self, *tables: str) -> None:
        """Between two batches of their only writer, so that nobody has to give way."""
        self._batches[tables[0]] += 1
        if self._batches[tables[0]] % BATCHES_PER_COMPACTION == 0:
            compact(self.lake, tables=tables)


def compact(lake: Lake, *, tables: Sequence[str] = tuple(TABLES)) -> dict[str, tuple[int, int]]:
    """Small files put together, files that nobody needs deleted: table -> files before, after."""
    from angarium.lake.sinks import delta

    found: dict[str, tuple[int, int]] = {}
    for name in tables:
        before = len(lake.files(name))
        if before:
            delta.compact(lake.path(name))
            delta.vacuum(lake.path(name))
            found[name] = before, len(lake.files(name))
    return found


def coarser(counts: pa.Table, interval_s: int) -> pa.Table:
    """Counts of small windows added up to larger ones, which they fit into without a rest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    starts = pc.multiply(pc.divide(counts["start_s"], interval_s), interval_s)
    moved = counts.set_column(counts.column_names.index("start_s"), "start_s", starts)
    summed = moved.group_by(list(STATS_FINE.key)).aggregate([("count", "sum")])
    return pa.table(
        {name: summed[name] for name in STATS_FINE.key} | {"count": summed["count_sum"]}
    )


def reason_of(text: str) -> str:
    """The one line of a Spark error that is for people, if there is one."""
    found = _REASON.findall(text)
    if found:
        return str(found[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "without a word"


def _writer(
    path: str, partition_by: Sequence[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Runs on the executors, so it is made of values only."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from angarium.lake.sinks.parquet import write_files

        files = write_files(path, batches, partition_by)
        yield pa.RecordBatch.from_pydict(
            {"file": pa.array([json.dumps(asdict(each)) for each in files], pa.string())}
        )

    return write
