"""The lake's own jobs as a declarative pipeline: each table says what it is made of.

The functions are those that `angarium lake run` uses; here Spark finds out in which order to
run them. A table of your own is one more function: see `busy_hours`.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from angarium.lake.jobs import messages as message_jobs
from angarium.lake.jobs import statistics as statistics_jobs
from angarium.lake.jobs.events import deduplicated
from angarium.lake.schemas import EVENTS, INTERVALS_S
from angarium.lake.tables import Lake

LAKE = Lake(
    os.environ.get("ANGARIUM_LAKE_URL", ".angarium/lake"),
    os.environ.get("ANGARIUM_PREFIX", ""),
    int(os.environ.get("ANGARIUM_PARTITIONS", "1")),
)


def stored(name: str) -> DataFrame:
    """A table of the lake: its files, and the columns that are in their folders' names."""
    spark = SparkSession.active()
    return spark.read.option("basePath", LAKE.path(name)).parquet(*LAKE.files(name))


@dp.materialized_view
def events() -> DataFrame:
    return deduplicated(stored("events").select(*EVENTS.names))


@dp.materialized_view
def messages() -> DataFrame:
    return message_jobs.partial(SparkSession.active().read.table("events"))


@dp.materialized_view
def stats_coarse() -> DataFrame:
    events = SparkSession.active().read.table("events")
    return statistics_jobs.statistics(events, INTERVALS_S["stats_coarse"])


@dp.materialized_view
def busy_hours() -> DataFrame:
    """What an hour of the day brings, by room."""
    ended = SparkSession.active().read.table("messages").where("outcome is not null")
    hour = f.hour(f.timestamp_millis("ended_last_ms")).alias("hour")
    return ended.groupBy("room", hour).agg(
        f.count("*").alias("ended"), f.percentile_approx("latency_ms", 0.95).alias("p95_ms")
    )
