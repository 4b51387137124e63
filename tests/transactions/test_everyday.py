"""What users do: steps that block, two nodes, several groups, large data."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from angarium import Angarium
from angarium.runtime.runtime import Runtime
from angarium.transactions import Outcome, Step
from angarium.transactions.node import TransactionNode
from angarium.transactions.node_work import NodeCapabilities
from tests.kit.clock import FakeClock
from tests.transactions.harness import Harness, harness, running_node

pytestmark = pytest.mark.timeout(300)


async def test_f18_two_nodes_share_steps_that_are_plain_functions(redis_url: str) -> None:
    app, done = Angarium(), Counter[str]()

    @app.step("block")
    def block(step: Step) -> Outcome:
        time.sleep(0.02)
        return step.succeeded()

    async with harness(redis_url, transactions={"node_threads": 4}) as here:
        await here.define("p", {"type": "block"})
        ids = [await here.start("p") for _ in range(160)]
        async with (
            Runtime.open(here.runtime.settings, actor="second") as second,
            running_node(here.runtime, app),
            running_node(second, app),
        ):
            for id in ids:
                ended = await here.ended(id)
                done[ended.node or ""] += 1
                assert ended.status == "success"
        assert min(done.values()) >= 16, done
        assert len(done) == 2, done
        events = Counter(each.event for each in await here.events())
        assert events["step_awaited"] == 0, "waiting for a thread is no lack of a node"


async def test_a_free_thread_gets_the_next_step_without_a_poll(redis_url: str) -> None:
    """The clock stands still, so that the node never polls."""
    app = Angarium()

    @app.step("quick")
    def quick(step: Step) -> Outcome:
        return step.succeeded()

    settings = {"node_threads": 2}
    async with harness(redis_url, clock=FakeClock(), transactions=settings) as here:
        await here.define("p", {"type": "quick"})
        ids = [await here.start("p") for _ in range(80)]
        node = TransactionNode(here.runtime, app)
        await node.start()
        for id in ids:
            assert (await here.ended(id)).status == "success"
        await node.stop(0)


async def test_coroutines_run_while_all_threads_are_busy(any_redis_url: str) -> None:
    app, release = Angarium(), asyncio.Event()

    @app.step("block")
    def block(step: Step) -> Outcome:
        while not release.is_set():
            time.sleep(0.01)
        return step.succeeded()

    @app.step("quick")
    async def quick(step: Step) -> Outcome:
        return step.succeeded()

    async with (
        harness(any_redis_url, transactions={"node_threads": 2}) as here,
        running_node(here.runtime, app),
    ):
        await here.define("block", {"type": "block"})
        await here.define("quick", {"type": "quick"}, {"type": "quick"})
        await here.define("mixed", {"type": "quick"}, {"type": "block"})
        blocked = [await here.start(name) for name in ("block", "mixed") * 5]
        quick_ids = [await here.start("quick") for _ in range(20)]
        for id in quick_ids:
            assert (await here.ended(id)).status == "success"
        report = await here.client.health_report(1)
        assert report.awaited_steps == []
        release.set()
        for id in blocked:
            assert (await here.ended(id)).status == "success"


async def _dequeue(here: Harness, groups: list[str], count: int) -> Counter[str]:
    batch = await here.store.dequeue(0, "n1", groups, count, NodeCapabilities(" echo "))
    return Counter(each.label.split("|")[0] for each in batch.taken)


async def test_f18_node_groups_get_equal_shares(redis_url: str) -> None:
    async with harness(redis_url) as here:
        groups = ["a", "b", "c"]
        for group, count in zip(groups, (100, 20, 2), strict=True):
            await here.define(f"p-{group}", {"type": "echo"}, node_group=group)
            for _ in range(count):
                await here.start(f"p-{group}")
        assert await _dequeue(here, groups, 30) == {"a": 18, "b": 10, "c": 2}
        assert await _dequeue(here, groups, 30) == {"a": 20, "b": 10}
        assert await _dequeue(here, groups, 300) == {"a": 62}


async def test_a_dequeue_of_large_data_takes_a_part_and_keeps_the_order(redis_url: str) -> None:
    async with harness(redis_url) as here:
        ids = [await here.start("one", "x" * 1_000_000) for _ in range(40)]
        found: list[str] = []
        while len(found) < len(ids):
            batch = await here.store.dequeue(0, "n1", ["default"], 100, NodeCapabilities(" echo "))
            assert len(batch.taken) <= 17, "16 MiB"
            assert batch.more or len(found) + len(batch.taken) == len(ids)
            found += [each.id for each in batch.taken]
        assert found == ids
