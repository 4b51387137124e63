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
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from angarium.lake import gold, silver
from angarium.lake.schemas import INTERVALS_S, STATS_FINE, TABLES
from angarium.lake.tables import Lake, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# The name under which the journal's batches stand in the logs of all tables that follow it.
JOURNAL = "journal"
LATE = "late"
CLOSED = "closed"
# A step that is behind takes so many batches at once.
BATCHES_MAX = 64
# Up to so many open rows are read and written as a whole; beyond, only the buckets of a batch.
OPEN_ROWS_WHOLE = 100_000
# An event without a beginning is looked for among the messages that ended on so many days.
LATE_DAYS = 7
# A window may grow for so many of its own lengths, and at least for so long.
OPEN_WINDOWS, OPEN_S_MIN = 2, 30
ROWS_PER_FILE = 100_000


class LakeTables:
    """The tables of one lake, each with one handle on its log for the whole process."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._tables: dict[str, LakeTable] = {}

    def __getitem__(self, name: str) -> LakeTable:
        if name not in self._tables:
            about = TABLES[name]
            self._tables[name] = LakeTable(self.lake, name, about.struct(), about.partition_by)
        return self._tables[name]

    def add(self, table: LakeTable) -> LakeTable:
        """A table that is not among ours: a user's."""
        return self._tables.setdefault(table.name, table)


class Step:
    """`tables` in the order in which they are committed; `source` is the table they follow."""

    name = ""
    source = "events"
    source_writer = JOURNAL
    writer = JOURNAL

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        self.spark = spark
        self.lake_tables = tables
        self.tables: Sequence[LakeTable] = ()
        # Batches that had nothing for the step's tables leave no commit behind.
        self._empty_upto = -1

    def position(self) -> int:
        """The last batch that all of its tables have."""
        return max(self._empty_upto, min(_last(each, self.writer) for each in self.tables))

    def run_once(self, upto: int) -> bool:
        """Take the next batches, at most up to this one; False when there was nothing to do."""
        self.recover()
        low, high = self.position(), max(_last(each, self.writer) for each in self.tables)
        if high <= low:
            high = min(upto, low + BATCHES_MAX)
        if high <= low:
            return False
        self.take(self.rows(low, high), low, high)
        self._empty_upto = high
        return True

    def rows(self, low: int, high: int) -> DataFrame:
        """What the source's batches behind `low` up to `high` have brought."""
        source = self.lake_tables[self.source]
        return source.read(self.spark, matching=f"batch > {low} and batch <= {high}")

    def recover(self) -> None:
        """Finish what was begun and does not follow from the batches alone."""

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        raise NotImplementedError


def _last(table: LakeTable, writer: str) -> int:
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
        return _last(self.open, self.writer)

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        buckets = self._touched(rows)
        frame = silver.next_messages(rows, self._catalogue, self._open_rows(buckets)).cache()
        try:
            figures = self._figures(frame)
            if any(row.late for row in figures) and self._pull_back(frame, low, high):
                frame.unpersist()
                return self.take(rows, low, high)
            found = frame
            if any(row.several for row in figures):
                found = self._apart(frame, rows, buckets)
            self._commit(found, figures, buckets, high)
        finally:
            frame.unpersist()

    def _commit(
        self, frame: DataFrame, figures: Sequence[Figures], buckets: Sequence[int] | None, high: int
    ) -> None:
        ended, open_ = (sum(getattr(row, name) for row in figures) for name in ("ended", "open"))
        self.ended.write(
            _few_files(silver.ended(frame, high), ended), writer=self.writer, batch=high
        )
        where = {"bucket": self._buckets() if buckets is None else buckets}
        marks = {f"sequence:{row.partition}": row.newest for row in figures}
        self.open.replace(
            _few_files(silver.still_open(frame), open_),
            writer=self.writer, batch=high, where=where, marks=marks,
        )  # fmt: skip

    def _figures(self, frame: DataFrame) -> Sequence[Figures]:
        """By partition: what the batch holds, and whether some of it needs the slow way."""
        from pyspark.sql import functions as f

        rows = (
            frame.groupBy("partition")
            .agg(
                f.max("last_sequence").alias("newest"),
                f.count_if("has_ended").alias("ended"),
                f.count_if(~f.col("has_ended")).alias("open"),
                f.count_if(silver.holds_several(frame)).alias("several"),
                f.count_if(self._late()).alias("late"),
            )
            .collect()
        )
        return [Figures(**row.asDict()) for row in rows]

    def _late(self) -> Column:
        """Whether its beginning is not in this batch, nor among what is open: it may have ended."""
        from pyspark.sql import functions as f

        past = f.lit(-1)
        for partition in range(self.open.lake.partitions):
            newest = self.open.last_batch(f"sequence:{partition}")
            if newest is not None:
                past = f.when(f.col("partition") == partition, f.lit(newest)).otherwise(past)
        no_beginning = f.col("begin_sequence").isNull() | (f.col("first_sequence") <= past)
        return ~f.col("was_open") & no_beginning

    # What is open

    def _touched(self, rows: DataFrame) -> list[int] | None:
        """The buckets in which ids of this batch are open; None where all of them are taken."""
        from pyspark.sql import functions as f

        if self.open.lake.rows(self.open.name) <= OPEN_ROWS_WHOLE:
            return None
        key = ("partition", "module", "subject")
        ids = rows.select(*key).distinct()
        held = self.open.read(self.spark).select(*key, "bucket")
        found = held.join(f.broadcast(ids), list(key), "left_semi").select("bucket").distinct()
        return [row.bucket for row in found.collect()]

    def _open_rows(self, buckets: Sequence[int] | None) -> DataFrame:
        files = self.open.files(None if buckets is None else {"bucket": buckets})
        return self.open.frame(self.spark, files)

    def _buckets(self) -> list[str | None]:
        return sorted({each.partition_values["bucket"] or "" for each in self.open.files()})

    def _apart(
        self, frame: DataFrame, rows: DataFrame, buckets: Sequence[int] | None
    ) -> DataFrame:
        """Ids that began again after an end, once more, as several messages."""
        from pyspark.sql import functions as f

        keys = frame.where(silver.holds_several(frame)).select(*silver.KEY)
        ids = keys.select("partition", "module", "subject").distinct()
        events = rows.join(f.broadcast(ids), ["partition", "module", "subject"], "left_semi")
        open_rows = self._open_rows(buckets).join(f.broadcast(keys), list(silver.KEY), "left_semi")
        apart = silver.next_messages_apart(events, self._catalogue, open_rows)
        # An id may be of two accounts, and only one of them holds several.
        apart = apart.join(f.broadcast(keys), list(silver.KEY), "left_semi")
        return frame.where(~silver.holds_several(frame)).unionByName(apart)

    # Events of what has ended

    def _pull_back(self, frame: DataFrame, low: int, high: int) -> bool:
        """Rows of `messages` to which events of this batch belong, back among the open ones."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        days = sorted({e.partition_values["date"] or "" for e in self.ended.files()})[-LATE_DAYS:]
        if not days:
            return False
        keys = frame.where(self._late()).select(*silver.KEY)
        held = self.ended.frame(self.spark, self.ended.files({"date": days}))
        newest = Window.partitionBy(*silver.KEY).orderBy(f.desc("last_sequence"))
        found = (
            # Rows of this very batch are there when it is repeated, and are no earlier ones.
            held.where(f.col("batch") <= low)
            .join(f.broadcast(keys), list(silver.KEY), "left_semi")
            .withColumn("place", f.row_number().over(newest))
            .where("place = 1")
        )
        result = self.open.write(
            silver.in_buckets(found).coalesce(1), writer=LATE, batch=high
        )
        self.recover()
        return result.added

    def recover(self) -> None:
        """Remove rows from `messages` that were pulled back: they are open again."""
        from pyspark.sql import functions as f

        pulled = _last(self.open, LATE)
        if pulled <= _last(self.ended, LATE):
            return
        back = self.open.read(self.spark).where("outcome is not null")
        day = f.to_date(f.timestamp_millis("ended_ms")).cast("string")
        days = [row[0] for row in back.select(day).distinct().collect()]
        key = [*silver.KEY, "first_sequence"]
        held = self.ended.frame(self.spark, self.ended.files({"date": days}))
        rest = held.join(f.broadcast(back.select(*key)), key, "left_anti")
        self.ended.replace(rest, writer=LATE, batch=pulled, where={"date": days})


class Figures:
    """One partition's share of a batch of messages."""

    def __init__(
        self, partition: int, newest: int, ended: int, open: int, several: int, late: int
    ) -> None:
        self.partition, self.newest = partition, newest
        self.ended, self.open, self.several, self.late = ended, open, several, late


class StatisticsStep(Step):
    """Each table is its own state: windows that may still grow lie in the partition without a day.

    A count that comes for a closed window is added to it, and the window's day is written anew.
    """

    name = "statistics"

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        super().__init__(spark, tables)
        self.tables = [tables[name] for name in INTERVALS_S]

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        from pyspark.sql import functions as f

        fine = gold.statistics(rows, INTERVALS_S[STATS_FINE.name]).cache()
        try:
            starts = fine.groupBy("start_s").agg(f.count("*").alias("rows")).collect()
            for table in self.tables:
                if _last(table, self.writer) < high:
                    self._add(table, fine, {row.start_s: row.rows for row in starts}, high)
        finally:
            fine.unpersist()

    def _add(
        self, table: LakeTable, fine: DataFrame, starts: Mapping[int, int], high: int
    ) -> None:
        interval_s = INTERVALS_S[table.name]
        closed_s = _last(table, CLOSED)
        windows = {start // interval_s * interval_s for start in starts}
        # A clock that is ahead must not close the windows of all others.
        newest_s = min(max(windows, default=0) + interval_s, int(time.time()))
        later_s = max(closed_s, newest_s - max(OPEN_S_MIN, OPEN_WINDOWS * interval_s))
        late = {_day(start) for start in windows if start + interval_s <= closed_s}
        where: dict[str, list[object]] = {"date": [None, *sorted(late)]}
        new = fine if table.name == STATS_FINE.name else gold.coarser(fine, interval_s)
        held = table.frame(self.spark, table.files(where)).select(*STATS_FINE.names[:-1])
        counts = gold.merged(new.unionByName(held))
        table.replace(
            _few_files(gold.closed_before(counts, interval_s, later_s), sum(starts.values())),
            writer=self.writer, batch=high, where=where, marks={CLOSED: max(0, later_s)},
        )  # fmt: skip


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


def _few_files(frame: DataFrame, rows: int) -> DataFrame:
    """One task, and so one file a partition, for what fits well into one."""
    return frame.coalesce(1) if rows <= ROWS_PER_FILE else frame


def _day(start_s: int) -> str:
    return datetime.datetime.fromtimestamp(start_s, datetime.UTC).date().isoformat()


def follow(step: Step, upto: Callable[[], int]) -> int:
    """Run a step until it has all batches; how many times it took some."""
    times = 0
    while step.run_once(upto()):
        times += 1
    return times
