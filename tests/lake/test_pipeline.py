"""The queries as a whole: stored once, whatever is repeated, lost, late, strange or in the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from deltalake import DeltaTable

from angarium.dispatch import keys as dispatch_keys
from angarium.lake.audit import audit
from angarium.lake.errors import LakeStopped
from angarium.lake.filed import transactions_of
from angarium.lake.lookup import Lookup
from angarium.lake.pipeline import Pipeline, reason_of, tidy
from angarium.lake.query import ask
from angarium.lake.reconcile import reconcile
from angarium.lake.schemas import EVENTS, INTERVALS_S, TABLES
from angarium.lake.steps import LakeTables
from angarium.lake.tables import Lake, LakeMismatch, LakeTable
from angarium.runtime import keys as runtime_keys
from angarium.runtime.settings import CommonSettings as Settings
from angarium.transactions import keys as transactions_keys
from angarium.transactions.errors import TransactionFinished
from angarium.transactions.model import Transaction
from angarium.transactions.service import TransactionsService
from tests.kit.sample import sample_settings
from tests.lake.filled import Filled, store_once
from tests.lake.filled import filled as filled
from tests.lake.kit import fill_journal
from tests.lake.traffic import traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ = ("events", "messages", "messages_open", *INTERVALS_S, "results", "sequences")


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """All rows, without the number of the batch that brought them."""
    found = {}
    for name in READ:
        if lake.open(name) is not None:
            columns = ", ".join(each for each in TABLES[name].names if each != "batch")
            found[name] = sorted(ask(lake, f"select {columns} from {name}").rows, key=repr)
    return found


def settings_of(redis_url: str, folder: Path, **more: Any) -> Settings:
    return sample_settings(redis_url, home=folder, **more)


def client_of(redis_url: str) -> Any:
    import redis

    return redis.Redis.from_url(redis_url)


def test_every_table_is_there_and_says_whose_it_is(filled: Filled) -> None:
    lake = filled.lake
    assert set(lake.existing()) >= {"events", "messages", "messages_open", *INTERVALS_S}
    numbers = ask(lake, "select min(sequence), max(sequence), count(*) from events").rows[0]
    assert numbers[0] == 1
    assert numbers[1] == numbers[2]
    folders = DeltaTable(lake.path("events")).metadata().partition_columns
    assert folders == ["date", "module"]
    modules = ask(lake, "select distinct module from events order by 1").rows
    assert [row[0] for row in modules] == [
        "conversations", "dispatch", "lease", "pickup", "routing", "transactions",
    ]  # fmt: skip


async def test_the_statistics_are_those_of_the_scripts(filled: Filled, spark: SparkSession) -> None:
    async with filled.runtime(after_s=20) as runtime:
        soon = await reconcile(runtime, spark, filled.tables)
    async with filled.runtime(after_s=2_000) as runtime:
        later = await reconcile(runtime, spark, filled.tables)
    assert soon.differences == later.differences == []
    assert later.windows["stats_coarse"] == 1
    assert later.windows["stats_medium"] >= 2
    # The finest counters live for five minutes only, and this run may have taken longer.
    assert soon.windows["stats_fine"] >= 2 or later.windows["stats_fine"] == 0
    assert later.counters >= 20


async def test_a_counter_that_differs_is_named(filled: Filled, spark: SparkSession) -> None:
    async with filled.runtime(after_s=2_000) as runtime:
        start = filled.now_ms // 1_000_000 * 1_000
        name = runtime.keyspace.name(transactions_keys.STATS_COARSE, 0, str(start))
        fields = await runtime.redis.call("HKEYS", name, key=name)
        field = next(each for each in fields if not each.startswith(b"queue:"))
        await runtime.redis.call("HINCRBY", name, field, 1, key=name)
        try:
            found = await reconcile(runtime, spark, filled.tables)
        finally:
            await runtime.redis.call("HINCRBY", name, field, -1, key=name)
    (difference,) = found.differences
    assert difference.table == "stats_coarse"
    assert difference.counter == field.decode()
    assert difference.redis == difference.lake + 1


class Broken(Exception):
    pass


@pytest.mark.parametrize("table", ["events", "messages", "messages_open", "stats_medium"])
def test_a_run_that_dies_before_a_tables_commit_leaves_the_same_tables(
    filled: Filled, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """As a process that is killed there would: the files are written, and no commit names them."""
    settings = filled.settings.model_copy(update={"lake_url": str(tmp_path / "lake")})
    commit = LakeTable._commit

    def dies(self: LakeTable, *args: Any, **more: Any) -> Any:
        if self.name == table:
            raise Broken
        return commit(self, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "_commit", dies)
        with pytest.raises(LakeStopped):
            store_once(spark, settings)
    assert Lake.of(settings).rows(table) == 0
    store_once(spark, settings)
    assert contents(Lake.of(settings)) == contents(filled.lake)


def test_a_lost_checkpoint_and_a_second_run_add_nothing(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    settings = settings_of(redis_url, tmp_path)
    key = f"{settings.prefix}journal"
    fill_journal(client_of(redis_url), key, entries=20, events=10)
    first = store_once(spark, settings)
    assert first.figures.events == 200
    shutil.rmtree(first.lake.checkpoint("journal"))
    fill_journal(client_of(redis_url), key, entries=5, events=10, first=200)
    store_once(spark, settings)
    lake = Lake.of(settings)
    assert lake.rows("events") == 250
    assert ask(lake, "select sum(count) from stats_coarse").rows == [(250,)]
    assert ask(lake, "select count(*), sum(accepts) from messages_open").rows == [(250, 250)]
    assert len(lake.files("events")) == 2
    tidy(spark, LakeTables(lake), ["events"], all_files=True)
    assert len(lake.files("events")) == 1
    assert lake.rows("events") == 250


def test_a_checkpoint_that_does_not_fit_its_table_is_dropped(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Put back from a copy, or left over from a lake that stood there before."""
    settings = settings_of(redis_url, tmp_path)
    client, key = client_of(redis_url), f"{settings.prefix}journal"
    fill_journal(client, key, entries=2, events=10)
    store_once(spark, settings)
    lake = Lake.of(settings)
    checkpoints = tmp_path / "lake" / "_checkpoints"
    shutil.copytree(checkpoints, tmp_path / "old")
    for number in (1, 2):
        fill_journal(client, key, entries=2, events=10, first=20 * number)
        store_once(spark, settings)
    shutil.rmtree(checkpoints)
    shutil.copytree(tmp_path / "old", checkpoints)
    fill_journal(client, key, entries=2, events=10, first=60)
    store_once(spark, settings)
    counts = "select count(*), count(distinct sequence) from events"
    assert ask(lake, counts).rows == [(80, 80)]
    assert ask(lake, "select count(*), sum(events) from messages_open").rows == [(80, 80)]


def test_two_lakes_on_one_redis_each_have_every_event_once(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    settings = settings_of(redis_url, tmp_path)
    second = settings.model_copy(update={"lake_url": str(tmp_path / "second")})
    client, key = client_of(redis_url), f"{settings.prefix}journal"
    fill_journal(client, key, entries=4, events=10)
    store_once(spark, settings)
    fill_journal(client, key, entries=4, events=10, first=40)
    for each in (second, settings):
        store_once(spark, each)
        lake = Lake.of(each)
        counts = "select count(*), count(distinct sequence) from events"
        assert ask(lake, counts).rows == [(80, 80)]
        assert ask(lake, "select count(*), sum(events) from messages_open").rows == [(80, 80)]
    # The journal is kept until both have read it: each has a name of its own there.
    readers = {name.decode() for name in client.hkeys(f"{key}:readers")}
    assert readers >= {f"lake-{Lake.of(each).identity()}" for each in (settings, second)}


def test_a_deleted_stream_is_a_gap_and_not_the_end(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    settings = settings_of(redis_url, tmp_path)
    client, key = client_of(redis_url), f"{settings.prefix}messages:processed"
    for number in range(3):
        client.xadd(key, {"message_id": f"m{number}", "consumer_id": "w"})
    store_once(spark, settings)
    client.delete(key)
    store_once(spark, settings)
    client.xadd(key, {"message_id": "m9", "consumer_id": "w"})
    store_once(spark, settings)
    lake = Lake.of(settings)
    found = ask(lake, "select message_id from results order by 1").rows
    assert [row[0] for row in found] == ["m0", "m1", "m2", "m9"]
    (gap,) = ask(lake, "select stream, reason from rejects").rows
    assert gap[0] == "results"
    assert gap[1].startswith("a gap: at least 1 rows")


POISON: list[dict[str, Any]] = [
    {"rows": b'{"e":"accepted","s":"\xff"}'},
    {"rows": '{"e":"accepted","s":"\\ud800"}'},
    {"rows": '{"e":"accepted","s":"m","a":12345678901234567890}'},
    {"at": 999_999_999_999_999},
    {"at": "12345678901234567890"},
    {"seq": "12345678901234567890"},
    {"n": 2},
    {"by": b"\xff"},
    {"module": "../../x"},
    {"v": 7},
]


def test_poison_is_set_aside_entry_by_entry_and_the_rest_is_stored(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    settings = settings_of(redis_url, tmp_path)
    client, key = client_of(redis_url), f"{settings.prefix}journal"
    good = {"v": 1, "module": "dispatch", "at": 1_700_000_000_000, "by": "w", "n": 1, "seq": 1,
            "end": 1, "rows": '{"e":"accepted","s":"m1"}'}  # fmt: skip
    client.xadd(key, good)
    for each in POISON:
        client.xadd(key, {**good, **each})
    client.xadd(key, {**good, "seq": 2})
    results = f"{settings.prefix}messages:processed"
    client.xadd(results, {"message_id": "m1", "consumer_id": "w", "x": b"\xff"})
    client.xadd(results, {"message_id": "m2", "consumer_id": "w"})
    client.xadd(results, {"message_id": "m3"}, id="18446744073709551610-1")
    for _ in range(2):
        store_once(spark, settings)
        lake = Lake.of(settings)
        assert lake.rows("events") == 2
        assert ask(lake, "select message_id from results").rows == [("m2",)]
        aside = ask(lake, "select stream, count(*), count(reason) from rejects group by 1").rows
        assert sorted(aside) == [("journal", len(POISON), len(POISON)), ("results", 2, 2)]


def test_the_number_of_input_rows_is_the_number_of_events(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    settings = settings_of(redis_url, tmp_path)
    fill_journal(client_of(redis_url), f"{settings.prefix}journal", entries=20, events=10)
    pipeline = Pipeline(spark, settings, redis_url)
    pipeline.start(once=True)
    while not pipeline.wait(1):
        pass
    (journal,) = (each for each in pipeline._queries if each.name == "angarium-journal")
    rows = sum(json.loads(each.json)["numInputRows"] for each in journal.recentProgress)
    pipeline.stop()
    assert rows == 200 == pipeline.figures.events


async def test_strange_newer_and_dropped_entries_are_kept_aside_and_named(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    async with traffic(redis_url, tmp_path) as made:
        settings, client = made.settings, client_of(redis_url)
        key = made.name(runtime_keys.JOURNAL)
        fill_journal(client, key, entries=3, events=10)
        client.xadd(key, {"v": 2, "module": "dispatch", "n": 5, "seq": 35, "rows": "later"})
        client.xadd(key, {"by": "somebody else"})
        fill_journal(client, key, entries=1, events=5, first=35)
        members = {f"m{number}": 1 for number in range(40)}
        client.zadd(made.name(dispatch_keys.MESSAGES_PENDING), members)
        store_once(spark, settings)
        lake = Lake.of(settings)
        found = await audit(made.runtime, spark, LakeTables(lake))
    rejects = ask(lake, "select version, reason from rejects order by entry_id").rows
    assert [version for version, _ in rejects] == [2, None]
    assert all(reason for _, reason in rejects)
    assert found.rejects == 2
    (gap,) = found.findings
    assert (gap.kind, gap.subject, found.wrong) == ("gap", "31-35", 5)
    assert "2 entries are in rejects" in gap.why


async def test_archived_transactions_are_in_the_lake_and_found_by_their_id(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "transactions": {"delay_before_archiving": 0}, "lake": {"archive": True},
    }  # fmt: skip
    async with traffic(redis_url, tmp_path, **given) as made:
        ids = await made.transactions(started=4, completed=3)
        waiting = made.open["transactions", "transaction"]
        store_once(spark, made.settings)
        # Redis hears of it when the next batch is asked for.
        store_once(spark, made.settings)
        lookup = Lookup(Lake.of(made.settings))
        ended = [each for each in ids if each not in waiting]
        for each in ended:
            state = await lookup.find_transaction(each)
            assert state is not None
            found = msgspec.json.decode(state, type=Transaction)
            assert (found.id, found.status.final, bytes(found.output)) == (each, True, b"1")
            name = made.name(transactions_keys.STATE, each)
            assert await made.runtime.redis.call("EXISTS", name, key=name) == 0
        assert await lookup.find_transaction(waiting[0]) is None
        # And the module finds them, which Redis and the database no longer do.
        service = TransactionsService(made.runtime, lake_lookup=transactions_of(made.settings))
        try:
            assert (await service.get(ended[0])).status.final
            with pytest.raises(TransactionFinished):
                await service.cancel(ended[0])
        finally:
            await service.close()
        assert Lake.of(made.settings).rows("transactions") == 3
        assert (await audit(made.runtime, spark, LakeTables(Lake.of(made.settings)))).clean


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"prefix": "other:"}, "belongs to the keyspace with prefix"),
        ({"partitions": 4}, "was made for 1 partitions"),
    ],
)
def test_a_lake_of_another_keyspace_is_refused(
    filled: Filled, change: dict[str, Any], why: str
) -> None:
    other = filled.settings.model_copy(update={**change, "lake_url": filled.lake.url})
    with pytest.raises(LakeMismatch, match=why):
        Lake.of(other).check()


def test_a_table_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "events"), EVENTS.arrow())
    with pytest.raises(LakeMismatch, match="was not made by Angarium"):
        Lake(str(tmp_path)).check()


def test_the_line_for_people_is_found_in_an_error_of_spark() -> None:
    text = (
        "Job aborted\nTraceback …\nangarium.runtime.errors.RedisUnavailable: gone (waited 120 s)\n"
    )
    assert reason_of(text) == "gone (waited 120 s)"
    assert reason_of("\n plain \n more") == "plain"
