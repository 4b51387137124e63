"""Gold: counts, latencies and balances. Functions DataFrame -> DataFrame.

Statistics are sums by window, so counts of later batches are added to windows that are there.
Latency, balances and the busiest keys follow from a day's rows of `messages` and are made anew for
days that changed. The audit's rules look at single rows of messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from angarium.lake.bronze import expressions_of
from angarium.lake.catalogue import ONCE, OUTCOMES
from angarium.lake.schemas import (
    BALANCES,
    BUSIEST,
    INTERVALS_S,
    LATENCY,
    SEQUENCES,
    STATS_FINE,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Reported in the journal, but nothing that happened to a transaction: the scripts don't count it.
NOT_COUNTED = ("pipeline_stored",)
FINE_S = INTERVALS_S[STATS_FINE.name]
LATENCY_S = 100
WINDOW_S = 1_000
KEYS_PER_DAY = 50
WINDOW = ("start_s", "module", "account")


# Statistics


def statistics(events: DataFrame, interval_s: int = FINE_S) -> DataFrame:
    """Each event as a count of its window, cut as the scripts of transactions cut theirs."""
    names = ", ".join(f"'{each}'" for each in NOT_COUNTED)
    counted = events.where(f"not (module = 'transactions' and event in ({names}))")
    return counted.selectExpr(
        f"cast(floor(at_ms / {1_000 * interval_s}) * {interval_s} as bigint) as start_s",
        "module",
        "case when module = 'transactions' then coalesce(key, '') else '' end as node_group",
        "coalesce(pipeline, '') as pipeline",
        "coalesce(owner, '') as owner",
        "event",
        "1L as count",
    )


def in_all_windows(fine: DataFrame) -> DataFrame:
    """Counts of the shortest windows once for each table of statistics, in its windows."""
    tables = ", ".join(f"struct('{name}', {size}L)" for name, size in INTERVALS_S.items())
    rows = fine.selectExpr("*", f"inline(array({tables})) as (table, interval_s)")
    names = [name for name in fine.columns if name != "start_s"]
    start = "cast(floor(start_s / interval_s) * interval_s as bigint) as start_s"
    return rows.selectExpr("table", start, *names)


def of_table(rows: DataFrame, name: str) -> DataFrame:
    return rows.selectExpr(f"'{name}' as table", *rows.columns)


def merged(rows: DataFrame, *more_keys: str) -> DataFrame:
    """Counts of the same window and names, added up."""
    from pyspark.sql import functions as f

    return rows.groupBy(*STATS_FINE.key, *more_keys).agg(f.expr("sum(count) as count"))


def closed_before(rows: DataFrame, closed_s: Mapping[str, int]) -> DataFrame:
    """With the day of windows that ended before their table's time; later ones may still grow.

    Rows of tables without a time are left out.
    """
    cases = " ".join(
        f"when '{name}' then {closed - INTERVALS_S[name]}L" for name, closed in closed_s.items()
    )
    day = (
        f"case when start_s <= case table {cases} end then to_date(timestamp_seconds(start_s)) end"
    )
    names = ", ".join(f"'{name}'" for name in closed_s)
    return rows.where(f"table in ({names})").selectExpr(
        "table", *expressions_of(STATS_FINE, {"date": day})
    )


def start_of(column: str, interval_s: int, unit: int = 1) -> Column:
    from pyspark.sql import functions as f

    return (f.floor(f.col(column) / (unit * interval_s)) * interval_s).cast("bigint")


# From a day's messages


def latency(messages: DataFrame) -> DataFrame:
    """How many ended in each window, and how long they took."""
    from pyspark.sql import functions as f

    def share(number: float) -> Column:
        return f.expr(f"percentile_disc({number}) within group (order by latency_ms)")

    return (
        messages.groupBy(
            "date", start_of("ended_ms", LATENCY_S, 1_000).alias("start_s"), "module", "account"
        )
        .agg(
            f.count("*").alias("ended"),
            f.count_if(f.col("outcome") == "delivered").alias("delivered"),
            f.sum("retries").alias("retries"),
            share(0.5).alias("p50_ms"),
            share(0.95).alias("p95_ms"),
            share(0.99).alias("p99_ms"),
            f.max("latency_ms").alias("max_ms"),
        )
        .selectExpr(*expressions_of(LATENCY, {}))
    )


def busiest(messages: DataFrame) -> DataFrame:
    """Of each day and account the keys with the most messages, the slowest, the most retried."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    sums = (
        messages.where("key is not null")
        .groupBy("date", "module", "account", "key")
        .agg(
            f.count("*").alias("messages"),
            f.sum("retries").alias("retries"),
            f.count_if(f.col("outcome") == "dead").alias("dead"),
            f.max("latency_ms").alias("max_ms"),
        )
    )
    account = Window.partitionBy("date", "module", "account")
    kept = f.lit(False)
    for measure in ("messages", "retries", "max_ms"):
        place = f.row_number().over(account.orderBy(f.desc_nulls_last(measure), "key"))
        sums = sums.withColumn(f"by_{measure}", place)
        kept = kept | (f.col(f"by_{measure}") <= KEYS_PER_DAY)
    return sums.where(kept).selectExpr(*expressions_of(BUSIEST, {}))


# The audit's rules


def sequences(events: DataFrame, known: DataFrame) -> DataFrame:
    """Stretches of running numbers without a gap: those that were known, and these events."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    numbers = events.groupBy("partition", "sequence").agg(f.count("*").alias("events"))
    singles = numbers.select(
        "partition", f.col("sequence").alias("first_sequence"),
        f.col("sequence").alias("last_sequence"), "events",
    )  # fmt: skip
    ordered = Window.partitionBy("partition").orderBy("first_sequence", "last_sequence")
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    reach = f.max("last_sequence").over(before)
    apart = f.coalesce(f.col("first_sequence") > reach + 1, f.lit(True)).cast("int")
    numbered = singles.unionByName(known).withColumn("apart", apart)
    stretch = f.sum("apart").over(ordered)
    return (
        numbered.withColumn("stretch", stretch)
        .groupBy("partition", "stretch")
        .agg(
            f.min("first_sequence").alias("first_sequence"),
            f.max("last_sequence").alias("last_sequence"),
            f.sum("events").alias("events"),
        )
        .selectExpr(*expressions_of(SEQUENCES, {}))
    )


def verdicts(messages: DataFrame, sequences: DataFrame) -> DataFrame:
    """What each row is: finished, in flight or unexplained; whether doubled or out of order.

    A message whose first event is no beginning began before the lake did, where the lake lacks the
    journal's first numbers. A subject of 40 letters in routing is the hash of a message without an
    id: equal messages share it.
    """
    from pyspark.sql import functions as f

    starts = sequences.groupBy("partition").agg(f.min("first_sequence").alias("lake_first"))
    counted = messages.join(f.broadcast(starts), "partition", "left")
    zero, nothing = f.lit(0), f.lit(False)
    from_before = (f.coalesce("lake_first", f.lit(1)) > 1) & (
        f.coalesce(f.col("first_sequence") < f.col("begin_sequence"), f.lit(True))
    )
    begins = f.col("accepts") + f.col("reopens") + f.when(from_before, 1).otherwise(0)
    hashed = (f.col("module") == "routing") & (f.length("subject") == 40)
    once = f.lit(False)
    for module, account in ONCE:
        once = once | ((f.col("module") == module) & (f.col("account") == account))
    state = (
        f.when((begins == zero) & (f.col("announces") > 0) & (f.col("ends") == 0), "in_flight")
        .when(begins == zero, "unexplained")
        .when(begins > f.col("ends"), "in_flight")
        .otherwise("finished")
    )
    doubled = (
        ~hashed
        & (begins > 0)
        & (
            (f.col("ends") > begins)
            | (begins - f.col("ends") > 1)
            | ((f.col("accepts") > 1) & once)
        )
    )
    out_of_order = (
        ~hashed
        & ~from_before
        & (f.col("accepts") + f.col("reopens") > 0)
        & (
            (f.col("first_sequence") < f.col("begin_sequence"))
            | f.coalesce(f.col("end_sequence") < f.col("begin_sequence"), nothing)
            | f.coalesce(f.col("step_sequence") > f.col("end_last_sequence"), nothing)
        )
    )
    return counted.select(
        "*",
        f.coalesce("accepted_ms", "first_ms").alias("since_ms"),
        state.alias("state"),
        f.coalesce(doubled, nothing).alias("doubled"),
        f.coalesce(out_of_order, nothing).alias("out_of_order"),
        (from_before & (f.col("accepts") + f.col("reopens") == 0)).alias("earlier"),
    )


def balance(verdicts: DataFrame, *more_keys: str) -> DataFrame:
    """Accepted, finished, in flight and what does not fit, by window, module and account.

    A column `missing` marks what is in flight by its row, and is not there.
    """
    from pyspark.sql import functions as f

    missing = f.col("missing") if "missing" in verdicts.columns else f.lit(False)
    in_flight = f.col("state") == "in_flight"
    finished = f.col("state") == "finished"
    return verdicts.groupBy(
        start_of("since_ms", WINDOW_S, 1_000).alias("start_s"), "module", "account", *more_keys
    ).agg(
        f.count_if(f.col("accepts") > 0).alias("accepted"),
        *(f.count_if(finished & (f.col("outcome") == each)).alias(each) for each in OUTCOMES),
        f.count_if(in_flight & ~missing).alias("in_flight"),
        f.count_if((f.col("state") == "unexplained") | (in_flight & missing)).alias("unexplained"),
        f.count_if("doubled").alias("doubled"),
        f.count_if("out_of_order").alias("out_of_order"),
        f.count_if("earlier").alias("earlier"),
    )


def balances(verdicts: DataFrame, digests: DataFrame) -> DataFrame:
    """The balance of each day's ended messages, with the digest of the files it comes from."""
    rows = balance(verdicts, "date").join(digests, "date")
    return rows.selectExpr(*expressions_of(BALANCES, {}))


def accepted_again(messages: DataFrame) -> DataFrame:
    """Ids that may be accepted once in all time, and were more often, in rows of their own."""
    from pyspark.sql import functions as f

    once = f.lit(False)
    for module, account in ONCE:
        once = once | ((f.col("module") == module) & (f.col("account") == account))
    rows = messages.where(once & (f.col("accepts") > 0))
    return (
        rows.groupBy("partition", "module", "account", "subject")
        .agg(f.count("*").alias("rows"), f.max_by("key", "last_sequence").alias("key"))
        .where("rows > 1")
    )
