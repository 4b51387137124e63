"""The groups of `pytest -n` name files that exist, and Spark's tests share few sessions."""

from __future__ import annotations

from tests.kit.groups import FILLED, LONGEST, PROCESSES, ROOT, SESSION, group_of, order_of


def test_files_that_start_early_exist() -> None:
    files = [each for each in LONGEST if each.startswith("tests/")]
    assert [each for each in files if not (ROOT / each).is_file()] == []


def test_tests_of_the_lake_are_grouped_by_the_spark_that_they_use() -> None:
    assert group_of("tests/lake/test_pipeline.py") == FILLED
    assert group_of("tests/lake/test_tables.py") == SESSION
    assert group_of("tests/docs/test_lake_pages.py") == PROCESSES
    assert group_of("tests/lake/test_catalogue.py") == "tests/lake/test_catalogue.py"
    assert group_of("tests/routing/test_inbox.py") == "tests/routing/test_inbox.py"
    assert order_of(FILLED) < order_of("tests/routing/test_inbox.py")
