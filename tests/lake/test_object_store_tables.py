"""The contract of a lake's table in an object store that Java has no connector for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable

from angarium.lake import maintenance
from angarium.lake.delta_log import filesystem_of
from angarium.lake.tables import Lake
from tests.lake.store import Store
from tests.lake.store import store as store
from tests.lake.test_tables import numbers, rows, table_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def place(store: Store, request: pytest.FixtureRequest) -> Lake:
    """Neither this process nor Spark's have anything of the store in their environment."""
    return Lake(f"s3://bucket/{request.node.name}", storage=store.environment)


def test_tables_are_written_read_compacted_and_cleaned_there(
    place: Lake, spark: SparkSession
) -> None:
    assert place.existing() == []
    table = table_in(place, spark)
    for batch in range(8):
        frame = rows(spark, 3 * batch, 3, "a b/c%")
        assert table.write(frame, writer="w", batch=batch, marks={"journal:0": batch}).added
    assert not table.write(rows(spark, 0, 3), writer="w", batch=7).added
    assert place.existing() == ["events"]
    assert table_in(place, spark).last_batch("journal:0") == 7
    assert numbers(table, spark) == list(range(24))
    assert [row.text for row in table.read(spark, matching="n = 7").collect()] == ["t7"]
    assert table.compact(spark, sort_by=("n",)).files_after == 1
    where = {"module": ["a b/c%"]}
    table.replace(rows(spark, 50, 2, "a b/c%"), writer="state", batch=0, where=where)
    assert numbers(table, spark) == [50, 51]
    assert table.vacuum(hours=0) == 9
    others = DeltaTable(table.path, storage_options=dict(place.storage or {})).to_pyarrow_table(
        columns=["n", "module"]
    )
    assert sorted(others["n"].to_pylist()) == [50, 51]
    assert set(others["module"].to_pylist()) == {"a b/c%"}


def test_erased_rows_are_in_no_object_there(place: Lake, spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    table = table_in(place, spark)
    table.write(rows(spark, 0, 3), writer="w", batch=0)
    table.write(rows(spark, 3, 3), writer="w", batch=1)
    done = maintenance.erase(table, spark, f.col("text") == "t4", "text = 't4'")
    assert (done.rows, done.files) == (1, 1)
    maintenance.clean(table, everything=True)
    assert numbers(table, spark) == [0, 1, 2, 3, 5]
    filesystem, _ = filesystem_of(table.path, place.storage)
    for each in filesystem.get_file_info(pafs.FileSelector("_delta_log")):
        with filesystem.open_input_file(each.path) as file:
            assert b"t4" not in file.read(), each.path


def test_writers_that_commit_at_once_do_not_lose_each_others_rows(
    place: Lake, spark: SparkSession
) -> None:
    """The store refuses a second object of the same name, which is what a commit rests on."""
    table_in(place, spark).has("w", 0)

    def write(number: int) -> None:
        table_in(place, spark).write(rows(spark, number, 1), writer=f"w{number}", batch=0)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(8)))
    assert numbers(table_in(place, spark), spark) == list(range(8))
