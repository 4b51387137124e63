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
from angarium.lake.bronze import observed, with_values
from angarium.lake.schemas import INTERVALS_S, TABLES
from angarium.lake.tables import Lake, LakeTable, write_files_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from angarium.lake.delta_log import DataFile

# The name under which the journal's batches stand in the logs of all tables that follow it.
JOURNAL = "journal"
LATE = "late"
CLOSED = "closed"
OPEN = "open"
# A step that is behind takes so many batches at once.
BATCHES_MAX = 64
# So many rows are combined by one task: it needs no shuffle, and makes one file a partition.
ROWS_ONE_TASK = 50_000
# Nobody waits for the stretches of running numbers: they are brought up to date so often.
SEQUENCES_EVERY = 20
# Up to so many open rows are read and written as a whole; beyond, only the buckets of a batch.
OPEN_ROWS_WHOLE = 100_000
# An event without a beginning is looked for among the messages that ended on so many days.
LATE_DAYS = 7
# A window may grow for so many of its own lengths, and at least for so long. Windows are closed
# once a minute: each time is another number in the code that Spark makes and compiles.
OPEN_WINDOWS, OPEN_S_MIN, CLOSE_EVERY_S = 2, 30, 60


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


class PipelineStep:
    """`tables` in the order in which they are committed; `source` is the table they follow."""

    name = ""
    source = "events"
    source_writer = JOURNAL
    writer = JOURNAL
    batches_max = BATCHES_MAX
    # It may be behind by fewer than so many, unless it is asked for all of them.
    batches_min = 1

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        self.spark = spark
        self.one_task = True
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
        low = self.position()
        # Tables that are ahead agree first, one step after the other.
        high = min((each for each in done if each > low), default=low)
        if high <= low:
            high = min(upto, low + self.batches_max)
        if high <= low:
            return False
        self.take(self.rows(low, high), low, high)
        self._empty_upto = high
        return True

    def rows(self, low: int, high: int) -> DataFrame:
        """What the source's batches behind `low` up to `high` have brought."""
        table = self.lake_tables[self.source]
        files = table.files(batches=(low + 1, high))
        self.one_task = sum(each.rows for each in files) <= ROWS_ONE_TASK
        return _rows_in(self.spark, table, files, low, high)

    def recover(self) -> None:
        """Finish what was begun and does not follow from the batches alone."""

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        raise NotImplementedError


def rows_between(spark: SparkSession, table: LakeTable, low: int, high: int) -> DataFrame:
    """The rows of a table's batches behind `low` up to `high`, from the files that have some."""
    return _rows_in(spark, table, table.files(batches=(low + 1, high)), low, high)


def _rows_in(
    spark: SparkSession, table: LakeTable, files: Sequence[DataFile], low: int, high: int
) -> DataFrame:
    rows = table.frame(spark, files)
    spans = [each.batches for each in files]
    if all(span is not None and low < span[0] and span[1] <= high for span in spans):
        return rows
    rows = with_values(rows, low_batch=low, high_batch=high)
    return rows.where("batch > low_batch and batch <= high_batch").select(*table.schema.names)


def last_batch(table: LakeTable, writer: str) -> int:
    """The last batch of a writer that the table has; -1 before the first."""
    found = table.last_batch(writer)
    return -1 if found is None else found


class MessagesStep(PipelineStep):
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
        held = self._touched(rows)
        one_task = self.one_task and sum(each.rows for each in held) <= ROWS_ONE_TASK
        open_rows = self.open.frame(self.spark, held)
        frame = silver.next_messages(rows, self._catalogue, open_rows, one_task=one_task)
        seen, watched = observed(frame, **self._figures())
        files = self._written(watched)
        found = seen.get
        past = self._past()
        late = self._is_late(found, past)
        if found["several"] or late:
            # The slow way, for the few: what was written is no part of a table yet.
            self._discard(files)
            if late and self._pull_back(frame.where(_late(past)), low, high):
                self.take(rows, low, high)
                return
            files = self._written(self._apart(frame, rows, held, high))
        # Never back: what ended took the greatest numbers with it, and later batches may be older.
        marks = {
            f"sequence:{number}": max(last, found[f"last{number}"] or -1)
            for number, last in past.items()
            if max(last, found[f"last{number}"] or -1) > 0
        }
        batches = {self.writer: high}
        if files["messages"]:
            self.ended.commit_files(files["messages"], batches=batches, once=self.writer)
        self.open.commit_files(
            files["messages_open"], held, once=self.writer,
            batches={**marks, OPEN: found["open"], **batches},
        )  # fmt: skip

    def _written(self, frame: DataFrame) -> dict[str, list[DataFile]]:
        for each in self.tables:
            each.has(self.writer, 0)  # made, if there is none
        return write_files_of(silver.placed(frame), {each.name: each for each in self.tables})

    def _discard(self, files: Mapping[str, Sequence[DataFile]]) -> None:
        for each in self.tables:
            each.log.discard(files[each.name])

    def _figures(self) -> dict[str, str]:
        """What is asked of the rows while they are written, so that nothing reads them again."""
        found = {
            "several": f"count_if({silver.SEVERAL})",
            "headless": "count_if(not was_open and begin_sequence is null)",
            "open": "count_if(not has_ended)",
        }
        for number in range(self.open.lake.partitions):
            here = f"partition = {number}"
            found[f"last{number}"] = f"max(case when {here} then last_sequence end)"
            new = f"{here} and not was_open"
            found[f"new{number}"] = f"min(case when {new} then first_sequence end)"
        return found

    def _is_late(self, found: Mapping[str, int | None], past: Mapping[int, int]) -> bool:
        """Whether there are rows that `_late` would find."""
        news = ((found[f"new{number}"], last) for number, last in past.items())
        return bool(found["headless"]) or any(n is not None and n <= last for n, last in news)

    def _past(self) -> dict[int, int]:
        """By partition, the last number that was seen: an event behind it comes late."""
        return {
            partition: last_batch(self.open, f"sequence:{partition}")
            for partition in range(self.open.lake.partitions)
        }

    # What is open

    def _touched(self, rows: DataFrame) -> list[DataFile]:
        """Files with open rows: all of them, or the buckets in which ids of this batch are open."""
        from pyspark.sql import functions as f

        held = self.open.files()
        if sum(each.rows for each in held) <= OPEN_ROWS_WHOLE:
            return held
        key = ("partition", "module", "subject")
        ids = rows.select(*key).distinct()
        open_rows = self.open.frame(self.spark, held).select(*key, "bucket")
        found = open_rows.join(f.broadcast(ids), list(key), "left_semi").select("bucket").distinct()
        buckets = {str(row.bucket) for row in found.collect()}
        return [each for each in held if each.partition_values["bucket"] in buckets]

    def _apart(
        self, frame: DataFrame, rows: DataFrame, held: Sequence[DataFile], high: int
    ) -> DataFrame:
        """Ids that began again after an end, once more, as several messages."""
        from pyspark.sql import functions as f

        keys = frame.where(silver.SEVERAL).select(*silver.KEY)
        ids = keys.select("partition", "module", "subject").distinct()
        events = rows.join(f.broadcast(ids), ["partition", "module", "subject"], "left_semi")
        open_rows = self.open.frame(self.spark, held)
        open_rows = open_rows.join(f.broadcast(keys), list(silver.KEY), "left_semi")
        apart = silver.next_messages_apart(events, self._catalogue, open_rows)
        # An id may be of two accounts, and only one of them holds several.
        apart = apart.join(f.broadcast(keys), list(silver.KEY), "left_semi")
        rest = frame.where(f"not {silver.SEVERAL}").select(*apart.columns)
        # One that was pulled back may have no event of this batch.
        return rest.unionByName(apart).withColumn("batch", f.coalesce("batch", f.lit(high)))

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


def _late(past: Mapping[int, int]) -> str:
    """Whether its beginning is not in this batch, nor among what is open: it may have ended."""
    cases = " ".join(f"when {partition} then {last}L" for partition, last in past.items())
    number = f"case partition {cases} else -1 end"
    return f"not was_open and (begin_sequence is null or first_sequence <= {number})"


class StatisticsStep(PipelineStep):
    """Each table is its own state: windows that may still grow lie in the partition without a day.

    A count that comes for a closed window is added to it, and the window's day is written anew.
    One pass over the events counts the shortest windows, of which all others are made.
    """

    name = "statistics"

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        super().__init__(spark, tables)
        self.tables = tuple(tables[name] for name in INTERVALS_S)

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        lacking = [each for each in self.tables if not each.has(self.writer, high)]
        oldest_ms, newest_ms = self._span(rows, low, high)
        # A clock that is ahead must not close the windows of all others.
        newest_s = min(newest_ms // 1000, int(time.time()))
        fine = gold.merged(gold.statistics(rows.coalesce(1) if self.one_task else rows))
        counts = gold.in_all_windows(fine)
        removed: dict[str, list[DataFile]] = {}
        later: dict[str, int] = {}
        for table in lacking:
            interval_s, closed_s = INTERVALS_S[table.name], last_batch(table, CLOSED)
            late = list[str]()
            if oldest_ms // 1000 < closed_s:
                days = f"table = '{table.name}' and start_s + {interval_s} <= {closed_s}"
                closed = gold.in_all_windows(fine).where(days).select("start_s").distinct()
                late = sorted({_day(row.start_s) for row in closed.collect()})
            open_s = newest_s - max(OPEN_S_MIN, OPEN_WINDOWS * interval_s)
            later[table.name] = max(closed_s, open_s // CLOSE_EVERY_S * CLOSE_EVERY_S)
            removed[table.name] = table.files({"date": [None, *late]})
            held = table.frame(self.spark, removed[table.name]).drop("date")
            counts = counts.unionByName(gold.of_table(held, table.name))
        merged = gold.merged(counts.coalesce(1), "table")
        files = write_files_of(
            gold.closed_before(merged, later), {each.name: each for each in lacking}
        )
        for table in lacking:
            marks = {CLOSED: max(0, later[table.name]), self.writer: high}
            gone = removed[table.name]
            table.commit_files(files[table.name], gone, once=self.writer, batches=marks)

    def _span(self, rows: DataFrame, low: int, high: int) -> tuple[int, int]:
        """The times of the oldest and the newest event of these batches."""
        spans = [self.lake_tables.spans.get(number) for number in range(low + 1, high + 1)]
        known = [each for each in spans if each is not None]
        if len(known) < len(spans):
            (row,) = rows.selectExpr("min(at_ms) as oldest", "max(at_ms) as newest").collect()
            known = [(row.oldest or 0, row.newest or 0)]
        return min(each[0] for each in known), max(each[1] for each in known)


class SequencesStep(PipelineStep):
    """The stretches of running numbers that the lake has; one row a partition, unless one lacks."""

    name = "sequences"
    batches_min = SEQUENCES_EVERY

    def __init__(self, spark: SparkSession, tables: LakeTables) -> None:
        super().__init__(spark, tables)
        self.tables = (tables["sequences"],)

    def take(self, rows: DataFrame, low: int, high: int) -> None:
        (table,) = self.tables
        found = gold.sequences(rows.select("partition", "sequence"), table.read(self.spark))
        table.write(found.coalesce(1), writer=self.writer, batch=high, mode="overwrite")


def _day(start_s: int) -> str:
    return datetime.datetime.fromtimestamp(start_s, datetime.UTC).date().isoformat()


def steps_of(spark: SparkSession, tables: LakeTables) -> list[PipelineStep]:
    """Everything that follows the journal."""
    return [kind(spark, tables) for kind in (MessagesStep, StatisticsStep, SequencesStep)]


def follow(step: PipelineStep, upto: Callable[[], int]) -> int:
    """Run a step until it has all batches; how many times it took some."""
    times = 0
    while step.run_once(upto()):
        times += 1
    return times
