"""The scripts that store definitions, and those that read: lists, statistics, the health report."""

from __future__ import annotations

import pytest

from angarium.transactions.errors import (
    PipelineUnknown,
    VersionTaken,
)
from angarium.transactions.model import TransactionStatus
from angarium.transactions.statistics import StatisticsLevel
from tests.kit.clock import FakeClock
from tests.transactions.harness import harness

HOOK = "https://example.org/hook"


async def test_a_version_never_changes(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        assert await here.define("p", {"type": "echo"}) == 1
        assert await here.define("p", {"type": "echo"}) == 1
        assert await here.define("p", {"type": "add"}) == 2
        assert await here.define("p", {"type": "echo"}, version=1) == 1
        with pytest.raises(VersionTaken):
            await here.define("p", {"type": "add"}, version=1)
        assert await here.define("p", {"type": "add"}, version=9) == 9
        assert sorted(await here.pipelines.versions("p")) == [1, 2, 9]
        with pytest.raises(PipelineUnknown):
            await here.pipelines.versions("missing")
        newest, _ = await here.pipelines.all()
        assert newest["p"].version == 9


async def test_transactions_are_listed_by_status_and_filtered(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        asleep = await here.taken(owner="ann")
        await here.store.sleep(asleep.id, "1", b"", None, "go")
        (done,) = await here.completed()
        running = await here.taken()
        queued = await here.start(owner="bob")

        async def ids(status: TransactionStatus, **more: str) -> list[str]:
            return [
                e.id for e in await here.queries.list_by_status(status, ["default"], 10, **more)
            ]

        assert await ids(TransactionStatus.QUEUED) == [queued]
        assert await ids(TransactionStatus.RUNNING) == [running.id]
        assert await ids(TransactionStatus.SLEEPING) == [asleep.id]
        assert await ids(TransactionStatus.SUCCESS) == [done]
        assert await ids(TransactionStatus.FAILED) == []
        assert await ids(TransactionStatus.QUEUED, owner="ann") == []
        assert await ids(TransactionStatus.SLEEPING, owner="ann", pipeline="one") == [asleep.id]


async def test_every_event_is_counted_at_three_levels_and_five_ways(any_redis_url: str) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        await here.start(owner="ann")
        await here.start("two", {"sum": 1}, owner="bob")
        for taken in await here.take():
            await here.store.sleep(taken.id, "1", b"", 1_000, None)
        await clock.advance(1)
        await here.wake()
        for taken in await here.take():
            await here.store.complete(taken, "success", b"", "")
        expected = {"started": 2, "taken": 4, "slept": 2, "woken": 2, "completed": 2}
        for level in StatisticsLevel:
            assert await here.counters(level) == expected
        for partition in here.store.keys.partitions:
            await here.store.touch_node(partition, "n1", ["default"])
        (interval, *rest) = await here.queries.statistics(StatisticsLevel.COARSE, 1)
        assert rest == []
        assert interval.node_groups["default"] == expected
        assert interval.pipelines["two"]["taken"] == 2
        assert interval.owners["ann"]["completed"] == 1
        assert interval.owner_pipelines["bob|two"]["slept"] == 1
        assert interval.queues["default"]["in"] == 0
        await clock.advance(300)
        await here.start()
        assert len(await here.queries.statistics(StatisticsLevel.FINE, 100)) == 2


async def test_the_health_report_shows_longest_running_queues_and_silent_nodes(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        oldest = await here.taken()
        await clock.advance(60)
        await here.start()
        await clock.advance(5)
        report = await here.queries.health_report(["default"], 5)
        assert (report.running, report.sleeping) == (1, 0)
        (found,) = report.longest_running
        assert (found.transaction_id, found.age_ms, found.node) == (oldest.id, 65_000, "n1")
        assert [(n.node, n.alive) for n in report.nodes] == [("n1", False)]
        queue = next(each for each in report.queues if each.kind == "in")
        assert (queue.length, queue.waiting_ms) == (1, 5_000)
