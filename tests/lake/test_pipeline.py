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
from angarium.lake.filed import transactions_of
from angarium.lake.lookup import Lookup
from angarium.lake.pipeline import Pipeline, compact, reason_of
from angarium.lake.query import ask
from angarium.lake.reconcile import reconcile
from angarium.lake.schemas import EVENTS, TABLES
from angarium.lake.tables import Lake, LakeMismatch
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
    from pyspark.sql import DataFrame, SparkSession

READ = ("events", "messages", "stats_fine", "stats_medium", "stats_coarse", "processed")


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: sorted(ask(lake, f"select * from {name}").rows, key=repr)
        for name in READ
        if lake.open(name) is not None
    }


def written(spark: SparkSession, settings: Settings, until: str = "") -> DataFrame:
    """The journal, or its beginning, as files in the lake's folders."""
    reader = spark.read.format("redis-stream").option("url", settings.redis_url)
    options = {
        "decode": "journal", "prefix": settings.prefix, "into": Lake.of(settings).url,
        "tables": "all",
    }  # fmt: skip
    if until:
        options["endingOffsets"] = json.dumps({f"{settings.prefix}journal": until})
    return reader.options(**options).load()


def settings_of(redis_url: str, folder: Path, **more: Any) -> Settings:
    return sample_settings(redis_url, home=folder, **more)


def client_of(redis_url: str) -> Any:
    import redis

    return redis.Redis.from_url(redis_url)


def test_every_table_is_there_and_says_whose_it_is(filled: Filled) -> None:
    lake = filled.lake
    assert set(lake.existing()) >= {"events", "messages", "processed", *list(TABLES)[5:8]}
    numbers = ask(lake, "select min(sequence), max(sequence), count(*) from events").rows[0]
    assert numbers[0] == 1
    assert numbers[1] == numbers[2]
    folders = DeltaTable(lake.path("events")).metadata().partition_columns
    assert folders == ["date", "room"]
    rooms = ask(lake, "select distinct room from events order by 1").rows
    assert [row[0] for row in rooms] == [
        "conversations", "dispatch", "lease", "pickup", "routing", "transactions",
    ]  # fmt: skip


async def test_the_statistics_are_those_of_the_scripts(filled: Filled) -> None:
    async with filled.runtime(after_s=20) as runtime:
        soon = await reconcile(runtime, filled.lake)
    async with filled.runtime(after_s=2_000) as runtime:
        later = await reconcile(runtime, filled.lake)
    assert soon.differences == later.differences == []
    assert later.windows["stats_coarse"] == 1
    assert later.windows["stats_medium"] >= 2
    # The finest counters live for five minutes only, and this run may have taken longer.
    assert soon.windows["stats_fine"] >= 2 or later.windows["stats_fine"] == 0
    assert later.counters >= 20


async def test_a_counter_that_differs_is_named(filled: Filled) -> None:
    async with filled.runtime(after_s=2_000) as runtime:
        start = filled.now_ms // 1_000_000 * 1_000
        name = runtime.keyspace.name(transactions_keys.STATS_COARSE, 0, str(start))
        fields = await runtime.redis.call("HKEYS", name, key=name)
        field = next(each for each in fields if not each.startswith(b"queue:"))
        await runtime.redis.call("HINCRBY", name, field, 1, key=name)
        try:
            found = await reconcile(runtime, filled.lake)
        finally:
            await runtime.redis.call("HINCRBY", name, field, -1, key=name)
    (difference,) = found.differences
    assert difference.table == "stats_coarse"
    assert difference.counter == field.decode()
    assert difference.redis == difference.lake + 1


class Broken(Exception):
    pass


class BreaksAt(Lake):
    """Ends in the middle of a batch, as a process that is killed there would."""

    def add_files(self, name: str, table: Any, files: Any, positions: Any) -> None:
        if name == "stats_medium":
            raise Broken
        super().add_files(name, table, files, positions)


async def test_batches_that_are_repeated_cut_short_or_overlap_change_nothing(
    filled: Filled, spark: SparkSession, tmp_path: Path
) -> None:
    """A crash between two tables, the same batch again, a larger one: the same tables."""
    settings = filled.settings.model_copy(update={"lake_url": str(tmp_path / "lake")})
    pipeline = Pipeline(spark, settings, settings.redis_url)
    middle = ask(filled.lake, "select entry_id from events where sequence = 40").rows[0][0]
    pipeline.lake = BreaksAt(**vars(pipeline.lake))
    with pytest.raises(Broken):
        pipeline.store_journal(written(spark, settings, middle), 0)
    pipeline.lake = Lake.of(settings)
    assert pipeline.lake.positions("stats_medium", "journal") == {0: -1}
    assert pipeline.lake.rows("stats_fine") > 0
    pipeline.store_journal(written(spark, settings, middle), 0)
    pipeline.store_journal(written(spark, settings), 7)
    pipeline.store_journal(written(spark, settings), 8)
    ours = contents(pipeline.lake)
    theirs = contents(filled.lake)
    del theirs["processed"]
    assert ours == theirs


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
    assert ask(lake, "select count(*), sum(accepts) from messages").rows == [(250, 250)]
    before = len(lake.files("events"))
    assert compact(lake)["events"] == (before, 1)
    assert lake.rows("events") == 250
    assert lake.positions("events", "journal")[0] > 0


def test_many_short_runs_leave_few_files(
    redis_url: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angarium.lake.pipeline.COMMITS_PER_COMPACTION", 3)
    settings = settings_of(redis_url, tmp_path)
    lake, files, runs = Lake.of(settings), [], 5
    for number in range(runs):
        key = f"{settings.prefix}journal"
        fill_journal(client_of(redis_url), key, entries=2, events=10, first=20 * number)
        store_once(spark, settings)
        files.append((len(lake.files("events")), len(lake.files("messages"))))
    assert min(files[3:]) < files[2]  # fewer than before, though a run has added some
    assert ask(lake, "select count(*), sum(accepts) from messages").rows == [(100, 100)]
    assert lake.rows("events") == 100


async def test_strange_newer_and_dropped_entries_are_kept_aside_and_named(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    async with traffic(redis_url, tmp_path) as made:
        settings, client = made.settings, client_of(redis_url)
        key = made.name(runtime_keys.JOURNAL)
        fill_journal(client, key, entries=3, events=10)
        client.xadd(key, {"v": 2, "room": "dispatch", "n": 5, "seq": 35, "rows": "later"})
        client.xadd(key, {"by": "somebody else"})
        fill_journal(client, key, entries=1, events=5, first=35)
        members = {f"m{number}": 1 for number in range(40)}
        client.zadd(made.name(dispatch_keys.MESSAGES_PENDING), members)
        store_once(spark, settings)
        lake = Lake.of(settings)
        found = await audit(made.runtime, lake)
    rejects = ask(lake, "select version, reason from rejects order by entry_id").rows
    assert [version for version, _ in rejects] == [2, None]
    assert all(reason for _, reason in rejects)
    assert found.rejects == 2
    (gap,) = found.findings
    assert (gap.kind, gap.subject, found.wrong) == ("gap", "31-35", 5)
    assert "2 entries of this partition are in rejects" in gap.why


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
        # And the room finds them, which Redis and the database no longer do.
        room = TransactionsService(made.runtime, lake_lookup=transactions_of(made.settings))
        try:
            assert (await room.get(ended[0])).status.final
            with pytest.raises(TransactionFinished):
                await room.cancel(ended[0])
        finally:
            await room.close()
        assert Lake.of(made.settings).rows("transactions") == 3
        assert (await audit(made.runtime, Lake.of(made.settings))).clean


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


def test_a_table_of_an_older_version_gets_the_new_columns(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    older = EVENTS.arrow().remove(EVENTS.names.index("detail"))
    DeltaTable.create(
        lake.path("events"), older, partition_by=["date", "room"],
        configuration={"angarium.lake": lake._property()}, raise_if_key_not_exists=False,
    )  # fmt: skip
    assert lake.ensure("events").schema().fields[-1].name == "detail"
    assert ask(lake, "select detail from events").rows == []


def test_the_line_for_people_is_found_in_an_error_of_spark() -> None:
    text = (
        "Job aborted\nTraceback …\nangarium.runtime.errors.RedisUnavailable: gone (waited 120 s)\n"
    )
    assert reason_of(text) == "gone (waited 120 s)"
    assert reason_of("\n plain \n more") == "plain"
