"""Silver and gold tables that follow bronze, batch by batch, each batch once.

Every row of bronze has the number of the batch that wrote it, and every commit of a table that
follows bronze names the batch up to which it reads. A step reads the rows behind that number, makes
its tables' next state of them, and commits with the number it has come to. So a step may be behind,
may take several batches at once, and may begin again at any time: rebuilding a table is following
from the beginning.

A step that writes several tables commits them in a fixed order, the one that holds its state last.
It dies between two commits: the next run finds tables that are ahead of the state, takes exactly
the batches up to there, computes the same rows from the same state, and commits only to the tables
that lack them. Nothing else is taken before all tables of the step agree.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from angarium.lake import gold, silver
from angarium.lake.bronze import with_values
from angarium.lake.schemas import INTERVALS_S, TABLES
from angarium.lake.tables import Lake, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The name under which the journal's batches stand in the logs of all tables that follow it.
JOURNAL = "journal"
LATE = "late"
CLOSED = "closed"
OPEN = "open"
# A step that is behind takes so many batches at once.
BATCHES_MAX = 64
# Up to so many open rows are read and written as a whole; beyond, only the buckets of a batch.
OPEN_ROWS_WHOLE = 100_000
# An event without a beginning is looked for among the messages that ended on so many days.
LATE_DAYS = 7
# A window may grow for so many of its own lengths, and at least for so long.
OPEN_WINDOWS, OPEN_S_MIN = 2, 30


class LakeTables:
    """The tables of one lake, each with one handle on its log for the whole process."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._tables: dict[str, LakeTable] = {}
        # Of the newest batches: the times of the oldest and the newest event.
        self.spans: dict[int, tuple[int, int]] = {}

    def __getitem__(self, name: str) -> LakeTable:
        if name not in self._tables:
            about = TABLES[name]
            self._tables[name] = LakeTable(self.lake, name, about.struct(), about.partition_by)
        return self._tables[name]

    def last_batch(self, name: str, writer: str) -> int | None:
        """The last batch that a table has, ours or a user's; None where there is none."""
        if name in TABLES or name in self._tables:
            return (self._tables.get(name) or self[name]).last_batch(writer)
        found = self.lake.open(name)
        return None if found is None else found.transaction_version(writer)

    def add(self, table: LakeTable) -> LakeTable:
        """A table that is not among ours: a user's."""
        return self._tables.setdefault(table.name, table)


class Step:
    """`tables` in the order in which they are committed; `source` is the table they follow."""

    name = ""
    source = "events"
    source_writer = JOURNAL
    writer = JOURNAL
    batches_max = BATCHES_MAX

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        self.spark = spark
        self.lake_tables = tables
        self.tables: Sequence[LakeTable] = ()
        # Batches that had nothing for the step's tables leave no commit behind.
        self._empty_upto = -1
        self.lock = threading.Lock()

    def position(self) -> int:
        """The last batch that all of its tables have."""
        return max(self._empty_upto, min(last_batch(each, self.writer) for each in self.tables))

    def run_once(self, upto: int) -> bool:
        """Take the next batches, at most up to this one; False when there was nothing to do."""
        self.recover()
        done = [last_batch(each, self.writer) for each in self.tables]
        low, high = self.position(), max(done, default=-1)
        if high <= low:
            high = min(upto, low + self.batches_max)
        if high <= low:
            return False
        self.take(self.rows(low, high), low, high)
        self._empty_upto = high
        return True

    def rows(self, low: int, high: int) -> DataFrame:
        """What the source's batches behind `low` up to `high` have brought."""
        return rows_between(self.spark, self.lake_tables[self.source], low, high)

    def recover(self) -> None:
        """Finish what was begun and does not follow from the batches alone."""

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        raise NotImplementedError


def rows_between(spark: SparkSession, table: LakeTable, low: int, high: int) -> DataFrame:
    """The rows of a table's batches behind `low` up to `high`, from the files that have some."""
    files = table.files(matching=f"batch > {low} and batch <= {high}")
    rows = with_values(table.frame(spark, files), low_batch=low, high_batch=high)
    return rows.where("batch > low_batch and batch <= high_batch").select(*table.schema.names)


def last_batch(table: LakeTable, writer: str) -> int:
    """The last batch of a writer that the table has; -1 before the first."""
    found = table.last_batch(writer)
    return -1 if found is None else found


class MessagesStep(Step):
    """`messages_open` is its state and committed last; what has ended is added to `messages`.

    An event that belongs to a message that ended before comes through `pull_back`: the row goes
    from `messages` back to the open ones, in two commits of its own, and is combined there.
    """

    name = "messages"

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        super().__init__(spark, tables)
        self.ended, self.open = tables["messages"], tables["messages_open"]
        self.tables = (self.ended, self.open)
        self._catalogue = silver.catalogue(spark)

    def position(self) -> int:
        # Nothing ended in some batches; what is open is committed with each of them.
        return last_batch(self.open, self.writer)

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        buckets = self._touched(rows)
        past = self._past()
        frame = silver.next_messages(rows, self._catalogue, self._open_rows(buckets))
        frame = with_values(frame, **past).cache()
        late = _late(past)
        try:
            seen = Observation()
            watched = frame.observe(
                seen, *(f.expr(f"count_if({text}) as {name}") for name, text in (
                    ("late", late), ("several", silver.SEVERAL), ("open", "not has_ended"),
                )),
                *(f.expr(f"max(case when partition = {number} then last_sequence end) as p{number}")
                  for number in range(self.open.lake.partitions)),
            )  # fmt: skip
            ended = self.ended.write_files(_few_files(silver.ended(watched, high)))
            found = seen.get
            if found["late"] or found["several"]:
                # The slow way, for the few: what was written is no part of the table yet.
                self.ended.log.discard(ended)
                if found["late"] and self._pull_back(frame.where(late), low, high):
                    return self.take(rows, low, high)
                frame = self._apart(frame, rows, buckets)
                ended = self.ended.write_files(_few_files(silver.ended(frame, high)))
            if ended and not self.ended.has(self.writer, high):
                self.ended.commit_files(ended, batches={self.writer: high})
            else:
                self.ended.log.discard(ended)
            where = {"bucket": self._buckets() if buckets is None else buckets}
            marks = {f"sequence:{n[1:]}": last for n, last in found.items() if n[0] == "p" and last}
            self.open.replace(
                _few_files(silver.still_open(frame)), writer=self.writer, batch=high, where=where,
                marks={**marks, OPEN: found["open"]},
            )  # fmt: skip
        finally:
            frame.unpersist()

    def _past(self) -> dict[str, int]:
        """By partition, the last number that was seen: an event behind it comes late."""
        return {
            f"past_{partition}": last_batch(self.open, f"sequence:{partition}")
            for partition in range(self.open.lake.partitions)
        }

    # What is open

    def _touched(self, rows: DataFrame) -> list[int] | None:
        """The buckets in which ids of this batch are open; None where all of them are taken."""
        from pyspark.sql import functions as f

        if sum(each.rows for each in self.open.files()) <= OPEN_ROWS_WHOLE:
            return None
        key = ("partition", "module", "subject")
        ids = rows.select(*key).distinct()
        held = self.open.read(self.spark).select(*key, "bucket")
        found = held.join(f.broadcast(ids), list(key), "left_semi").select("bucket").distinct()
        return [row.bucket for row in found.collect()]

    def _open_rows(self, buckets: Sequence[int] | None) -> DataFrame:
        files = self.open.files(None if buckets is None else {"bucket": buckets})
        return self.open.frame(self.spark, files)

    def _buckets(self) -> list[str]:
        return sorted({each.partition_values["bucket"] or "" for each in self.open.files()})

    def _apart(self, frame: DataFrame, rows: DataFrame, buckets: Sequence[int] | None) -> DataFrame:
        """Ids that began again after an end, once more, as several messages."""
        from pyspark.sql import functions as f

        keys = frame.where(silver.SEVERAL).select(*silver.KEY)
        ids = keys.select("partition", "module", "subject").distinct()
        events = rows.join(f.broadcast(ids), ["partition", "module", "subject"], "left_semi")
        open_rows = self._open_rows(buckets).join(f.broadcast(keys), list(silver.KEY), "left_semi")
        apart = silver.next_messages_apart(events, self._catalogue, open_rows)
        # An id may be of two accounts, and only one of them holds several.
        apart = apart.join(f.broadcast(keys), list(silver.KEY), "left_semi")
        rest = frame.where(f"not {silver.SEVERAL}").select(*apart.columns)
        return rest.unionByName(apart)

    # Events of what has ended

    def _pull_back(self, late: DataFrame, low: int, high: int) -> bool:
        """Rows of `messages` to which events of this batch belong, back among the open ones."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        days = sorted({e.partition_values["date"] or "" for e in self.ended.files()})[-LATE_DAYS:]
        if not days:
            return False
        keys = late.select(*silver.KEY)
        held = self.ended.frame(self.spark, self.ended.files({"date": days}))
        newest = Window.partitionBy(*silver.KEY).orderBy(f.desc("last_sequence"))
        found = (
            # Rows of this very batch are there when it is repeated, and are no earlier ones.
            held.where(f.col("batch") <= low)
            .join(f.broadcast(keys), list(silver.KEY), "left_semi")
            .withColumn("place", f.row_number().over(newest))
            .where("place = 1")
        )
        result = self.open.write(silver.in_buckets(found).coalesce(1), writer=LATE, batch=high)
        self.recover()
        return result.added

    def recover(self) -> None:
        """Remove rows from `messages` that were pulled back: they are open again."""
        from pyspark.sql import functions as f

        pulled = last_batch(self.open, LATE)
        if pulled <= last_batch(self.ended, LATE):
            return
        back = self.open.read(self.spark).where("outcome is not null")
        day = f.to_date(f.timestamp_millis("ended_ms")).cast("string")
        days = [row[0] for row in back.select(day).distinct().collect()]
        key = [*silver.KEY, "first_sequence"]
        held = self.ended.frame(self.spark, self.ended.files({"date": days}))
        rest = held.join(f.broadcast(back.select(*key)), key, "left_anti")
        self.ended.replace(rest, writer=LATE, batch=pulled, where={"date": days})


def _late(past: Mapping[str, int]) -> str:
    """Whether its beginning is not in this batch, nor among what is open: it may have ended."""
    cases = " ".join(f"when {name.removeprefix('past_')} then {name}" for name in past)
    number = f"case partition {cases} else -1 end"
    return f"not was_open and (begin_sequence is null or first_sequence <= {number})"


class StatisticsStep(Step):
    """The table is its own state: windows that may still grow lie in the partition without a day.

    A count that comes for a closed window is added to it, and the window's day is written anew.
    """

    name = "statistics"

    def __init__(self, spark: SparkSession, tables: LakeTables, table: str) -> None:
        super().__init__(spark, tables)
        self.table = tables[table]
        self.tables = (self.table,)
        self._interval_s = INTERVALS_S[table]

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        interval_s, closed_s = self._interval_s, last_batch(self.table, CLOSED)
        oldest_ms, newest_ms = self._span(rows, low, high)
        # A clock that is ahead must not close the windows of all others.
        newest_s = min(newest_ms // 1000, int(time.time()))
        later_s = max(closed_s, newest_s - max(OPEN_S_MIN, OPEN_WINDOWS * interval_s))
        new, late = gold.statistics(rows, interval_s), list[str]()
        if oldest_ms // 1000 < closed_s:
            closed = new.where(f"start_s + {interval_s} <= {closed_s}").select("start_s").distinct()
            late = sorted({_day(row.start_s) for row in closed.collect()})
        where: dict[str, list[object]] = {"date": [None, *late]}
        held = self.table.frame(self.spark, self.table.files(where)).drop("date")
        counts = gold.merged(new.unionByName(held))
        self.table.replace(
            _few_files(gold.closed_before(counts, interval_s, later_s)),
            writer=self.writer, batch=high, where=where, marks={CLOSED: max(0, later_s)},
        )  # fmt: skip

    def _span(self, rows: DataFrame, low: int, high: int) -> tuple[int, int]:
        """The times of the oldest and the newest event of these batches."""
        spans = [self.lake_tables.spans.get(number) for number in range(low + 1, high + 1)]
        known = [each for each in spans if each is not None]
        if len(known) < len(spans):
            (row,) = rows.selectExpr("min(at_ms) as oldest", "max(at_ms) as newest").collect()
            known = [(row.oldest or 0, row.newest or 0)]
        return min(each[0] for each in known), max(each[1] for each in known)


class SequencesStep(Step):
    """The stretches of running numbers that the lake has; one row a partition, unless one lacks."""

    name = "sequences"

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        super().__init__(spark, tables)
        self.tables = (tables["sequences"],)

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        (table,) = self.tables
        found = gold.sequences(rows.select("partition", "sequence"), table.read(self.spark))
        table.write(found.coalesce(1), writer=self.writer, batch=high, mode="overwrite")


def _few_files(frame: DataFrame) -> DataFrame:
    """One task, and so one file a partition: what a batch brings fits well into one."""
    return frame.coalesce(1)


def _day(start_s: int) -> str:
    return datetime.datetime.fromtimestamp(start_s, datetime.UTC).date().isoformat()


def steps_of(spark: SparkSession, tables: LakeTables) -> list[Step]:
    """Everything that follows the journal."""
    statistics = [StatisticsStep(spark, tables, name) for name in INTERVALS_S]
    return [MessagesStep(spark, tables), *statistics, SequencesStep(spark, tables)]


def follow(step: Step, upto: Callable[[], int]) -> int:
    """Run a step until it has all batches; how many times it took some."""
    times = 0
    while step.run_once(upto()):
        times += 1
    return times
