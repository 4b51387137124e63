"""The contract of a lake's table: a batch once, a commit whole, a reader that sees only commits."""

from __future__ import annotations

import datetime
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from angarium.lake.errors import LakeMismatch, TableConflict, TableUnwritable
from angarium.lake.tables import Lake, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = datetime.date(2026, 1, 2)
BY = ("date", "module")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def rows(spark: SparkSession, first: int, count: int, module: str | None = "dispatch") -> DataFrame:
    from pyspark.sql import functions as f

    return spark.range(first, first + count, numPartitions=1).select(
        f.col("id").alias("n"),
        f.concat(f.lit("t"), "id").alias("text"),
        f.struct(f.col("id").alias("sequence"), f.lit("x").alias("status")).alias("latest"),
        f.lit(DAY).alias("date"),
        f.lit(module).cast("string").alias("module"),
    )


def table_in(
    lake: Lake, spark: SparkSession, name: str = "events", by: tuple[str, ...] = BY
) -> LakeTable:
    return LakeTable(lake, name, rows(spark, 0, 0).schema, by)


def numbers(table: LakeTable, spark: SparkSession) -> list[int]:
    return sorted(row.n for row in table.read(spark).select("n").collect())


def test_a_batch_is_in_the_table_once_however_often_it_is_written(
    spark: SparkSession, lake: Lake
) -> None:
    table = table_in(lake, spark)
    assert table.last_batch("journal") is None
    assert table.read(spark).count() == 0
    first = table.write(rows(spark, 0, 10), writer="journal", batch=0)
    assert (first.added, first.rows, first.files) == (True, 10, 1)
    again = table.write(rows(spark, 0, 10), writer="journal", batch=0)
    assert (again.added, again.version) == (False, first.version)
    assert table.write(rows(spark, 10, 10), writer="journal", batch=1).added
    assert not table_in(lake, spark).write(rows(spark, 0, 10), writer="journal", batch=0).added
    assert table.write(rows(spark, 20, 1), writer="another", batch=0).added
    assert numbers(table, spark) == list(range(21))
    assert (table.last_batch("journal"), table.last_batch("another")) == (1, 0)


@pytest.mark.parametrize("by", [(), ("module",), BY])
def test_an_empty_frame_adds_no_row_and_no_commit(
    spark: SparkSession, lake: Lake, by: tuple[str, ...]
) -> None:
    table = table_in(lake, spark, by=by)
    table.write(rows(spark, 0, 3), writer="w", batch=0)
    version = table.version()
    result = table.write(rows(spark, 0, 0), writer="w", batch=1)
    assert (result.added, result.version) == (False, version)
    assert table.write(rows(spark, 3, 2), writer="w", batch=1).added
    assert numbers(table, spark) == [0, 1, 2, 3, 4]


def test_marks_stand_in_the_same_commit(spark: SparkSession, lake: Lake) -> None:
    table = table_in(lake, spark)
    table.write(rows(spark, 0, 1), writer="w", batch=0, marks={"journal:0": 77})
    assert table.last_batch("journal:0") == 77
    assert table.write(rows(spark, 0, 0), writer="w", batch=1, marks={"journal:0": 99}).added
    assert table.last_batch("journal:0") == 99


def test_partition_values_come_back_as_they_were(spark: SparkSession, lake: Lake) -> None:
    table = table_in(lake, spark)
    odd = ["a b/c%=é", "x:y*?", 'q"[1]{2}^#', None]
    for batch, module in enumerate(odd):
        table.write(rows(spark, 10 * batch, 5, module), writer="w", batch=batch)
    found = table.read(spark).groupBy("date", "module").count().collect()
    assert {(row.date, row.module, row["count"]) for row in found} == {(DAY, m, 5) for m in odd}
    assert {each.partition_values["module"] for each in table.files()} == set(odd)
    others = DeltaTable(table.path).to_pyarrow_table(columns=["n", "module"])
    assert set(others["module"].to_pylist()) == set(odd)


def test_a_reader_prunes_columns_partitions_and_files(spark: SparkSession, lake: Lake) -> None:
    table = table_in(lake, spark)
    table.write(rows(spark, 0, 100), writer="w", batch=0)
    table.write(rows(spark, 100, 100), writer="w", batch=1)
    table.write(rows(spark, 200, 100, "pickup"), writer="w", batch=2)
    chosen = table.read(spark).where("module = 'pickup'").select("text")
    plan = chosen._jdf.queryExecution().toString()
    assert "PartitionFilters: [isnotnull(module" in plan
    assert "ReadSchema: struct<text:string>" in plan
    assert chosen.count() == 100
    found = table.read(spark, matching="n = 150")
    assert [row.text for row in found.collect()] == ["t150"]
    assert len(found.inputFiles()) == 1


def test_replacing_a_partition_removes_its_rows_and_no_others(
    spark: SparkSession, lake: Lake
) -> None:
    table = table_in(lake, spark)
    both = rows(spark, 0, 5, "a b/c").unionByName(rows(spark, 100, 5, "pickup"))
    table.write(both, writer="w", batch=0)
    frame, where = rows(spark, 50, 2, "a b/c"), {"module": ["a b/c"]}
    done = table.replace(frame, writer="state", batch=0, where=where)
    assert (done.rows, done.files_removed) == (2, 1)
    assert numbers(table, spark) == [50, 51, 100, 101, 102, 103, 104]
    assert not table.replace(frame, writer="state", batch=0, where=where).added
    # A frame that is made from the rows it replaces, and one that leaves none.
    kept = table.read(spark).where("module = 'a b/c' and n = 50")
    table.replace(kept, writer="state", batch=1, where=where, read_version=table.version())
    assert numbers(table, spark) == [50, 100, 101, 102, 103, 104]
    table.replace(rows(spark, 0, 0), writer="state", batch=2, where=where)
    assert numbers(table, spark) == [100, 101, 102, 103, 104]
    assert table.read(spark, version=done.version).count() == 7


def test_overwriting_leaves_only_the_new_rows(spark: SparkSession, lake: Lake) -> None:
    table = table_in(lake, spark)
    table.write(rows(spark, 0, 5), writer="w", batch=0)
    table.write(rows(spark, 7, 2, "pickup"), writer="w", batch=1, mode="overwrite")
    assert numbers(table, spark) == [7, 8]
    table.write(rows(spark, 0, 0), writer="w", batch=2, mode="overwrite")
    assert numbers(table, spark) == []


def test_a_partition_that_was_written_meanwhile_is_not_replaced(
    spark: SparkSession, lake: Lake
) -> None:
    table, other = table_in(lake, spark), table_in(lake, spark)
    table.write(rows(spark, 0, 5), writer="w", batch=0)
    version = table.version()
    kept = table.read(spark).where("n < 2")
    other.write(rows(spark, 90, 1), writer="x", batch=0)
    where = {"module": ["dispatch"]}
    with pytest.raises(TableConflict, match="another writer changed the partitions"):
        table.replace(kept, writer="state", batch=0, where=where, read_version=version)
    assert numbers(table, spark) == [0, 1, 2, 3, 4, 90]
    assert len(list(Path(table.path).rglob("*.parquet"))) == len(table.files()) == 2


def test_two_writers_of_the_same_batch_leave_it_once(spark: SparkSession, lake: Lake) -> None:
    table_in(lake, spark).write(rows(spark, 0, 1), writer="w", batch=0)
    for batch in range(1, 6):
        start, problems = threading.Barrier(2), list[Exception]()

        def write(
            batch: int = batch,
            start: threading.Barrier = start,
            problems: list[Exception] = problems,
        ) -> None:
            table = table_in(lake, spark)
            start.wait()
            try:
                table.write(rows(spark, batch, 1), writer="w", batch=batch)
            except TableConflict as error:
                problems.append(error)

        threads = [threading.Thread(target=write) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(problems) <= 1, problems
    assert numbers(table_in(lake, spark), spark) == list(range(6))


def test_writers_of_their_own_batches_do_not_lose_each_others_rows(
    spark: SparkSession, lake: Lake
) -> None:
    table = table_in(lake, spark)
    table.write(rows(spark, 0, 0), writer="w", batch=0)

    def write(number: int) -> None:
        for batch in range(3):
            first = 100 * number + batch
            table.write(rows(spark, first, 1), writer=f"w{number}", batch=batch)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(table, spark) == sorted(100 * n + b for n in range(4) for b in range(3))


def test_a_write_that_failed_is_not_seen_and_vacuum_removes_what_it_left(
    spark: SparkSession, lake: Lake
) -> None:
    table = table_in(lake, spark)
    table.write(rows(spark, 0, 10), writer="w", batch=0)
    table.write_files(rows(spark, 500, 10))  # the driver died before its commit
    scratch = Path(table.path) / "w=0123/_temporary/0/task_1"
    scratch.mkdir(parents=True)
    (scratch / "part-0.parquet").write_bytes(b"half")
    assert numbers(table, spark) == list(range(10))
    assert table.vacuum(hours=0) >= 1
    folders = [each.name for each in Path(table.path).iterdir() if each.name != "_delta_log"]
    assert len(folders) == 1
    assert len(list(Path(table.path).rglob("*.parquet"))) == 1
    assert numbers(table, spark) == list(range(10))


def test_what_a_task_raises_leaves_no_row(spark: SparkSession, lake: Lake) -> None:
    from pyspark.sql import functions as f

    table = table_in(lake, spark)
    table.write(rows(spark, 0, 3), writer="w", batch=0)
    wrong = rows(spark, 0, 9).withColumn(
        "text", f.when(f.col("n") < 8, f.col("text")).otherwise(f.raise_error(f.lit("bad row")))
    )
    with pytest.raises(Exception, match="bad row"):
        table.write(wrong, writer="w", batch=1)
    assert numbers(table, spark) == [0, 1, 2]
    assert table.last_batch("w") == 0
    assert table.write(rows(spark, 3, 1), writer="w", batch=1).added


def test_the_log_has_each_files_range_of_the_named_columns(spark: SparkSession, lake: Lake) -> None:
    table = LakeTable(lake, "events", rows(spark, 0, 0).schema, BY, statistics=("n", "text"))
    table.write(rows(spark, 5, 10), writer="w", batch=0)
    log = sorted((Path(table.path) / "_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    stats = json.loads(next(each["add"]["stats"] for each in actions if "add" in each))
    assert stats == {
        "numRecords": 10,
        "minValues": {"n": 5, "text": "t10"},
        "maxValues": {"n": 14, "text": "t9"},
        "nullCount": {"n": 0, "text": 0},
    }


def test_a_column_that_comes_later_is_null_in_old_rows(spark: SparkSession, lake: Lake) -> None:
    from pyspark.sql import functions as f

    table_in(lake, spark).write(rows(spark, 0, 2), writer="w", batch=0)
    wider = rows(spark, 2, 2).withColumn("more", f.lit("x"))
    table = LakeTable(lake, "events", wider.schema, BY)
    table.write(wider, writer="w", batch=1)
    found = table.read(spark).orderBy("n").collect()
    assert [row.more for row in found] == [None, None, "x", "x"]


def test_rows_that_somebody_else_wrote_are_read_too(spark: SparkSession, lake: Lake) -> None:
    table = table_in(lake, spark)
    table.write(rows(spark, 0, 2), writer="w", batch=0)
    write_deltalake(table.path, rows(spark, 50, 2, "by hand").toArrow(), mode="append")
    found = {(row.n, row.module, row.date) for row in table.read(spark).collect()}
    assert found == {
        (0, "dispatch", DAY), (1, "dispatch", DAY), (50, "by hand", DAY), (51, "by hand", DAY)
    }  # fmt: skip


def test_a_table_that_was_removed_and_made_anew_is_seen_as_it_is(
    spark: SparkSession, lake: Lake
) -> None:
    import shutil

    table = table_in(lake, spark)
    for batch in range(3):
        table.write(rows(spark, batch, 1), writer="w", batch=batch)
    shutil.rmtree(table.path)
    assert table.write(rows(spark, 9, 1), writer="w", batch=0).added
    assert numbers(table, spark) == [9]


def test_a_lake_has_one_id_and_lists_its_tables(spark: SparkSession, lake: Lake) -> None:
    assert lake.existing() == []
    assert lake.identity() == Lake(lake.url).identity()
    table_in(lake, spark).write(rows(spark, 0, 2), writer="w", batch=0)
    assert lake.existing() == ["events"]
    assert lake.rows("events") == 2
    with pytest.raises(LakeMismatch, match="belongs to the keyspace with prefix ''"):
        Lake(lake.url, prefix="other:").identity()
    with pytest.raises(LakeMismatch, match="made for 1 partitions, the settings say 4"):
        table_in(Lake(lake.url, partitions=4), spark).read(spark)
    write_deltalake(lake.path("theirs"), rows(spark, 0, 1).toArrow())
    with pytest.raises(LakeMismatch, match="not made by Angarium"):
        lake.check()


def test_a_table_with_features_that_readers_do_not_know_is_refused(
    spark: SparkSession, lake: Lake
) -> None:
    table = table_in(lake, spark)
    table.write(rows(spark, 0, 2), writer="w", batch=0)
    DeltaTable(table.path).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(LakeMismatch, match=r"given 'events' features of Delta .*deletionVectors"):
        table.read(spark)


def test_no_space_left_is_told_in_words_that_help() -> None:
    from angarium.lake.delta_log import unwritable

    told = unwritable("lake/events", OSError(28, "No space left on device"))
    assert isinstance(told, TableUnwritable)
    assert "lake/events: its disk is full; free some space and start again" in str(told)
