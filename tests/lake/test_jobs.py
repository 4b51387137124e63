"""The jobs by themselves, on small batches: what they make of events, and that pieces add up."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from angarium.lake.jobs import audit as rules
from angarium.lake.jobs import events as event_jobs
from angarium.lake.jobs import messages as message_jobs
from angarium.lake.jobs import parts
from angarium.lake.jobs import statistics as statistics_jobs
from angarium.lake.jobs.lifecycles import CATALOGUE
from angarium.lake.query import ask
from angarium.lake.schemas import EVENTS, INTERVALS_S, MESSAGES
from angarium.lake.tables import Lake

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

AT_MS = 1_760_000_000_000
SOURCE = (
    "partition int, id string, sequence bigint, version int, room string, at_ms bigint, "
    "actor string, event string, subject string, key string, owner string, pipeline string, "
    "node string, attempt int, status string, detail string, reject string, raw binary"
)
Told = tuple[str, str, str, int]
"""Room, event, subject, ms after the beginning."""


def journal(spark: SparkSession, told: Sequence[Told], **more: Any) -> DataFrame:
    """As the source makes it of the journal of one partition."""
    rows = [
        {
            "partition": 0, "id": f"{AT_MS + after}-{number}", "sequence": number, "version": 1,
            "room": room, "at_ms": AT_MS + after, "actor": "a", "event": event,
            "subject": subject, **more,
        }
        for number, (room, event, subject, after) in enumerate(told, 1)
    ]  # fmt: skip
    names = [part.split()[0] for part in SOURCE.split(", ")]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], SOURCE)


LIVES: list[Told] = [
    ("dispatch", "accepted", "m1", 0),
    ("dispatch", "accepted", "m2", 5),
    ("transactions", "started", "t1", 10),
    ("dispatch", "redelivered", "m1", 2_000),
    ("transactions", "taken", "t1", 2_100),
    ("dispatch", "dead", "m2", 3_000),
    ("dispatch", "retried", "m2", 4_000),
    ("lease", "acquired", "lock", 4_500),
    ("transactions", "slept", "t1", 5_000),
    ("dispatch", "completed", "m1", 6_000),
    ("transactions", "completed", "t1", 7_000),
    ("transactions", "notified", "t1", 7_500),
]


def by_subject(rows: Any) -> dict[str, dict[str, Any]]:
    return {row["subject"]: row.asDict() for row in rows.collect()}


def test_a_life_becomes_one_row_with_its_times_and_outcome(spark: SparkSession) -> None:
    lives = by_subject(message_jobs.partial(event_jobs.events(journal(spark, LIVES))))
    assert sorted(lives) == ["m1", "m2", "t1"]
    one = lives["m1"]
    assert (one["outcome"], one["latency_ms"], one["wait_ms"]) == ("delivered", 6_000, 2_000)
    assert (one["accepts"], one["ends"], one["retries"], one["events"]) == (1, 1, 1, 3)
    again = lives["m2"]
    assert again["outcome"] is None
    assert again["latency_ms"] is None
    assert (again["ends"], again["reopens"], again["last_event"]) == (1, 1, "retried")
    transaction = lives["t1"]
    assert transaction["notified_first_ms"] == AT_MS + 7_500
    assert transaction["paused_first_ms"] == AT_MS + 5_000
    assert transaction["outcome"] == "delivered"


def test_a_transaction_that_failed_counts_as_failed(spark: SparkSession) -> None:
    told = [("transactions", "started", "t", 0), ("transactions", "completed", "t", 1)]
    rows = journal(spark, told, status="internal-error")
    assert by_subject(message_jobs.partial(event_jobs.events(rows)))["t"]["outcome"] == "failed"


def test_parts_add_up_to_the_same_rows_in_spark_and_when_the_table_is_asked(
    spark: SparkSession, tmp_path: Path
) -> None:
    """However the journal is cut, and whether Spark or DuckDB puts the pieces together."""
    events = event_jobs.events(journal(spark, LIVES)).cache()
    whole = message_jobs.partial(events).toArrow()
    cuts = sorted(random.Random(7).sample(range(1, len(LIVES)), 3))
    pieces = [
        message_jobs.partial(events.where(f"sequence > {low} and sequence <= {high}")).cache()
        for low, high in zip([0, *cuts], [*cuts, len(LIVES)], strict=True)
    ]
    union = functools.reduce(lambda one, other: one.unionByName(other), pieces)
    assert _sorted(message_jobs.combined(union).toArrow()) == _sorted(whole)
    # As they come, and the latest first: what comes late finds its place.
    for number, order in enumerate((pieces, pieces[::-1])):
        lake = Lake(str(tmp_path / str(number)))
        for each in order:
            lake.append("messages", each.toArrow())
        assert lake.rows("messages") > whole.num_rows
        asked = ask(lake, "select * from messages", tables=("messages",))
        assert asked.columns == MESSAGES.names
        assert sorted(asked.rows, key=repr) == _sorted(whole)


def test_a_task_sums_up_what_spark_would(spark: SparkSession) -> None:
    """Between them the events have each role, stage, outcome and kind of value."""
    told = [
        (each.room, each.event, f"{each.room}{number % 7}", number * 700)
        for number, each in enumerate(CATALOGUE * 3)
    ]
    random.Random(8).shuffle(told)
    rows = journal(
        spark, told, key="g", owner="o", pipeline="p", attempt=3, status="aborted", detail="why"
    )
    events = event_jobs.events(rows).cache()
    found = dict(parts.summed(events.toArrow().to_batches()))
    assert set(found) == {"messages", *INTERVALS_S}
    for name, table in found.items():
        by_spark = parts.part(name, events).toArrow()
        assert table.column_names == by_spark.column_names
        ours, theirs = (sorted(map(repr, each.to_pylist())) for each in (table, by_spark))
        assert ours == theirs, name
        whole = parts.combined(name, spark.createDataFrame(table)).toArrow()
        assert sorted(map(repr, whole.to_pylist())) == ours


def _sorted(table: pa.Table) -> list[tuple[Any, ...]]:
    rows = [tuple(row[name] for name in MESSAGES.names) for row in table.to_pylist()]
    return sorted(rows, key=repr)


def test_windows_are_cut_by_event_time_and_larger_ones_are_sums(spark: SparkSession) -> None:
    events = event_jobs.events(journal(spark, LIVES, key="g", owner="o", pipeline="p"))
    fine = statistics_jobs.statistics(events, 5).toArrow()
    starts = {row["start_s"] for row in fine.to_pylist()}
    assert starts == {1_760_000_000, 1_760_000_005}
    assert sum(fine["count"].to_pylist()) == len(LIVES)
    direct = statistics_jobs.statistics(events, 1_000).toArrow()
    summed = statistics_jobs.coarser(spark.createDataFrame(fine), 1_000).toArrow()
    assert sorted(map(str, summed.to_pylist())) == sorted(map(str, direct.to_pylist()))
    groups = {row["node_group"] for row in fine.to_pylist() if row["room"] != "transactions"}
    assert groups == {""}


def test_what_could_not_be_read_is_set_aside(spark: SparkSession) -> None:
    rows = journal(spark, LIVES[:2]).unionByName(
        journal(spark, [("x", "y", "z", 9)], reject="schema 2 is newer", raw=b"\x81")
    )
    (aside,) = event_jobs.rejects(rows).collect()
    assert (aside["reason"], aside["raw"]) == ("schema 2 is newer", bytearray(b"\x81"))
    good = event_jobs.events(rows)
    assert good.columns == EVENTS.names
    assert good.count() == 2
    doubled = good.unionByName(good)
    assert event_jobs.deduplicated(doubled).count() == 2


def test_the_rules_of_the_audit_say_the_same_in_spark_and_in_duckdb(spark: SparkSession) -> None:
    told = [
        *LIVES,
        ("pickup", "delivered", "p0", 8_000),  # never accepted
        ("pickup", "accepted", "p1", 8_001),
        ("pickup", "delivered", "p1", 8_002),
        ("pickup", "delivered", "p1", 8_003),  # twice
        ("conversations", "taken", "r1", 8_004),  # before it was accepted
        ("conversations", "accepted", "r1", 8_005),
        ("routing", "accepted", "i1", 8_006),
    ]
    events = event_jobs.events(journal(spark, told)).cache()
    messages, starts = message_jobs.partial(events), rules.starts(events)
    found = {row["subject"]: row for row in rules.verdicts(messages, starts).collect()}
    assert found["p0"]["state"] == "unexplained"
    assert [each for each, row in found.items() if row["doubled"]] == ["p1"]
    assert [each for each, row in found.items() if row["out_of_order"]] == ["r1"]
    assert found["i1"]["state"] == found["m2"]["state"] == "in_flight"
    missing = spark.createDataFrame(
        [(0, "routing", "inbound", "i1")],
        "partition int, room string, account string, subject string",
    )
    balance = rules.balance(messages, starts, missing, window_s=1_000, audited_ms=1)
    by_spark = sorted(tuple(row) for row in balance.collect())
    with duckdb.connect() as connection:
        for name, frame in (("messages", messages), ("starts", starts), ("missing", missing)):
            connection.register(name, frame.toArrow())
        text = rules.BALANCE.format(
            messages="messages", starts="starts", missing="missing", window_s=1_000, audited_ms=1
        )
        by_duckdb = sorted(connection.execute(text).fetchall())
    assert [tuple(map(str, row)) for row in by_spark] == [tuple(map(str, r)) for r in by_duckdb]
    inbound = next(row for row in by_spark if row[2] == "routing")
    assert inbound[balance.columns.index("unexplained")] == 1
    assert rules.gaps(events.where("sequence <> 3")).collect()[0]["first"] == 3


def test_an_entry_id_and_its_number_are_the_same(spark: SparkSession) -> None:
    ids = ["0-0", "5-1", f"{AT_MS}-0", f"{AT_MS}-1048575", "8000000000000-7"]
    numbers = [event_jobs.position_of(each) for each in ids]
    assert numbers == sorted(numbers)
    assert [event_jobs.entry_id_of(number) for number in numbers] == ids
    frame = spark.createDataFrame([(each,) for each in ids], "id string")
    assert [row[0] for row in frame.select(event_jobs.position("id")).collect()] == numbers
