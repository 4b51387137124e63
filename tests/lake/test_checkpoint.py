"""A query's checkpoint and its table: which number its batches have, and where it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from angarium.lake.checkpoint import QueryCheckpoint
from angarium.lake.tables import Lake, LakeTable


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """Its last batch is 0, up to some entry of the journal."""
    from pyspark.sql.types import LongType, StructType

    schema = StructType().add("n", LongType())
    found = LakeTable(Lake(str(tmp_path / "lake")), "events", schema)
    assert not found.has("journal", 0)
    found.commit_files([], batches={"journal": 0, "entry:journal": 77})
    return found


def test_a_query_that_died_before_its_first_plan_begins_where_the_table_ends(
    table: LakeTable, tmp_path: Path
) -> None:
    for _ in range(3):
        found = QueryCheckpoint.of(tmp_path / "journal", "lake-1", table, "journal")
        assert (found.first, found.starting) == (1, {})


def test_a_checkpoint_with_a_plan_goes_on_from_it(table: LakeTable, tmp_path: Path) -> None:
    QueryCheckpoint.of(tmp_path / "journal", "lake-1", table, "journal")
    offsets = tmp_path / "journal" / "offsets"
    offsets.mkdir()
    (offsets / "0").write_text("v1\n{}\n{}")
    found = QueryCheckpoint.of(tmp_path / "journal", "lake-1", table, "journal")
    assert (found.first, found.starting) == (1, None)


def test_a_checkpoint_of_another_lake_is_dropped(table: LakeTable, tmp_path: Path) -> None:
    QueryCheckpoint.of(tmp_path / "journal", "lake-1", table, "journal")
    (tmp_path / "journal" / "offsets").mkdir()
    (tmp_path / "journal" / "offsets" / "0").write_text("v1\n{}\n{}")
    found = QueryCheckpoint.of(tmp_path / "journal", "lake-2", table, "journal")
    assert (found.first, found.starting) == (1, {})
    assert not (tmp_path / "journal" / "offsets").exists()
