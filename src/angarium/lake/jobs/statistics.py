"""Counts of events by window, room, node group, pipeline and owner.

Windows are cut by event time, the Redis time of the transition, exactly as the scripts of the
transactions room cut theirs; so a closed window has the same counts here and there. Rows of one
window that come with later batches are added to it: nothing is ever too late to be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium.lake.schemas import STATS_FINE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY = list(STATS_FINE.key)
# Told in the journal, but nothing that happened to a transaction: the scripts don't count it.
NOT_COUNTED = ("pipeline_stored",)


def statistics(events: DataFrame, interval_s: int) -> DataFrame:
    """The counts of a batch."""
    from pyspark.sql import functions as f

    start_s = f.floor(f.col("at_ms") / 1000 / interval_s) * interval_s
    of_transactions = f.col("room") == "transactions"
    return (
        events.where(~(of_transactions & f.col("event").isin(*NOT_COUNTED)))
        .withColumn("start_s", start_s.cast("long"))
        .withColumn("node_group", f.when(of_transactions, f.col("key")))
        .groupBy(
            "start_s",
            "room",
            *(
                f.coalesce(name, f.lit("")).alias(name)
                for name in ("node_group", "pipeline", "owner")
            ),
            "event",
        )
        .agg(f.count("*").alias("count"))
        .select(*STATS_FINE.names)
    )


def combined(rows: DataFrame) -> DataFrame:
    """Counts of the same window and names, added up."""
    from pyspark.sql import functions as f

    return rows.groupBy(*KEY).agg(f.sum("count").alias("count")).select(*STATS_FINE.names)
