"""Rows of the lake back into the modules: shown first, sent once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from angarium.cli.lake import _to_dispatch, _to_transactions
from angarium.lake.query import QueryInvalid, ask
from angarium.lake.replay import Planned, plan, send_all
from angarium.lake.schemas import TRANSACTIONS
from angarium.lake.steps import LakeTables
from angarium.lake.tables import Lake, LakeEmpty
from angarium.runtime.errors import InputInvalid
from angarium.runtime.journal import Journal, decode_entry
from tests.lake.traffic import Traffic, traffic
from tests.transactions.harness import STEPS, Harness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def results(spark: SparkSession, tables: LakeTables, count: int) -> None:
    rows = [(0, f"{n}-0", n, f"m{n}", "w", f'{{"n":"{n}"}}', None, 0) for n in range(count)]
    table = tables["results"]
    table.write(spark.createDataFrame(rows, table.schema), writer="results", batch=0)


async def enqueued(made: Traffic) -> list[str]:
    entries = await Journal(made.runtime).read(0, entries_max=10_000)
    events = [event for entry in entries for event in decode_entry(*entry).events]
    return [each.subject for each in events if each.event == "enqueued"]


async def test_results_go_into_the_intake_once(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    async with traffic(redis_url, tmp_path) as made:
        lake = Lake.of(made.settings)
        tables = LakeTables(lake)
        results(spark, tables, 5)
        chosen = plan(spark, tables, "fix-1", "results", "at_ms >= 2", 100)
        assert [each.id for each in chosen.waiting] == ["m2", "m3", "m4"]
        assert await enqueued(made) == []  # planning sends nothing
        told: list[int] = []
        assert await send_all(spark, tables, chosen, _to_dispatch(made.runtime), told.append) == 3
        assert told == [3]
        first = await enqueued(made)
        assert len(first) == 3
        again = plan(spark, tables, "fix-1", "results", "at_ms >= 1", 100)
        assert [each.id for each in again.waiting] == ["m1"]
        await send_all(spark, tables, again, _to_dispatch(made.runtime), told.append)
        assert len(await enqueued(made)) == 4
        written = ask(lake, "select id, sent_as from replays order by id").rows
        assert [row[0] for row in written] == ["m1", "m2", "m3", "m4"]
        assert {row[1] for row in written} == set(await enqueued(made))


async def test_a_replay_that_died_before_it_was_written_down_sends_nothing_twice(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    async with traffic(redis_url, tmp_path) as made:
        lake = Lake.of(made.settings)
        tables = LakeTables(lake)
        results(spark, tables, 2)
        send = _to_dispatch(made.runtime)
        chosen = plan(spark, tables, "again", "results", "true", 10)
        sent = [await send(each, each.key("again")) for each in chosen.rows]
        await send_all(
            spark, tables, plan(spark, tables, "again", "results", "true", 10), send, lambda _: None
        )
        assert sorted(await enqueued(made)) == sorted(sent)
        other = plan(spark, tables, "another-name", "results", "true", 10)
        assert len(other.waiting) == 2


async def test_an_archived_transaction_is_started_anew_with_its_data(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    async with traffic(redis_url, tmp_path) as made:
        harness = Harness(made.runtime)
        await harness.define("one", *STEPS["one"])
        lake = Lake.of(made.settings)
        tables = LakeTables(lake)
        state = {"id": "t1", "data": {"n": 7}, "output": None}
        row = {
            "id": "t1", "owner": "o", "pipeline": "one", "version": 1, "status": "failed",
            "state": msgspec.json.encode(state).decode(),
        }  # fmt: skip
        table = tables["transactions"]
        rows = [tuple(row.get(name) for name in TRANSACTIONS.names)]
        table.write(spark.createDataFrame(rows, table.schema), writer="archive", batch=0)
        chosen = plan(spark, tables, "failed", "transactions", "status = 'failed'", 10)
        send = _to_transactions(made.runtime)
        await send_all(spark, tables, chosen, send, lambda _: None)
        (planned,) = chosen.rows
        assert isinstance(planned, Planned)
        twice = await send(planned, planned.key("failed"))
        fresh = ask(lake, "select sent_as from replays").rows[0][0]
        assert twice == fresh
        started = await harness.state(fresh)
        assert (started.owner, bytes(started.data)) == ("o", b'{"n":7}')
        await harness.client.close()


async def test_what_can_not_be_replayed_is_refused(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    tables = LakeTables(Lake(str(tmp_path / "lake")))
    with pytest.raises(InputInvalid, match="only results and transactions"):
        plan(spark, tables, "x", "events", "true", 1)
    with pytest.raises(InputInvalid, match="can't name a replay"):
        plan(spark, tables, "x y", "results", "true", 1)
    with pytest.raises(LakeEmpty):
        plan(spark, tables, "x", "results", "true", 1)
    results(spark, tables, 1)
    with pytest.raises(QueryInvalid):
        plan(spark, tables, "x", "results", "nonsense here", 1)
