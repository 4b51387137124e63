"""An application with jobs in the lake: a table, a stream, and messages for dispatch."""

from __future__ import annotations

from pyspark.sql import DataFrame

from angarium import Angarium

app = Angarium()


@app.table("doubled", of="results")
def doubled(results: DataFrame) -> DataFrame:
    return results.selectExpr("message_id", "concat(message_id, message_id) as twice")


@app.stream("out", of="results")
def out(results: DataFrame) -> DataFrame:
    return results.select("message_id")


@app.stream(of="doubled", into="dispatch")
def again(doubled: DataFrame) -> DataFrame:
    return doubled.selectExpr("twice as payload")
