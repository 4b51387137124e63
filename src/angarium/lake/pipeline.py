"""The lake's pipeline: streams of Redis through Spark into tables, each row once.

    journal   redis-stream ─► events, rejects            bronze, this file's queries
    results   redis-stream ─► results, rejects
    archive   angarium-archive ─► transactions           silver
    events    ─► messages_open, messages                 silver, steps.py
              ─► stats_fine, stats_medium, stats_coarse  gold
              ─► sequences
    messages  ─► latency, balances, busiest, audit       gold, audit.py

A micro-batch of the journal is written to bronze first, under the next number of the lake; then all
steps take it, side by side. Bronze, a step or the process may die anywhere: a batch whose number is
in a table's log is not written to it again, and a step goes on behind the last number that its own
tables have, reading from bronze and not from Redis. So all tables agree again before the next batch
is read, and Redis may forget a batch as soon as bronze has it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from angarium.dispatch import keys as dispatch_keys
from angarium.lake import bronze, silver
from angarium.lake.bronze import observed as observed
from angarium.lake.checkpoint import QueryCheckpoint, positions_of, starting_of
from angarium.lake.errors import LakeStopped, TableConflict
from angarium.lake.schemas import TABLES
from angarium.lake.settings import LakeSettings
from angarium.lake.steps import JOURNAL, LakeTables, PipelineStep, steps_of
from angarium.lake.tables import Lake
from angarium.lake.user_jobs import JobStep, steps_of_jobs
from angarium.runtime import keys as runtime_keys
from angarium.runtime.application import Application
from angarium.runtime.settings import CommonSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

RESULTS, ARCHIVE = "results", "archive"
# Small files cost every reader; at a batch in half a second, this is about a minute's worth.
BATCHES_PER_COMPACTION = 120
# Spark gives a Python worker ten seconds to start, and can't be told otherwise. A machine that was
# too busy for it is asked again.
SLOW_START = "Python worker failed to connect back"
# Another process may have changed what a step read; it reads it anew so often.
CONFLICTS_MAX = 5
log = structlog.get_logger("angarium.lake")
# Our own error, else that of a Python worker, else what became of the task.
_REASONS = (
    re.compile(r"^(?:angarium\.)[\w.]+: (.+)$", re.MULTILINE),
    re.compile(
        r"^(?:: )?[\w.]+(?:Error|Exception): (?!An e(?:rror|xception) |Job aborted)(.+)$",
        re.MULTILINE,
    ),
    re.compile(r"most recent failure: .*(?:Error|Exception): (.+)$", re.MULTILINE),
)


@dataclass
class Figures:
    """What this run has done so far; written by the queries' threads, read by anybody."""

    batches: int = 0
    events: int = 0
    rejects: int = 0
    results: int = 0
    transactions: int = 0
    gaps: int = 0
    newest_ms: int = 0
    progress: dict[str, float] = field(default_factory=dict)
    failed_jobs: dict[str, str] = field(default_factory=dict)
    jobs_behind: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, newest_ms: int = 0, **counts: int) -> None:
        with self.lock:
            self.batches += 1
            self.newest_ms = max(self.newest_ms, newest_ms)
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def shown(self) -> dict[str, float | str]:
        names = (
            "batches", "events", "rejects", "results", "transactions", "gaps", "newest_ms",
        )  # fmt: skip
        with self.lock:
            found: dict[str, float | str] = {name: getattr(self, name) for name in names}
            failed = {f"job_failed_{name}": why for name, why in self.failed_jobs.items()}
            behind = {f"job_behind_{name}": count for name, count in self.jobs_behind.items()}
            return {**found, **self.progress, **behind, **failed}


class Pipeline:
    """`start` it, then `wait`. `url` is where Redis is: an embedded one has been asked already."""

    def __init__(
        self,
        spark: SparkSession,
        settings: CommonSettings,
        url: str,
        app: Application | None = None,
    ) -> None:
        self.spark = spark
        self._settings = settings
        self._url = url
        self._keyspace = settings.runtime_options().keyspace
        self._queries: list[StreamingQuery] = []
        self._checkpoints: dict[str, QueryCheckpoint] = {}
        self.lake = Lake.of(settings)
        self.tables = LakeTables(self.lake)
        self.figures = Figures()
        self.steps = steps_of(spark, self.tables)
        self.jobs = steps_of_jobs(spark, self.tables, settings, url, app or Application())
        threads = len(self.steps) + len(self.jobs) + 1
        self._side_by_side = ThreadPoolExecutor(threads, "angarium-step")
        self._tidying: Future[None] | None = None
        self._listener: StreamingQueryListener | None = None

    # Run

    def start(self, *, once: bool = False) -> None:
        """Begin all queries; with `once` each ends when it has what is there now."""
        self.lake.check()
        self._listener = listener(self.figures)
        self.spark.streams.addListener(self._listener)
        self.follow()
        interval = f"{self._settings.group(LakeSettings).interval_ms} milliseconds"
        trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": interval}
        for name, source, store in self._sources():
            writer = source.writeStream.foreachBatch(store)
            writer = writer.option("checkpointLocation", str(self._checkpoints[name].folder))
            self._queries.append(writer.queryName(f"angarium-{name}").trigger(**trigger).start())

    @property
    def running(self) -> bool:
        return any(each.isActive for each in self._queries)

    def wait(self, seconds: float) -> bool:
        """Whether all queries have ended; raises what one of them failed of."""
        from pyspark.errors import StreamingQueryException

        for each in self._queries:
            if each.isActive:
                # What it failed of is raised below, by its name.
                with contextlib.suppress(StreamingQueryException):
                    each.awaitTermination(max(1, int(seconds)))
                break
        for each in self._queries:
            error = each.exception()
            if error is not None:
                raise LakeStopped(f"{each.name} stopped: {reason_of(str(error))}")
        if self.running:
            return False
        self.follow_up()
        return True

    def stop(self) -> None:
        for each in self._queries:
            if each.isActive:
                each.stop()
        self._queries = []
        if self._listener is not None:
            self.spark.streams.removeListener(self._listener)
            self._listener = None
        self._side_by_side.shutdown(cancel_futures=True)

    # The queries

    def _sources(self) -> Iterator[tuple[str, DataFrame, Callable[[DataFrame, int], None]]]:
        journals, results = (
            tuple(self._keyspace.name(key, number) for number in range(self._settings.partitions))
            for key in (runtime_keys.JOURNAL, dispatch_keys.MESSAGES_PROCESSED)
        )
        reader = f"lake-{self.lake.identity()}"
        options = {"decode": "journal", "reader": reader}
        yield JOURNAL, self._stream(JOURNAL, "events", journals, **options), self.store_journal
        source = self._stream(RESULTS, "results", results)
        yield RESULTS, source, self.store_results
        if self._settings.group(LakeSettings).archive:
            self._checkpoint(ARCHIVE, "transactions")
            yield ARCHIVE, self._archive(), self.store_transactions

    def _stream(self, name: str, table: str, names: tuple[str, ...], **options: str) -> DataFrame:
        checkpoint = self._checkpoint(name, table)
        if checkpoint.starting is not None:
            starting = starting_of(self.tables[table], names)
            options["startingOffsets"] = json.dumps(starting)
        reader = self.spark.readStream.format("redis-stream").options(
            url=self._url,
            keys=",".join(names),
            maxRowsPerBatch=str(self._settings.group(LakeSettings).batch_rows_max),
            parallelism=str(self.spark.sparkContext.defaultParallelism),
            onGap="count",  # a gap is a row of rejects; the rest must not wait for it
            **options,
        )
        return (reader.schema(bronze.RESULTS_SCHEMA) if name == RESULTS else reader).load()

    def _archive(self) -> DataFrame:
        from angarium.lake.sources.archive_store import options_of

        reader = self.spark.readStream.format("angarium-archive")
        return reader.options(**options_of(self._settings, self._url)).load()

    def _checkpoint(self, name: str, table: str) -> QueryCheckpoint:
        """On a disk always; without it the tables say where to go on."""
        if self.lake.local:
            folder = Path(self.lake.checkpoint(name).removeprefix("file://"))
        else:
            lake = hashlib.sha1(self.lake.url.encode(), usedforsecurity=False).hexdigest()[:12]
            folder = self._settings.home.absolute() / "checkpoints" / lake / name
        found = QueryCheckpoint.of(folder, self.lake.identity(), self.tables[table], name)
        self._checkpoints[name] = found
        return found

    def store_journal(self, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch of the journal: bronze, then everything that follows it."""
        batch, marks = self._place(JOURNAL, batch_id)
        seen, watched = observed(
            frame,
            events="count_if(reject is null)",
            rejects="count_if(reject is not null)",
            oldest_ms="coalesce(min(at_ms), 0)",
            newest_ms="coalesce(max(at_ms), 0)",
        )
        written = self.tables["events"].write(
            bronze.events(watched, batch), writer=JOURNAL, batch=batch, marks=marks
        )
        if written.added:
            found = seen.get
            self.tables.spans = {batch: (found["oldest_ms"], found["newest_ms"])}
            self.figures.add(found["newest_ms"], events=found["events"], rejects=found["rejects"])
        # A batch that was there already may have died before its rejects were.
        if not written.added or found["rejects"]:
            self._reject(JOURNAL, bronze.rejects(frame, batch), batch)
        self.follow(whole=False)
        self._tidy(batch)

    def store_results(self, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch of the workers' results."""
        batch, marks = self._place(RESULTS, batch_id)
        bad = f"count_if({bronze.PROBLEM} is not null)"
        seen, watched = observed(frame, results=f"count(*) - {bad}", rejects=bad)
        written = self.tables["results"].write(
            bronze.results(watched, batch), writer=RESULTS, batch=batch, marks=marks
        )
        if written.added:
            found = seen.get
            self.figures.add(**found)
        if not written.added or found["rejects"]:
            self._reject(RESULTS, bronze.rejected_results(frame, batch), batch)
        self.follow_jobs()

    def store_transactions(self, frame: DataFrame, batch_id: int) -> None:
        """Ended transactions, each once by its id; Redis is told when this has returned."""
        table, batch = self.tables["transactions"], self._checkpoints[ARCHIVE].first + batch_id
        rows = silver.transactions(frame, batch).cache()
        try:
            days = [str(row.date) for row in rows.select("date").distinct().collect()]
            held = table.frame(self.spark, table.files({"date": days})).select("id")
            fresh = rows.join(held, "id", "left_anti").coalesce(1)
            written = table.write(fresh, writer=ARCHIVE, batch=batch, marks={"archived": batch})
        finally:
            rows.unpersist()
        self.figures.add(transactions=written.rows)
        self.follow_jobs()

    def _place(self, name: str, batch_id: int) -> tuple[int, dict[str, int]]:
        """A batch's number in the lake, and what its commit says of the streams; gaps are noted."""
        checkpoint = self._checkpoints[name]
        offset = checkpoint.offset(batch_id)
        before = checkpoint.offset(batch_id - 1).get("gaps", {}) if batch_id else {}
        batch = checkpoint.first + batch_id
        for key, lost in offset.get("gaps", {}).items():
            if lost > before.get(key, 0):
                self._note_gap(name, key, lost - before.get(key, 0), offset["ids"][key], batch)
        return batch, positions_of(offset)

    def _note_gap(self, name: str, key: str, lost: int, entry_id: str, batch: int) -> None:
        why = f"a gap: at least {lost} rows of '{key}' were removed before they were read"
        row = (bronze.partition_of(key), entry_id, name, None, None, why, None, batch)
        frame = self.spark.createDataFrame([row], self.tables["rejects"].schema)
        self.tables["rejects"].write(frame, writer=f"gap:{key}", batch=batch)
        self.figures.add(gaps=lost)

    def _reject(self, name: str, rows: DataFrame, batch: int) -> None:
        self.tables["rejects"].write(rows.coalesce(1), writer=name, batch=batch)

    # What follows bronze

    def follow(self, *, whole: bool = True) -> None:
        """Every step takes what bronze has for it; they run side by side, then the users' jobs."""
        self._all(self._advance, [each for each in self.steps if whole or self._is_due(each)])
        self.follow_jobs()

    def follow_up(self) -> None:
        """The steps that may be behind take what there is; before an audit, and at the end."""
        for each in self.steps:
            if each.batches_min > 1:
                self._advance(each)

    def follow_jobs(self) -> None:
        """A job that raises is stopped until the next start, and keeps nobody from going on."""
        left = [each for each in self.jobs if each.name not in self.figures.failed_jobs]
        self._all(self._advance_job, [each for each in left if each.source in TABLES])
        for each in left:
            if each.source not in TABLES:  # made of another job's table, which comes first
                self._advance_job(each)

    def _all(self, advance: Callable[[Any], object], steps: Sequence[PipelineStep]) -> None:
        for each in [self._side_by_side.submit(advance, step) for step in steps]:
            each.result()

    def _advance_job(self, job: JobStep) -> None:
        try:
            self.figures.jobs_behind[job.name] = self._advance(job)
        except Exception as error:
            why = reason_of(f"{type(error).__name__}: {error}")
            if SLOW_START in why:
                log.warning("lake_job_delayed", job=job.name, reason=why)
                self.figures.jobs_behind[job.name] = 1  # at the least; the next batch takes it
                return
            self.figures.failed_jobs[job.name] = why
            log.error("lake_job_stopped", job=job.name, reason=why)

    def _is_due(self, step: PipelineStep) -> bool:
        """Whether a step that may be behind is too far behind."""
        if step.batches_min == 1:
            return True
        upto = self.tables.last_batch(step.source, step.source_writer)
        position = step.position()
        return upto is not None and (position < 0 or upto - position >= step.batches_min)

    def _advance(self, step: PipelineStep) -> int:
        """Until it has all batches of its source; how many it lacks then."""
        conflicts = 0
        upto = self.tables.last_batch(step.source, step.source_writer)
        with step.lock:
            while upto is not None:
                try:
                    if not step.run_once(upto):
                        return max(0, upto - step.position())
                except TableConflict:
                    conflicts += 1
                    if conflicts > CONFLICTS_MAX:
                        raise
        return 0

    def _tidy(self, batch: int) -> None:
        """Beside the batches; one that fails is tried again in time, and stops nobody."""
        if batch % BATCHES_PER_COMPACTION or (self._tidying and not self._tidying.done()):
            return
        days = self._settings.group(LakeSettings).days_of
        self._tidying = self._side_by_side.submit(tidy, self.spark, self.tables, days=days)


def tidy(
    spark: SparkSession,
    tables: LakeTables,
    names: Sequence[str] = (),
    *,
    days: Callable[[str], float | None] = lambda _: None,
    all_files: bool = False,
) -> None:
    """Put small files together, let old rows go and delete what no table needs."""
    from angarium.lake.maintenance import upkeep
    from angarium.lake.views import table_of

    for name in names or tables.lake.existing():
        table = tables[name] if name in TABLES else table_of(tables.lake, name)
        with contextlib.suppress(TableConflict):
            by = SORTED.get(name, ())
            upkeep(table, spark, sort_by=by, days=days(name), all_files=all_files)


# By what rows are sorted when files are put together, so that a look-up skips files.
SORTED: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "events": ("subject",), "messages": ("subject",), "transactions": ("id",),
    "results": ("message_id",),
})  # fmt: skip


def listener(figures: Figures) -> StreamingQueryListener:
    """Spark's own progress of each query, as figures of the role."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            progress = event.progress
            name = str(progress.name).removeprefix("angarium-")
            if progress.numInputRows:
                figures.progress |= {
                    f"{name}_batch_rows": float(progress.numInputRows),
                    f"{name}_batch_ms": float(progress.durationMs.get("triggerExecution", 0)),
                    f"{name}_rows_per_s": float(progress.processedRowsPerSecond or 0),
                }

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    return Listener()


def reason_of(text: str) -> str:
    """The one line of a Spark error that is for people, if there is one."""
    # Reported in many ways: by Spark's own files and shuffles, by tables, by the log of a table.
    if "No space left on device" in text or "(os error 28)" in text:
        return "its disk is full; free some space and start again"
    for pattern in _REASONS:
        found = pattern.findall(text)
        if found:
            return str(found[-1]).partition(". Consider setting")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "without a reason"
