"""The lake's own functions as a declarative pipeline: each table says what it is made of.

The functions are those that `angarium lake run` uses; here Spark finds out in which order to
run them. A table of your own is one more function: see `busy_hours`.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from angarium.lake import gold, silver
from angarium.lake.schemas import INTERVALS_S, MESSAGES_OPEN
from angarium.lake.tables import Lake
from angarium.lake.views import table_of
from angarium.settings import load

LAKE = Lake.of(load())


def read(name: str) -> DataFrame:
    return SparkSession.active().read.table(name)


@dp.materialized_view
def events() -> DataFrame:
    return table_of(LAKE, "events").read(SparkSession.active())


@dp.temporary_view
def current() -> DataFrame:
    """All messages, ended or open: nothing is open before the first event."""
    spark = SparkSession.active()
    nothing = spark.createDataFrame([], MESSAGES_OPEN.struct())
    return silver.next_messages(read("events"), silver.catalogue(spark), nothing)


@dp.materialized_view
def messages() -> DataFrame:
    return silver.ended(read("current"))


@dp.materialized_view
def messages_open() -> DataFrame:
    return silver.still_open(read("current"))


@dp.materialized_view
def stats_coarse() -> DataFrame:
    return gold.merged(gold.statistics(read("events"), INTERVALS_S["stats_coarse"]))


@dp.materialized_view
def latency() -> DataFrame:
    return gold.latency(read("messages"))


@dp.materialized_view
def busy_hours() -> DataFrame:
    """What an hour of the day brings, by module."""
    hour = f.hour(f.timestamp_millis("ended_ms")).alias("hour")
    return (
        read("messages")
        .groupBy("module", hour)
        .agg(f.count("*").alias("ended"), f.percentile_approx("latency_ms", 0.95).alias("p95_ms"))
    )
