"""SQL over the lake without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from angarium.lake.lookup import Lookup
from angarium.lake.query import QueryInvalid, ask
from angarium.lake.schemas import TABLES
from angarium.lake.tables import Lake, LakeEmpty
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled


def test_every_table_can_be_asked_even_one_that_was_never_written(filled: Filled) -> None:
    for name, table in TABLES.items():
        answer = ask(filled.lake, f"select * from {name} limit 1")
        assert answer.columns == table.names
    days = ask(filled.lake, "select distinct typeof(date), typeof(module) from events").rows
    assert days == [("DATE", "VARCHAR")]


def test_a_query_that_can_not_be_run_says_why(filled: Filled) -> None:
    with pytest.raises(QueryInvalid, match="nowhere"):
        ask(filled.lake, "select * from nowhere")


def test_an_empty_lake_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LakeEmpty, match="angarium lake run --once"):
        ask(Lake(str(tmp_path / "none")), "select 1")


def test_a_query_starts_neither_spark_nor_java(filled: Filled) -> None:
    code = (
        "import sys; from angarium.lake.tables import Lake; from angarium.lake.query import ask; "
        "from angarium.settings import load; "
        "print(ask(Lake.of(load()), 'select count(*) from events').rows[0][0]); "
        "assert 'pyspark' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=filled.environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == filled.lake.rows("events")


async def test_the_history_of_an_id_is_in_order(filled: Filled) -> None:
    lookup = Lookup(filled.lake)
    sql = "select subject from messages where outcome = 'dead' and module = 'dispatch'"
    dead = ask(filled.lake, sql).rows[0][0]
    events = [each.event for each in await lookup.history(dead) or ()]
    assert events[0] == "accepted"
    assert events[-1] == "dead"
    assert await lookup.history("nobody") == []
    assert await Lookup(Lake(f"{filled.lake.url}-none")).history(dead) is None


async def test_a_transaction_that_is_not_archived_is_not_found(filled: Filled) -> None:
    assert await Lookup(filled.lake).find_transaction("nobody") is None
    tables = {each.name: each.rows for each in await Lookup(filled.lake).tables()}
    assert tables["events"] == filled.lake.rows("events")
