"""Silver: one row for each message, made of its events. Functions DataFrame -> DataFrame.

Every event is a small row of its own in the columns of `messages`, and rows of one message are
combined: each column is a sum, a least, a greatest, or the value that was reported last, which
carries the sequence at which it was reported. So combining is associative and commutative: however
events are cut into batches, and in whatever order the batches come, the rows are the same.

A message begins with an announcement, an acceptance or a reopening. One that begins after an end is
another message with a row of its own, although it has the same id: a dead letter that is retried, a
request whose id is used again. So a row that has ended does not change any more, and a batch need
not look through history.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from angarium.lake.bronze import columns_of
from angarium.lake.lifecycles import CATALOGUE, FAILED_STATUSES, Role
from angarium.lake.schemas import MESSAGES, MESSAGES_OPEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEY = ("partition", "module", "account", "subject")
SUMS = ("events", "announces", "accepts", "reopens", "ends", "retries")
LEAST = (
    "first_sequence", "begin_sequence", "end_sequence", "first_ms", "accepted_ms", "worked_ms",
    "archived_ms",
)  # fmt: skip
GREATEST = ("attempts", "begin_last_sequence", "step_sequence")
# What was reported last: the column with its sequence, and the columns that came with it. Each is
# one struct while rows are combined, because Spark sorts where many buffers hold text.
LATEST: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "last_sequence": ("last_event",),
        "key_sequence": ("key", "pipeline"),
        "owner_sequence": ("owner",),
        "node_sequence": ("node",),
        "reference_sequence": ("reference",),
        "detail_sequence": ("detail",),
        "end_last_sequence": ("ended_ms", "outcome", "status"),
    }
)
# Open rows lie together by the stretch of the journal in which they began.
BUCKET_BITS = 18


def catalogue(spark: SparkSession) -> DataFrame:
    """What each event means for its message; to be broadcast, and small enough to need no job."""
    rows = ", ".join(
        f"('{each.module}', '{each.event}', '{each.account}', '{each.role.value}', "
        f"'{each.outcome}', '{each.stage}', {str(each.retry).lower()})"
        for each in CATALOGUE
        if each.role not in (Role.REPORTED, Role.BESIDE)
    )
    names = "module, event, account, role, ending, stage, retry"
    return spark.sql(f"select * from values {rows} as catalogue({names})")


def rows_of_events(events: DataFrame, catalogue: DataFrame) -> DataFrame:
    """Each event as a row of its message, not yet combined with others."""
    from pyspark.sql import functions as f

    known = events.join(f.broadcast(catalogue), ["module", "event"])
    role, sequence, at_ms = f.col("role"), f.col("sequence"), f.col("at_ms")

    def number(condition: Column) -> Column:
        return condition.cast("bigint")

    def at(stage: str) -> Column:
        return f.when(f.col("stage") == stage, at_ms)

    def reported(condition: Column, **values: Column) -> Column:
        named = [value.alias(name) for name, value in values.items()]
        return f.when(condition, f.struct(sequence, *named))

    begins = role.isin(Role.ANNOUNCE.value, Role.ACCEPT.value, Role.REOPEN.value)
    accepts, ends = role == Role.ACCEPT.value, role == Role.END.value
    failed = (
        (f.col("module") == "transactions")
        & (f.col("event") == "completed")
        & f.col("status").isin(*FAILED_STATUSES)
    )
    outcome = f.when(failed, f.lit("failed")).otherwise(f.col("ending"))
    key, owner, node, detail = (f.col(name) for name in ("key", "owner", "node", "detail"))
    return known.select(
        *KEY,
        f.lit(1).cast("bigint").alias("events"),
        number(role == Role.ANNOUNCE.value).alias("announces"),
        number(accepts).alias("accepts"),
        number(role == Role.REOPEN.value).alias("reopens"),
        number(ends).alias("ends"),
        number(f.col("retry")).alias("retries"),
        sequence.alias("first_sequence"),
        f.when(begins, sequence).alias("begin_sequence"),
        f.when(ends, sequence).alias("end_sequence"),
        at_ms.alias("first_ms"),
        at("accepted").alias("accepted_ms"),
        at("worked").alias("worked_ms"),
        at("archived").alias("archived_ms"),
        f.col("attempt").alias("attempts"),
        f.when(begins, sequence).alias("begin_last_sequence"),
        f.when(role == Role.STEP.value, sequence).alias("step_sequence"),
        f.struct(sequence, f.col("event").alias("last_event")).alias("last_sequence"),
        reported(key.isNotNull(), key=key, pipeline=f.col("pipeline")).alias("key_sequence"),
        reported(owner.isNotNull(), owner=owner).alias("owner_sequence"),
        reported(node.isNotNull(), node=node).alias("node_sequence"),
        reported(accepts & detail.isNotNull(), reference=detail).alias("reference_sequence"),
        # What was reported with an acceptance is its reference, not what became of it.
        reported(~accepts & detail.isNotNull(), detail=detail).alias("detail_sequence"),
        reported(ends, ended_ms=at_ms, outcome=outcome, status=f.col("status")).alias(
            "end_last_sequence"
        ),
        f.lit(False).alias("was_open"),
    )


def rows_of_open(open_rows: DataFrame) -> DataFrame:
    """Rows of `messages_open` or `messages` in the form in which they are combined."""
    from pyspark.sql import functions as f

    latest = [
        f.when(
            f.col(name).isNotNull(), f.struct(f.col(name).alias("sequence"), *values)
        ).alias(name)
        for name, values in LATEST.items()
    ]
    return open_rows.select(
        *KEY, *SUMS, *LEAST, *GREATEST, *latest, f.lit(True).alias("was_open")
    )


def combined(rows: DataFrame, *more_keys: str) -> DataFrame:
    """Rows of the same message as one, in any order and number."""
    from pyspark.sql import functions as f

    return rows.groupBy(*KEY, *more_keys).agg(
        *(f.sum(name).alias(name) for name in SUMS),
        *(f.min(name).alias(name) for name in LEAST),
        *(f.max(name).alias(name) for name in (*GREATEST, *LATEST)),
        f.max("was_open").alias("was_open"),
    )


def messages_apart(rows: DataFrame) -> DataFrame:
    """Rows of one id that hold more than one message, with a number for each message.

    For the few ids that began again after an end: what comes before is another message.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = Window.partitionBy(*KEY).orderBy("first_sequence")
    earlier = before.rowsBetween(Window.unboundedPreceding, -1)
    ended = f.max(f.col("end_last_sequence.sequence")).over(earlier)
    begun = f.max("begin_last_sequence").over(earlier)
    again = f.col("begin_sequence").isNotNull() & (ended > f.coalesce(begun, f.lit(-1)))
    numbered = rows.withColumn("again", f.coalesce(again, f.lit(False)).cast("int"))
    return numbered.withColumn("message", f.sum("again").over(before)).drop("again")


def holds_several(rows: DataFrame) -> Column:
    """Whether a combined row is of an id that began again after an end."""
    from pyspark.sql import functions as f

    return f.coalesce(f.col("begin_last_sequence") > f.col("end_sequence"), f.lit(False))


def flat(rows: DataFrame) -> DataFrame:
    """Combined rows in the columns of `messages`, with what follows from them."""
    from pyspark.sql import functions as f

    plain = rows
    for name, values in LATEST.items():
        plain = plain.select("*", *(f.col(name)[value].alias(value) for value in values))
        plain = plain.withColumn(name, f.col(name)["sequence"])
    ended = f.col("end_last_sequence") > f.coalesce(f.col("begin_last_sequence"), f.lit(-1))
    return plain.select(
        "*",
        (f.col("worked_ms") - f.col("accepted_ms")).alias("wait_ms"),
        f.when(ended, f.col("ended_ms") - f.col("accepted_ms")).alias("latency_ms"),
        f.coalesce(ended, f.lit(False)).alias("has_ended"),
    )


def next_messages(events: DataFrame, catalogue: DataFrame, open_rows: DataFrame) -> DataFrame:
    """What is open and this batch together: one row each, `has_ended` says where it belongs."""
    rows = rows_of_events(events, catalogue).unionByName(rows_of_open(open_rows))
    return flat(combined(rows))


def next_messages_apart(events: DataFrame, catalogue: DataFrame, open_rows: DataFrame) -> DataFrame:
    """The same for ids that hold several messages."""
    rows = rows_of_events(events, catalogue).unionByName(rows_of_open(open_rows))
    return flat(combined(messages_apart(rows), "message")).drop("message")


def ended(rows: DataFrame, batch: int = 0) -> DataFrame:
    """Of these, what has ended, in the columns of `messages`."""
    from pyspark.sql import functions as f

    done = rows.where("has_ended").select(
        "*",
        f.to_date(f.timestamp_millis("ended_ms")).alias("date"),
        f.lit(batch).alias("batch"),
    )
    return done.select(*columns_of(MESSAGES))


def still_open(rows: DataFrame) -> DataFrame:
    """Of these, what is in flight, in the columns of `messages_open`."""
    return in_buckets(rows.where("not has_ended"))


def in_buckets(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    bucket = f.shiftright("first_sequence", BUCKET_BITS).alias("bucket")
    return rows.select("*", bucket).select(*columns_of(MESSAGES_OPEN))


def transactions(archive: DataFrame, batch: int = 0) -> DataFrame:
    """Archived transactions, in the columns of `transactions`."""
    from pyspark.sql import functions as f

    from angarium.lake.schemas import TRANSACTIONS

    return archive.select(
        "*",
        f.to_date(f.timestamp_millis("completed_ms")).alias("date"),
        f.lit(batch).alias("batch"),
    ).select(*columns_of(TRANSACTIONS))
