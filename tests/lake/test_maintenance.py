"""A table's upkeep: files put together, old rows let go, a person's rows erased; no others."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchmarks import lake_growth

from angarium.lake import maintenance
from angarium.lake.delta_log import LOG, REMOVED, DataFile
from angarium.lake.errors import TableConflict
from angarium.lake.tables import Lake, LakeTable
from tests.lake.test_tables import lake as lake
from tests.lake.test_tables import numbers, rows, table_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIB = 1024


def sized(sizes: dict[str, list[int]]) -> list[DataFile]:
    return [
        DataFile(f"{module}{n}", size, 1, {"module": module})
        for module, of in sizes.items()
        for n, size in enumerate(of)
    ]


def chosen(sizes: dict[str, list[int]], **options: bool) -> list[str]:
    return sorted(each.path for each in maintenance.chosen_files(sized(sizes), 3, **options))


def test_files_are_chosen_where_enough_have_one_size() -> None:
    small, middle, large = 10 * KIB, 300 * KIB, 100 << 20
    assert chosen({"a": [small] * 2, "b": [small]}) == []
    assert chosen({"a": [small] * 3, "b": [small]}) == ["a0", "a1", "a2"]
    assert chosen({"a": [small] * 3 + [middle] * 2}) == ["a0", "a1", "a2"]
    assert chosen({"a": [small] + [middle] * 3}) == ["a0", "a1", "a2", "a3"]
    assert chosen({"a": [large] * 5 + [small]}) == []


def test_one_pass_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PASS_BYTES_MAX", 35 * KIB)
    assert chosen({"a": [10 * KIB] * 9}) == ["a0", "a1", "a2"]


def test_small_files_become_one_and_the_rows_stay(spark: SparkSession, lake: Lake) -> None:
    table = table_in(lake, spark)
    for batch in range(8):
        table.write(rows(spark, 10 * (8 - batch), 10), writer="w", batch=batch)
    table.write(rows(spark, 500, 10, "pickup"), writer="w", batch=8)
    before = numbers(table, spark)
    done = table.compact(spark, sort_by=("n",))
    assert (done.files_before, done.files_after) == (8, 1)
    assert numbers(table, spark) == before
    assert len(table.files()) == 2, "the partition with one file is left alone"
    assert [row.n for row in table.read(spark).where("module = 'dispatch'").collect()] == sorted(
        range(10, 90)
    )
    assert table.compact(spark) == maintenance.Compacted()
    assert not table.write(rows(spark, 0, 1), writer="w", batch=8).added, (
        "what was written is known"
    )
    assert len(list(Path(table.path).rglob("*.parquet"))) == 10
    table.vacuum(hours=0)
    assert len(list(Path(table.path).rglob("*.parquet"))) == 2
    assert numbers(table, spark) == before


def test_a_reader_from_before_still_reads_what_was_put_together(
    spark: SparkSession, lake: Lake
) -> None:
    table = table_in(lake, spark)
    for batch in range(8):
        table.write(rows(spark, batch, 1), writer="w", batch=batch)
    frame = table.read(spark)
    table.compact(spark)
    maintenance.clean(table)
    assert frame.count() == 8


def test_what_was_compacted_by_two_is_there_once(spark: SparkSession, lake: Lake) -> None:
    table, other = table_in(lake, spark), table_in(lake, spark)
    for batch in range(8):
        table.write(rows(spark, batch, 1), writer="w", batch=batch)
    files = other.files()
    made = other.write_files(other.frame(spark, files))
    assert table.compact(spark).files_after == 1
    with pytest.raises(TableConflict, match="another writer changed the table"):
        other.commit_files(made, files, news=False)
    assert numbers(table, spark) == list(range(8))
    assert len(list(Path(table.path).rglob("*.parquet"))) == 9, "the loser's file is gone"


def test_of_two_that_remove_files_at_the_same_moment_one_wins(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = table_in(lake, spark), table_in(lake, spark)
    for batch in range(8):
        table.write(rows(spark, batch, 1), writer="w", batch=batch)
    files = other.files()
    made = other.write_files(other.frame(spark, files))
    snapshot = other.log.open()
    assert table.compact(spark).files_after == 1
    monkeypatch.setattr(other.log, "open", lambda: snapshot)  # it looked just before
    with pytest.raises(TableConflict, match="Concurrent transaction"):
        other.commit_files(made, files, news=False)
    assert numbers(table, spark) == list(range(8))


def test_old_days_are_let_go_without_reading(spark: SparkSession, lake: Lake) -> None:
    from pyspark.sql import functions as f

    table = table_in(lake, spark)
    day = datetime.date(2026, 1, 1)
    for n in range(5):
        frame = rows(spark, n, 1).withColumn("date", f.lit(day + datetime.timedelta(days=n)))
        table.write(frame, writer="w", batch=n)
    now = datetime.datetime(2026, 1, 5, 12, tzinfo=datetime.UTC).timestamp()
    assert maintenance.retain(table, 2, now_s=now) == 2
    assert numbers(table, spark) == [2, 3, 4]
    assert maintenance.retain(table, 2, now_s=now) == 0


def test_old_rows_are_let_go_by_a_column_that_tells_the_time(
    spark: SparkSession, lake: Lake
) -> None:
    frame = spark.createDataFrame([(0, 1)], "start_s long, count long")
    table = LakeTable(lake, "stats_fine", frame.schema)
    for n in range(4):
        made = [(86_400 * n, n), (86_400 * n + 5, n)]
        table.write(spark.createDataFrame(made, frame.schema), writer="w", batch=n)
    assert maintenance.retain(table, 1, column="start_s", now_s=86_400 * 3) == 4
    assert sorted(row["count"] for row in table.read(spark).collect()) == [2, 2, 3, 3]


def test_log_files_and_folders_stay_as_many_however_many_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_growth, "COMMITS_PER_CLEANING", 1 << 30)
    table = lake_growth.Table(tmp_path / "table")
    opened = table.log.open()
    assert opened is not None
    opened.alter.set_table_properties(dict.fromkeys((LOG, REMOVED), "interval 0 seconds"))
    for _ in range(3):
        for _ in range(120):
            table.write("2026-01-01")
        table.log.cleanup()
        table.log.vacuum(0)
        found = table.figures()
        assert found["log_files"] < 120, "entries since the last checkpoint, and their like"
        assert found["table_files"] < 3 * len(lake_growth.MODULES) * maintenance.FILES_PER_SIZE
        assert found["folders"] <= found["table_files"] + 1, "one for each file, and the log"


def everything_in(path: str) -> Iterator[bytes]:
    for each in Path(path).rglob("*"):
        if each.is_file():
            yield str(each).encode() + each.read_bytes()
            if each.suffix == ".parquet":  # compressed: see its values, too
                import pyarrow.parquet as pq

                yield json.dumps(
                    pq.read_table(each, partitioning=None).to_pylist(), default=str
                ).encode()


def test_an_erased_key_is_in_no_file_and_no_log(spark: SparkSession, lake: Lake) -> None:
    from pyspark.sql import functions as f

    table = table_in(lake, spark)
    for batch in range(3):
        frame = rows(spark, 10 * batch, 10, f"m{batch}")
        if batch != 1:
            secret = f.when(f.col("n") % 10 == 9, f.lit("person-4711")).otherwise(f.col("text"))
            frame = frame.withColumn("text", secret)
        table.write(frame, writer="w", batch=batch)
    untouched = {e.path for e in table.files() if e.partition_values["module"] == "m1"}
    assert any(b"person-4711" in each for each in everything_in(table.path))
    done = maintenance.erase(table, spark, f.col("text") == "person-4711", "text = 'person-4711'")
    assert (done.rows, done.files) == (2, 2)
    maintenance.clean(table, everything=True)
    assert not any(b"person-4711" in each for each in everything_in(table.path))
    assert untouched <= {each.path for each in table.files()}, "only files that held it changed"
    assert numbers(table, spark) == [n for n in range(30) if n not in (9, 29)]
    assert table_in(lake, spark).last_batch("w") == 2
    assert (
        maintenance.erase(table, spark, f.col("text") == "person-4711", "text = 'person-4711'")
        == maintenance.Erased()
    )
