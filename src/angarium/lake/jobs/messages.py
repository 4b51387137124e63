"""One row for each life: events brought together by subject.

`partial` sums up the events of one batch, `combined` brings several such rows of a subject
together: every column is a sum, a minimum, a maximum, or the value that came last, so the order in
which batches are combined does not matter, and one batch gives the same as many. Native aggregation
throughout: no Python function sees a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from angarium.lake.jobs.lifecycles import CATALOGUE, FAILED_STATUSES, STAGES, Role
from angarium.lake.schemas import MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = list(MESSAGES.key)
# How two rows of one subject become one. `by` names the column that says which came last.
SUMS = ("events", "announces", "accepts", "reopens", "ends", "retries")
LEAST = (
    "first_sequence",
    "begin_sequence",
    "end_sequence",
    *(f"{stage}_first_ms" for stage in STAGES),
)
GREATEST = (
    "attempts",
    "last_sequence",
    "begin_last_sequence",
    "end_last_sequence",
    "step_sequence",
    *(f"{stage}_last_ms" for stage in STAGES),
)
LATEST: Mapping[str, str] = MappingProxyType(
    {
        "key": "last_sequence",
        "owner": "last_sequence",
        "pipeline": "last_sequence",
        "node": "last_sequence",
        "last_event": "last_sequence",
        "reference": "begin_last_sequence",
        "outcome": "end_last_sequence",
        "status": "end_last_sequence",
        "detail": "last_sequence",
    }
)


def partial(events: DataFrame) -> DataFrame:
    """The events of a batch by subject, in the columns of `messages`."""
    from pyspark.sql import functions as f

    rows = _with_meaning(events).groupBy(*KEY).agg(*_aggregates())
    return finished(rows.withColumn("outcome", f.nullif("outcome", f.lit(""))))


def combined(rows: DataFrame) -> DataFrame:
    """Rows of the same subject as one."""
    from pyspark.sql import functions as f

    whole = rows.groupBy(*KEY).agg(
        *(f.sum(name).alias(name) for name in SUMS),
        *(f.min(name).alias(name) for name in LEAST),
        *(f.max(name).alias(name) for name in GREATEST),
        *(_latest(f.col(name), f.col(by)).alias(name) for name, by in LATEST.items()),
    )
    return finished(whole)


def finished(rows: DataFrame) -> DataFrame:
    """With what follows from the other columns."""
    from pyspark.sql import functions as f

    ended = f.col("end_last_sequence") > f.coalesce("begin_last_sequence", f.lit(-1))
    latency = f.when(ended, f.col("ended_last_ms") - f.col("accepted_first_ms"))
    return (
        rows.withColumn("outcome", f.when(ended, f.col("outcome")))
        .withColumn("wait_ms", f.col("worked_first_ms") - f.col("accepted_first_ms"))
        .withColumn("latency_ms", latency)
        .select(*MESSAGES.names)
    )


def _with_meaning(events: DataFrame) -> DataFrame:
    """Each event with its account, role and stage; those of no account are left out."""
    from pyspark.sql import functions as f

    # As a small table to be joined: as a map in the plan it takes seconds to compile.
    catalogue = events.sparkSession.sql(_CATALOGUE)
    failed = (f.col("event") == "completed") & f.col("status").isin(*FAILED_STATUSES)
    return events.join(f.broadcast(catalogue), ["room", "event"]).withColumn(
        "ending",
        f.when((f.col("room") == "transactions") & failed, f.lit("failed")).otherwise(
            f.col("ending")
        ),
    )


def _values() -> str:
    rows = ", ".join(
        f"('{each.room}', '{each.event}', '{each.account}', '{each.role.value}', "
        f"'{each.outcome}', '{each.stage}', {str(each.retry).lower()})"
        for each in CATALOGUE
        if each.role is not Role.TOLD
    )
    return f"select * from values {rows} as c(room, event, account, role, ending, stage, retry)"


_CATALOGUE = _values()


def _aggregates() -> list[Column]:
    from pyspark.sql import functions as f

    begins = [Role.ANNOUNCE.value, Role.ACCEPT.value, Role.REOPEN.value]
    sequence, role = f.col("sequence"), f.col("role")
    begin = f.when(role.isin(*begins), sequence)
    accept = f.when(role == Role.ACCEPT.value, sequence)
    end = f.when(role == Role.END.value, sequence)

    def count(of: Role) -> Column:
        return f.count_if(role == of.value)

    found = [
        f.count("*").alias("events"),
        count(Role.ANNOUNCE).alias("announces"),
        count(Role.ACCEPT).alias("accepts"),
        count(Role.REOPEN).alias("reopens"),
        count(Role.END).alias("ends"),
        f.count_if("retry").alias("retries"),
        f.max("attempt").alias("attempts"),
        f.min(sequence).alias("first_sequence"),
        f.max(sequence).alias("last_sequence"),
        f.min(begin).alias("begin_sequence"),
        f.max(begin).alias("begin_last_sequence"),
        f.min(end).alias("end_sequence"),
        f.max(end).alias("end_last_sequence"),
        f.max(f.when(role == Role.STEP.value, sequence)).alias("step_sequence"),
        *(_latest(f.col(name), sequence).alias(name) for name in ("key", "owner", "pipeline")),
        _latest(f.col("node"), sequence).alias("node"),
        _latest(f.col("event"), sequence).alias("last_event"),
        _latest(f.col("detail"), accept).alias("reference"),
        _latest(f.col("ending"), end).alias("outcome"),
        _latest(f.col("status"), end).alias("status"),
        # What was told with its acceptance is its reference, not what became of it.
        _latest(f.when(role != Role.ACCEPT.value, f.col("detail")), sequence).alias("detail"),
    ]
    for stage in STAGES:
        at_ms = f.when(f.col("stage") == stage, f.col("at_ms"))
        found += [f.min(at_ms).alias(f"{stage}_first_ms"), f.max(at_ms).alias(f"{stage}_last_ms")]
    return found


def _latest(value: Column, by: Column) -> Column:
    """The last value that was told: rows without one do not count."""
    from pyspark.sql import functions as f

    return f.max_by(value, f.when(value.isNotNull(), by))
