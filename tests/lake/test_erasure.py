"""A person's rows out of the whole lake, and tables made anew from the events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from angarium.lake.erasure import erase_key
from angarium.lake.rebuild import rebuild
from angarium.lake.schemas import TABLES
from angarium.lake.tables import LakeTable
from angarium.runtime.errors import InputInvalid
from tests.lake.test_maintenance import everything_in
from tests.lake.test_steps import AT_MS, Bench, Event, event, journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PERSON = "did:key:z6Mk-4711"


def lifecycle(first: int, subject: str, key: str | None) -> list[Event]:
    """Only the acceptance names the key, as in the journal."""
    names = ("accepted", "redelivered", "completed")
    return [
        event(first + n, "dispatch", name, subject, AT_MS + first + n, key=key if n == 0 else None)
        for n, name in enumerate(names)
    ]


def filled(bench: Bench, name: str, **values: Any) -> LakeTable:
    """A table with one row that has these values, and one that has others."""
    table = bench.tables[name]
    rows = [
        tuple(given.get(column) for column in table.schema.names)
        for given in (values, dict.fromkeys(values, None))
    ]
    table.write(bench.spark.createDataFrame(rows, table.schema), writer="test", batch=0)
    return table


def test_no_file_of_the_lake_names_an_erased_key(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(spark, tmp_path / "lake")
    bench.add(lifecycle(1, "m1", PERSON) + lifecycle(4, "m2", "somebody"))
    bench.add(lifecycle(7, "m3", PERSON)[:2] + lifecycle(10, "m4", f"{PERSON}-else"))
    bench.follow()
    lake = bench.tables.lake
    filled(bench, "results", message_id="m1", fields='{"answer": 42}')
    filled(bench, "rejects", raw=b"\x82\xa1k" + PERSON.encode(), reason="odd")
    filled(bench, "transactions", id="t1", state=f'{{"to": "{PERSON}"}}')
    assert any(PERSON.encode() in each for each in everything_in(lake.url))

    found = erase_key(lake, spark, PERSON)
    assert {name: done.rows for name, done in found.items() if name in TABLES} == {
        "events": 5, "messages": 1, "messages_open": 1, "results": 1, "rejects": 1,
        "transactions": 1,
    }  # fmt: skip
    text = PERSON.encode()
    left = [e for e in everything_in(lake.url) if text in e.replace(text + b"-else", b"")]
    assert left == []
    events = bench.tables["events"].read(spark)
    subjects = {row.subject for row in events.collect()}
    assert subjects == {"m2", "m4"}, "the key that only begins like it, and others, stay"
    assert erase_key(lake, spark, PERSON) == {}


def test_the_pipeline_goes_on_after_an_erasure(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(spark, tmp_path / "lake")
    bench.add(lifecycle(1, "m1", PERSON)[:2] + lifecycle(4, "m2", "somebody")[:2])
    bench.follow()
    erase_key(bench.tables.lake, spark, PERSON)
    bench.add([lifecycle(4, "m2", "somebody")[2]])
    bench.follow()
    rows = bench.tables["messages"].read(spark).select("subject", "outcome").collect()
    assert [(row.subject, row.outcome) for row in rows] == [("m2", "delivered")]


@pytest.mark.parametrize("name", ["messages", "messages_open", "stats_fine", "sequences"])
def test_a_table_made_anew_has_the_same_rows(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    bench = Bench(spark, tmp_path / "lake")
    events = journal(7, used_again=False)
    for first in range(0, len(events), 20):
        bench.add(events[first : first + 20])
        bench.follow()
    columns = [each for each in TABLES[name].names if each != "batch"]
    before = sorted(map(repr, bench.rows(name, columns)))
    assert before
    rebuild(spark, bench.tables.lake, name)
    bench.steps()
    assert sorted(map(repr, bench.rows(name, columns))) == before


def test_what_can_not_be_made_anew_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match="'events' can't be made anew from the events; tables"):
        rebuild(spark, Bench(spark, tmp_path / "lake").tables.lake, "events")
