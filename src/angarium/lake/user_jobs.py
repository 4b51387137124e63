"""Users' own jobs: a function DataFrame -> DataFrame of the application, run inside the pipeline.

`@app.table("late_orders", of="messages")` makes a table of what a table of the lake gets,
`@app.stream("messages:enriched", of="results")` entries of a Redis stream, and
`@app.stream(of="results", into="dispatch")` messages in the durable inbox. A job follows its table
batch by batch like every step (`steps.py`): each row once, whatever dies. A table begins with all
history; a stream begins with what comes after the job was first seen. A job that raises is stopped
by itself until the next start, and goes on there with the batch that it failed at.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from angarium.dispatch.errors import InboxFull
from angarium.dispatch.settings import DispatchSettings
from angarium.dispatch.transitions import ENQUEUE, EnqueueArgs, EnqueueItem
from angarium.lake.schemas import TABLES
from angarium.lake.sources.options import connect_to_redis
from angarium.lake.steps import JOURNAL, LakeTables, PipelineStep, last_batch, rows_between
from angarium.lake.tables import NAME, LakeTable
from angarium.lake.views import table_of
from angarium.redis.connection import Argument
from angarium.runtime import keys as runtime_keys
from angarium.runtime.application import Application, Handler
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.keyspace import Keyspace
from angarium.runtime.settings import CommonSettings
from angarium.runtime.transition import BoundTransition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A batch is repeated after a crash: so long the inbox knows which of its rows it has.
REMEMBERED_MS = 7 * 24 * 3_600_000
PORTION = 500
# Table -> the name under which its batches stand in its log.
WRITERS = {
    "events": JOURNAL, "messages": JOURNAL, "results": "results", "transactions": "archive",
}  # fmt: skip


def jobs_of(app: Application) -> list[Handler]:
    """The application's jobs, each checked by name."""
    tables, streams = app.handlers("table"), app.handlers("stream")
    for name, job in tables.items():
        if name in TABLES or not NAME.fullmatch(name):
            problem = f"@app.table {name!r} can't be the name of a table of its own"
            raise SettingInvalid("ANGARIUM_APP", problem, "use small letters, digits and _")
        _check_source(job, tables)
    for name, job in streams.items():
        if job.options.get("into") not in (None, "dispatch"):
            problem = f"@app.stream {name!r} goes into {job.options['into']!r}, which is unknown"
            raise SettingInvalid("ANGARIUM_APP", problem, "use into='dispatch', or name a stream")
        _check_source(job, tables)
    return [*tables.values(), *streams.values()]


def _check_source(job: Handler, tables: Any) -> None:
    known = [*WRITERS, *tables]
    if job.options["of"] not in known:
        problem = f"job {job.name!r} is made of {job.options['of']!r}, which no job can follow"
        raise SettingInvalid("ANGARIUM_APP", problem, f"use one of {', '.join(known)}")


class JobStep(PipelineStep):
    """What all jobs share: the table they follow, and the function."""

    def __init__(self, spark: SparkSession, tables: LakeTables, job: Handler) -> None:
        super().__init__(spark, tables)
        self.job = job
        self.name = job.name
        self.source = job.options["of"]
        self.source_writer = WRITERS.get(self.source) or writer_of(self.source)
        self.writer = writer_of(job.name)

    def rows(self, low: int, high: int) -> DataFrame:
        lake = self.lake_tables.lake
        source = self.lake_tables[self.source] if self.source in TABLES else (
            table_of(lake, self.source)
        )  # fmt: skip
        return rows_between(self.spark, source, low, high)

    def made(self, rows: DataFrame) -> DataFrame:
        made: DataFrame = self.job.function(rows)
        return made


class TableJob(JobStep):
    def position(self) -> int:
        last = self.lake_tables.last_batch(self.name, self.writer)
        return max(self._empty_upto, -1 if last is None else last)

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        from pyspark.sql import functions as f

        made = self.made(rows).withColumn("batch", f.lit(high).cast("bigint"))
        table = self.lake_tables.add(LakeTable(self.lake_tables.lake, self.name, made.schema))
        self.tables = (table,)
        table.write(made, writer=self.writer, batch=high)


class SendingJob(JobStep):
    """One batch at a time, so that a repeat has the same rows; `jobs` says which were sent."""

    batches_max = 1

    def __init__(self, spark: SparkSession, tables: LakeTables, job: Handler) -> None:
        super().__init__(spark, tables, job)
        self._sent = tables["jobs"]

    def position(self) -> int:
        # One more in the log, because numbers there begin with 0 and a position with -1.
        return max(self._empty_upto, last_batch(self._sent, self.writer) - 1)

    def begin(self, upto: int) -> None:
        """A job that was never seen before begins behind what is there."""
        if self._sent.last_batch(self.writer) is None:
            self._note(upto, 0)

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        self._note(high, self.send(self.made(rows), high))

    def send(self, rows: DataFrame, batch: int) -> int:
        raise NotImplementedError

    def _note(self, batch: int, count: int) -> None:
        row = (self.name, batch, count, time.time_ns() // 1_000_000)
        frame = self.spark.createDataFrame([row], self._sent.schema).coalesce(1)
        self._sent.write(frame, writer=self.writer, batch=batch + 1)


class StreamJob(SendingJob):
    def __init__(self, spark: SparkSession, tables: LakeTables, job: Handler, url: str) -> None:
        super().__init__(spark, tables, job)
        self._url = url

    def send(self, rows: DataFrame, batch: int) -> int:
        from angarium.lake.pipeline import observed

        activate(self.spark)
        seen, watched = observed(rows, rows="count(*)")
        app_id = f"{self.lake_tables.lake.identity()}:{self.writer}"
        writer = watched.write.format("redis-stream").mode("append")
        writer.options(url=self._url, appId=app_id, batchId=str(batch)).save(self.name)
        return int(seen.get["rows"])


def activate(spark: SparkSession) -> None:
    """Make this the session in which Java looks up formats, for the current thread.

    A thread that a query's batch began has a copy of the session, which knows no format of ours.
    """
    from pyspark.sql import SparkSession

    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


@dataclass(frozen=True)
class InboxWriter:
    """Dispatch's durable inbox, by the transition of its module."""

    url: str
    keyspace: Keyspace
    partitions: int
    journal_bytes_max: int
    messages_max: int

    def put(self, job: str, batch: int, payloads: Iterator[bytes]) -> int:
        """Each payload once, also when the same batch is put again."""
        equal: Counter[str] = Counter()
        sent = 0
        by_partition: dict[int, list[tuple[str, bytes]]] = {}
        with connect_to_redis(self.url) as redis:

            def flush(partition: int) -> None:
                some = by_partition.pop(partition, [])
                if some:
                    replies = redis.run(ENQUEUE.script, *self._call(partition, some))
                    if "full" in ENQUEUE.decode_all(replies):
                        # The batch is put again; its keys add nothing twice.
                        raise InboxFull("dispatch.inbox_messages_max", self.messages_max)

            for payload in payloads:
                digest = hashlib.sha1(payload, usedforsecurity=False).hexdigest()
                key = f"{job}:{batch}:{digest}:{equal[digest]}"
                equal[digest] += 1
                partition = self.keyspace.partition_of(key)
                by_partition.setdefault(partition, []).append((key, payload))
                sent += 1
                if len(by_partition[partition]) == PORTION:
                    flush(partition)
            for partition in list(by_partition):
                flush(partition)
        return sent

    def _call(
        self, partition: int, some: Sequence[tuple[str, bytes]]
    ) -> tuple[list[str], list[Argument]]:
        name = self.keyspace.name
        journal = [
            name(key, partition) for key in (runtime_keys.JOURNAL, runtime_keys.JOURNAL_META)
        ]
        items = [
            EnqueueItem(self._message_id(key, partition).encode(), payload, key, REMEMBERED_MS, "")
            for key, payload in some
        ]
        # Each message has a key of its own, so the number of the call is not needed.
        args = EnqueueArgs("lake", 0, self.messages_max)
        names, values = BoundTransition(ENQUEUE, self.keyspace).call(partition, args, items)
        return [*journal, *names], ["", "lake", self.journal_bytes_max, *values]

    def _message_id(self, key: str, partition: int) -> str:
        """A UUID that follows from the key, and whose end tells its partition, as all ids do."""
        made = uuid.uuid5(uuid.NAMESPACE_OID, key).hex
        end = int(made[-4:], 16) // self.partitions * self.partitions + partition
        end -= self.partitions if end > 0xFFFF else 0
        return str(uuid.UUID(f"{made[:-4]}{end:04x}"))


class InboxJob(SendingJob):
    def __init__(
        self, spark: SparkSession, tables: LakeTables, job: Handler, inbox: InboxWriter
    ) -> None:
        super().__init__(spark, tables, job)
        self._inbox = inbox

    def send(self, rows: DataFrame, batch: int) -> int:
        return self._inbox.put(self.name, batch, self._payloads(rows))

    def _payloads(self, rows: DataFrame) -> Iterator[bytes]:
        """The column `payload` if there is one, else the row as JSON."""
        if "payload" in rows.columns:
            for row in rows.select("payload").toLocalIterator():
                value = row.payload
                yield value.encode() if isinstance(value, str) else bytes(value)
        else:
            for text in rows.toJSON().toLocalIterator():
                yield str(text).encode()


def steps_of_jobs(
    spark: SparkSession, tables: LakeTables, settings: CommonSettings, url: str, app: Application
) -> list[JobStep]:
    inbox = InboxWriter(
        url,
        settings.runtime_options().keyspace,
        settings.partitions,
        settings.journal.bytes_max if settings.journal.enabled else 0,
        settings.group(DispatchSettings).inbox_messages_max,
    )
    found: list[JobStep] = []
    for job in jobs_of(app):
        if job.kind == "table":
            found.append(TableJob(spark, tables, job))
        elif job.options.get("into"):
            found.append(InboxJob(spark, tables, job, inbox))
        else:
            found.append(StreamJob(spark, tables, job, url))
    for each in found:
        if isinstance(each, SendingJob) and each.source in WRITERS:
            each.begin(last_batch(tables[each.source], each.source_writer))
    return found


def writer_of(job: str) -> str:
    return f"job:{job}"
