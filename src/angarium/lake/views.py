"""The lake's tables as views of a Spark session: `spark.sql("select … from messages")`.

A view is the table as it was when the views were made: a Parquet scan over the files that its log
had then, with Spark's pruning of columns and partitions. `show_tables` makes them anew.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from angarium.lake.tables import Lake, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def table_of(lake: Lake, name: str) -> LakeTable:
    """A table that is there, ours or a user's, as its log describes it."""
    from pyspark.sql.types import StructType

    found = lake.need(name)
    schema = StructType.fromJson(json.loads(found.schema().to_json()))
    return LakeTable(lake, name, schema, tuple(found.metadata().partition_columns))


def show_tables(spark: SparkSession, lake: Lake) -> list[str]:
    """Make a view of each table that is there, in place of older ones; their names."""
    names = lake.existing()
    for name in names:
        table_of(lake, name).read(spark).createOrReplaceTempView(name)
    return names
