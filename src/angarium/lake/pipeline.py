"""The lake's streaming queries: the journal, the results, the archive, each batch stored once.

One query reads the journal, and its tasks write files of `events` and `rejects` and parts of
`messages` and the statistics in one pass; the driver makes them part of the tables. Another query
reads the results, a third archives transactions. A batch that is repeated after a crash finds in
each table how far it has come and adds only what is missing, so that the tables agree again after
it. Runs until stopped, or until all that was there at the beginning is stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from angarium.dispatch import keys as dispatch_keys
from angarium.lake.compaction import compact as compact
from angarium.lake.jobs import events as journal_jobs
from angarium.lake.jobs import parts
from angarium.lake.schemas import TABLES
from angarium.lake.settings import LakeSettings
from angarium.lake.tables import Lake, positions_of
from angarium.runtime import keys as runtime_keys
from angarium.runtime.errors import AngariumError
from angarium.runtime.settings import CommonSettings
from angarium.transactions.settings import TransactionsSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from angarium.lake.sinks.delta import DataFile
    from angarium.lake.sources.files import Spans, Written

READER = "lake"
JOURNAL, RESULTS, ARCHIVE = "journal", "processed", "archive"
JOURNAL_TABLES = ("events", "rejects", *parts.PARTS)
# Small files cost every reader; at a batch in half a second, this is about a minute's worth.
COMMITS_PER_COMPACTION = 120
# Our own error, else that of a Python worker, else what became of the task.
_REASONS = (
    re.compile(r"^(?:angarium\.)[\w.]+: (.+)$", re.MULTILINE),
    re.compile(r"^[\w.]+(?:Error|Exception): (?!An e(?:rror|xception) )(.+)$", re.MULTILINE),
    re.compile(r"most recent failure: .*(?:Error|Exception): (.+)$", re.MULTILINE),
)


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


class Pipeline:
    """`start` it, then `wait`. `url` is where Redis is: an embedded one has been asked already."""

    def __init__(self, spark: SparkSession, settings: CommonSettings, url: str) -> None:
        self._spark = spark
        self._settings = settings
        self._url = url
        self._keyspace = settings.runtime_options().keyspace
        self._queries: list[StreamingQuery] = []
        self._versions: dict[str, int] = {}
        self._tidier = ThreadPoolExecutor(1, "angarium-tidier")
        self._tidying: dict[str, Future[Any]] = {}
        self.lake = Lake.of(settings)
        self.figures = Figures()

    def start(self, *, once: bool = False) -> None:
        """Begin all queries; with `once` each ends when it has what is there now."""
        self.lake.check()
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if once
            else {
                "processingTime": f"{self._settings.group(LakeSettings).interval_ms} milliseconds"
            }
        )
        for name, source, store in self._sources():
            query = (
                source.writeStream.foreachBatch(store)
                .option("checkpointLocation", self._checkpoint(name))
                .queryName(f"angarium-{name}")
                .trigger(**trigger)
                .start()
            )
            self._queries.append(query)

    def _checkpoint(self, name: str) -> str:
        """Spark writes to disks only; without its checkpoint the tables say where to go on."""
        if self.lake.local:
            return self.lake.checkpoint(name)
        lake = hashlib.sha1(self.lake.url.encode(), usedforsecurity=False).hexdigest()[:12]
        folder = self._settings.home.absolute() / "checkpoints" / lake / name
        if not self.lake.existing():
            # The store was emptied, and what this checkpoint has seen is in no table any more.
            shutil.rmtree(folder, ignore_errors=True)
        return str(folder)

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
        self._tidier.shutdown(cancel_futures=True)

    def _sources(self) -> Iterator[tuple[str, DataFrame, Callable[[DataFrame, int], None]]]:
        rows_max = str(self._settings.group(LakeSettings).batch_rows_max)
        partitions = range(self._settings.partitions)
        journals = [self._keyspace.name(runtime_keys.JOURNAL, number) for number in partitions]
        yield (
            JOURNAL,
            self._stream(
                keys=",".join(journals),
                decode="journal",
                into=self.lake.url,  # tasks write files; Spark passes on their names
                tables="all",
                parallelism=str(self._spark.sparkContext.defaultParallelism),
                reader=READER,
                maxRowsPerBatch=rows_max,
                onGap="count",  # the audit names what is missing; the rest must not wait for it
            ),
            self.store_journal,
        )
        results = [
            self._keyspace.name(dispatch_keys.MESSAGES_PROCESSED, number) for number in partitions
        ]
        yield (
            RESULTS,
            self._stream(keys=",".join(results), maxRowsPerBatch=rows_max, onGap="count"),
            self.store_results,
        )
        if self._settings.group(LakeSettings).archive:
            yield ARCHIVE, self._archive(), self.store_transactions

    def _stream(self, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("redis-stream").option("url", self._url)
        return reader.options(**options).load()

    def _archive(self) -> DataFrame:
        settings = self._settings
        room = settings.group(TransactionsSettings)
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

    def store_journal(self, frame: DataFrame, _: int) -> None:
        """One batch of the journal into all of its tables; its tasks have written files of it."""
        from angarium.lake.sources.files import written_by

        written = written_by(frame.collect())
        if "rejects" in written.files:
            self._keep("rejects", JOURNAL, written)
        if "events" in written.files:
            version = self._keep("events", JOURNAL, written)
            for name in parts.PARTS:
                self._keep(name, JOURNAL, written)
            self._tidy(version, *JOURNAL_TABLES)
        events, rejects = (written.files.get(name, []) for name in ("events", "rejects"))
        if written.files:
            self.figures.add(newest_ms(events), events=rows_in(events), rejects=rows_in(rejects))

    # The results

    def store_results(self, rows: DataFrame, _: int) -> None:
        """One batch of the workers' results."""
        written = self._write("processed", journal_jobs.processed(rows))
        if written.files:
            version = self._keep("processed", RESULTS, written)
            self.figures.add(results=rows_in(written.files["processed"]))
            self._tidy(version, "processed")

    # The archive

    def store_transactions(self, rows: DataFrame, _: int) -> None:
        """Ended transactions, each once by its id; Redis is told when this has returned."""
        found = rows.toArrow()
        if found.num_rows:
            version = self.lake.insert("transactions", found)
            self.figures.add(transactions=found.num_rows)
            self._tidy(version, "transactions")

    # Shared

    def _keep(self, name: str, stream: str, written: Written) -> int:
        """Make files part of their table, without rows that it has already; its version before."""
        source, table = "events" if name in parts.PARTS else name, self.lake.ensure(name)
        files, spans = written.files.get(name, []), written.spans[source]
        stored = self._inside(table, stream, spans)
        if stored:
            # This batch, or its like, came before: after a crash, or with a new checkpoint.
            if all(stored.get(each, -1) >= last for each, (_, last) in spans.items()):
                return table.version()
            rows = self._lacking(source, written, stored)
            lacking = parts.part(name, rows) if name in parts.PARTS else rows
            files = self._write(name, lacking).files.get(name, [])
        version = table.version()  # the handle's own may move with the commit
        ends = ((each, max(last, stored.get(each, -1))) for each, (_, last) in spans.items())
        self.lake.add_files(name, table, files, positions_of(stream, ends))
        return version

    def _inside(self, table: DeltaTable, stream: str, spans: Spans) -> dict[int, int]:
        """How far the table has come, for partitions of which it has some of this batch."""
        stored = self.lake.positions_in(table, stream)
        return {each: stored[each] for each, (first, _) in spans.items() if stored[each] >= first}

    def _lacking(self, name: str, written: Written, stored: Mapping[int, int]) -> DataFrame:
        """What stands in a batch's files, without the rows up to these places."""
        from pyspark.sql import functions as f

        rows = self._rows(name, written.files[name])
        for partition, position in stored.items():
            here = f.col("partition") == partition
            rows = rows.where(~here | (journal_jobs.position("entry_id") > position))
        return rows

    def _write(self, name: str, rows: DataFrame) -> Written:
        """Files in the table's folder, written by the executors; no part of the table yet."""
        from angarium.lake.sources import files

        write = _writer(self.lake.url, name)
        return files.written_by(rows.mapInArrow(write, files.SCHEMA).collect())

    def _rows(self, name: str, files: Sequence[DataFile]) -> DataFrame:
        """What stands in some files, whether they are part of the table or not."""
        if not self.lake.local:
            return self._spark.createDataFrame(self.lake.read(name, [e.path for e in files]))
        table, root = TABLES[name], self.lake.path(name)
        root = root if "://" in root else f"file://{root}"
        reader = self._spark.read.schema(table.ddl()).option("basePath", root)
        return reader.parquet(*(f"{root}/{each.path}" for each in files)).select(*table.names)

    def _tidy(self, version: int, *tables: str) -> None:
        """Beside the batches, one at a time: freshness does not wait for it.

        It is due by the first table's version, so that the many short runs of `--once` have their
        turn, too."""
        name = tables[0]
        last = self._versions.get(name, max(0, version - 1))
        self._versions[name] = version
        if version // COMMITS_PER_COMPACTION == last // COMMITS_PER_COMPACTION:
            return
        before = self._tidying.get(name)
        if before is not None:
            if not before.done():
                return
            before.result()  # raises what it failed of, so that somebody hears of it
        self._tidying[name] = self._tidier.submit(compact, self.lake, tables=tables, whole=False)


def rows_in(files: Sequence[DataFile]) -> int:
    return sum(each.rows for each in files)


def newest_ms(files: Sequence[DataFile]) -> int:
    """The time of the newest event, from what is known of its file."""
    return max((json.loads(e.stats)["maxValues"].get("at_ms", 0) for e in files), default=0)


def reason_of(text: str) -> str:
    """The one line of a Spark error that is for people, if there is one."""
    # Told in many ways: by Spark's own files and shuffles, by tables, by the log of a table.
    if "No space left on device" in text or "(os error 28)" in text:
        return "its disk is full; free some space and start again"
    for pattern in _REASONS:
        found = pattern.findall(text)
        if found:
            return str(found[-1]).partition(". Consider setting")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "without a word"


def _writer(lake: str, name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Runs on the executors, so it is made of values only."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from angarium.lake.sources.files import write_table

        return write_table(batches, lake, name)

    return write
