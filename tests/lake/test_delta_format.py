"""The format `angarium-delta`: what a Spark user reads and writes with it, each write once."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNull, LessThanOrEqual

from angarium.lake.sinks.delta_format import NAME, condition_of
from angarium.lake.tables import Lake
from tests.lake.kit import run_once
from tests.lake.test_tables import BY, DAY, lake, numbers, rows, table_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["lake"]


def read(spark: SparkSession, path: str, **options: object) -> DataFrame:
    reader = spark.read.format(NAME)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(path)


def test_a_table_of_the_lake_is_read_as_it_is(spark: SparkSession, lake: Lake) -> None:
    table = table_in(lake, spark)
    table.write(rows(spark, 0, 5, "a b/c%"), writer="w", batch=0)
    version = table.version()
    table.write(rows(spark, 5, 5, None), writer="w", batch=1)
    frame = read(spark, table.path)
    assert frame.schema == table.schema
    assert sorted(frame.collect()) == sorted(table.read(spark).collect())
    assert read(spark, table.path, version=version).count() == 5


def test_filters_choose_files(spark: SparkSession, lake: Lake) -> None:
    table = table_in(lake, spark)
    for batch, module in enumerate(("dispatch", "pickup", "dispatch")):
        table.write(rows(spark, 10 * batch, 10, module), writer="w", batch=batch)
    # A file that is not opened is not missed.
    chosen = {each.path for each in table.files({"module": ["pickup"]})}
    for each in table.files():
        if each.path not in chosen:
            (Path(table.path) / each.path).unlink()
    found = read(spark, table.path).where("module = 'pickup' and n < 13 and date = '2026-01-02'")
    assert sorted(row.n for row in found.collect()) == [10, 11, 12]


def test_filters_become_conditions_or_none() -> None:
    assert condition_of(EqualTo(("a",), "it's")) == "\"a\" = 'it''s'"
    assert condition_of(GreaterThan(("a",), 5)) == '"a" > 5'
    assert condition_of(LessThanOrEqual(("d",), DAY)) == "\"d\" <= '2026-01-02'"
    assert condition_of(In(("a",), (1, 2))) == '"a" in (1, 2)'
    assert condition_of(In(("a",), (1, None))) is None
    assert condition_of(EqualTo(("a", "b"), 1)) is None
    assert condition_of(EqualTo(("a",), datetime.datetime(2026, 1, 1))) is None
    assert condition_of(IsNull(("a",))) is None


def test_a_write_with_a_number_is_made_once(spark: SparkSession, lake: Lake) -> None:
    path = lake.path("mine")

    def write(first: int, batch: int, mode: str = "append") -> None:
        writer = rows(spark, first, 3).write.format(NAME).option("partitionBy", ",".join(BY))
        writer.option("appId", "me").option("batchId", batch).mode(mode).save(path)

    write(0, 0)
    write(0, 0)
    write(3, 1)
    assert sorted(row.n for row in read(spark, path).collect()) == [0, 1, 2, 3, 4, 5]
    write(9, 2, "overwrite")
    assert sorted(row.n for row in read(spark, path).collect()) == [9, 10, 11]
    rows(spark, 20, 1).write.format(NAME).mode("append").save(path)
    rows(spark, 20, 1).write.format(NAME).mode("append").save(path)
    assert read(spark, path).where("n = 20").count() == 2, "without a number, each write counts"


def test_a_stream_writes_each_batch_once(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = table_in(lake, spark)
    table.write(rows(spark, 0, 10), writer="w", batch=0)
    source, path = tmp_path / "in", lake.path("copy")
    rows(spark, 0, 10).write.parquet(str(source))
    frame = spark.readStream.schema(table.schema).parquet(str(source))
    run_once(frame, NAME, path, tmp_path / "checkpoint")
    # The commit of the batch is in the table, and Spark did not come to note that.
    for each in (tmp_path / "checkpoint" / "commits").iterdir():
        each.unlink()
    run_once(frame, NAME, path, tmp_path / "checkpoint")
    assert read(spark, path).count() == 10
    assert numbers(table, spark) == list(range(10))


def test_what_is_wrong_with_an_option_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no Delta table at"):
        read(spark, str(tmp_path / "nothing"))
    with pytest.raises(Exception, match="'x' is not a number"):
        read(spark, str(tmp_path), version="x")
