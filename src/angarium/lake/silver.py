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

from angarium.lake.bronze import expressions_of, with_values
from angarium.lake.catalogue import CATALOGUE, FAILED_STATUSES
from angarium.lake.schemas import MESSAGES, MESSAGES_OPEN, TRANSACTIONS
from angarium.runtime.module import Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
_BUCKET = f"shiftright(first_sequence, {BUCKET_BITS})"


def catalogue(spark: SparkSession) -> DataFrame:
    """What each event means for its message; to be broadcast, and small enough to need no job."""
    rows = ", ".join(
        f"('{module}', '{event}', '{each.account}', '{each.part}', "
        f"'{each.outcome}', '{each.stage}', {str(each.retry).lower()})"
        for (module, event), each in CATALOGUE.items()
        if each.part not in (Part.NONE, Part.BESIDE)
    )
    names = "module, event, account, part, ending, stage, retry"
    return spark.sql(f"select * from values {rows} as catalogue({names})")


_BEGINS = "part in ('announce', 'accept', 'reopen')"
_FAILED = ", ".join(f"'{each}'" for each in FAILED_STATUSES)


def _reported(condition: str, **values: str) -> str:
    """The sequence and what was reported at it, where it was."""
    named = ", ".join(f"'{name}', {value}" for name, value in values.items())
    return f"case when {condition} then named_struct('sequence', sequence, {named}) end"


# Text, because Spark is given it at once: each call of a function of columns is one to Java.
_OF_EVENT: Mapping[str, str] = MappingProxyType(
    {
        "events": "1L",
        "announces": "cast(part = 'announce' as bigint)",
        "accepts": "cast(part = 'accept' as bigint)",
        "reopens": "cast(part = 'reopen' as bigint)",
        "ends": "cast(part = 'end' as bigint)",
        "retries": "cast(retry as bigint)",
        "first_sequence": "sequence",
        "begin_sequence": f"case when {_BEGINS} then sequence end",
        "end_sequence": "case when part = 'end' then sequence end",
        "first_ms": "at_ms",
        "accepted_ms": "case when stage = 'accepted' then at_ms end",
        "worked_ms": "case when stage = 'worked' then at_ms end",
        "archived_ms": "case when stage = 'archived' then at_ms end",
        "attempts": "attempt",
        "begin_last_sequence": f"case when {_BEGINS} then sequence end",
        "step_sequence": "case when part = 'step' then sequence end",
        "last_sequence": "named_struct('sequence', sequence, 'last_event', event)",
        "key_sequence": _reported("key is not null", key="key", pipeline="pipeline"),
        "owner_sequence": _reported("owner is not null", owner="owner"),
        "node_sequence": _reported("node is not null", node="node"),
        "reference_sequence": _reported(
            "part = 'accept' and detail is not null", reference="detail"
        ),
        # What was reported with an acceptance is its reference, not what became of it.
        "detail_sequence": _reported("part <> 'accept' and detail is not null", detail="detail"),
        "end_last_sequence": _reported(
            "part = 'end'",
            ended_ms="at_ms",
            outcome="case when module = 'transactions' and event = 'completed' "
            f"and status in ({_FAILED}) then 'failed' else ending end",
            status="status",
        ),
        "was_open": "false",
        "batch": "batch",
    }
)


def rows_of_events(events: DataFrame, catalogue: DataFrame) -> DataFrame:
    """Each event as a row of its message, not yet combined with others."""
    from pyspark.sql import functions as f

    known = events.join(f.broadcast(catalogue), ["module", "event"])
    return known.selectExpr(*KEY, *(f"{text} as {name}" for name, text in _OF_EVENT.items()))


def rows_of_open(open_rows: DataFrame) -> DataFrame:
    """Rows of `messages_open` or `messages` in the form in which they are combined."""
    latest = []
    for name, values in LATEST.items():
        named = ", ".join(f"'{value}', {value}" for value in values)
        struct = f"named_struct('sequence', {name}, {named})"
        latest.append(f"case when {name} is not null then {struct} end as {name}")
    more = ("true as was_open", "cast(null as bigint) as batch")
    return open_rows.selectExpr(*KEY, *SUMS, *LEAST, *GREATEST, *latest, *more)


_COMBINED = (
    *(f"sum({name}) as {name}" for name in SUMS),
    *(f"min({name}) as {name}" for name in LEAST),
    *(f"max({name}) as {name}" for name in (*GREATEST, *LATEST)),
    "max(was_open) as was_open",
    "max(batch) as batch",
)


def combined(rows: DataFrame, *more_keys: str) -> DataFrame:
    """Rows of the same message as one, in any order and number."""
    from pyspark.sql import functions as f

    return rows.groupBy(*KEY, *more_keys).agg(*(f.expr(text) for text in _COMBINED))


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


# Whether a combined row is of an id that began again after an end.
SEVERAL = "coalesce(begin_last_sequence > end_sequence, false)"
_ENDED = "coalesce(end_last_sequence.sequence > coalesce(begin_last_sequence, -1), false)"


def flat(rows: DataFrame) -> DataFrame:
    """Combined rows in the columns of `messages`, with what follows from them."""
    latest = [f"{name}.sequence as {name}" for name in LATEST]
    latest += [f"{name}.{value} as {value}" for name, values in LATEST.items() for value in values]
    return rows.selectExpr(
        *KEY, *SUMS, *LEAST, *GREATEST, *latest, "was_open", "batch",
        "worked_ms - accepted_ms as wait_ms",
        f"case when {_ENDED} then end_last_sequence.ended_ms - accepted_ms end as latency_ms",
        f"{_ENDED} as has_ended",
    )  # fmt: skip


def next_messages(
    events: DataFrame, catalogue: DataFrame, open_rows: DataFrame, *, one_task: bool = False
) -> DataFrame:
    """What is open and this batch together: one row each, `has_ended` says where it belongs.

    Few rows are combined in one task, which needs no shuffle.
    """
    rows = rows_of_events(events, catalogue).unionByName(rows_of_open(open_rows))
    return flat(combined(rows.coalesce(1) if one_task else rows))


def next_messages_apart(events: DataFrame, catalogue: DataFrame, open_rows: DataFrame) -> DataFrame:
    """The same for ids that hold several messages."""
    rows = rows_of_events(events, catalogue).unionByName(rows_of_open(open_rows))
    return flat(combined(messages_apart(rows), "message"))


def placed(rows: DataFrame) -> DataFrame:
    """With the table to which each row belongs, and its partition there."""
    given = {
        "date": "case when has_ended then to_date(timestamp_millis(ended_ms)) end",
    }
    return rows.selectExpr(
        *expressions_of(MESSAGES, given),
        f"case when not has_ended then {_BUCKET} end as bucket",
        f"if(has_ended, '{MESSAGES.name}', '{MESSAGES_OPEN.name}') as table",
    )


def ended(rows: DataFrame) -> DataFrame:
    """Of these, what has ended, in the columns of `messages`."""
    return placed(rows).where("date is not null").select(*MESSAGES.names)


def still_open(rows: DataFrame) -> DataFrame:
    """Of these, what is in flight, in the columns of `messages_open`."""
    return placed(rows).where("bucket is not null").select(*MESSAGES_OPEN.names)


def in_buckets(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(*expressions_of(MESSAGES_OPEN, {"bucket": _BUCKET}))


def transactions(archive: DataFrame, batch: int = 0) -> DataFrame:
    """Archived transactions, in the columns of `transactions`."""
    given = {"date": "to_date(timestamp_millis(completed_ms))"}
    return with_values(archive, batch=batch).selectExpr(*expressions_of(TRANSACTIONS, given))
