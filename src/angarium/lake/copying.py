"""The journal copied into the tables `events` and `rejects`, as fast as it can be.

Each batch is in each table once: its number stands in the table's log under the id of the query,
which its checkpoint keeps. For tables that are more than a copy, use the format `redis-stream` and
transform its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from angarium.lake.schemas import EVENTS, REJECTS
from angarium.lake.sinks.delta import commit_files
from angarium.lake.sources.files import written_by
from angarium.runtime.errors import Conflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUERY_ID = "sql.streaming.queryId"


def copy_journal(
    spark: SparkSession,
    lake: str,
    checkpoint: str,
    options: Mapping[str, str],
    *,
    once: bool = False,
) -> StreamingQuery:
    """A query that runs until it is stopped, or with `once` to the journal's present end.

    `options` are those of `redis-stream`, without `decode` and `into`.
    """

    def store(frame: DataFrame, batch_id: int) -> None:
        app_id = spark.sparkContext.getLocalProperty(QUERY_ID)
        if not app_id:  # another query's batches would pass for this one's
            raise Conflict("Spark does not say which query this batch belongs to")
        files = written_by(frame.collect()).files
        for table in (REJECTS, EVENTS):
            if table.name in files:
                commit_files(
                    f"{lake}/{table.name}",
                    table.arrow(),
                    files[table.name],
                    app_id,
                    batch_id,
                    table.partition_by,
                )

    reader = spark.readStream.format("redis-stream").options(**options)
    frame = reader.option("decode", "journal").option("into", lake).load()
    writer = frame.writeStream.foreachBatch(store).option("checkpointLocation", checkpoint)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="0 seconds").start()
