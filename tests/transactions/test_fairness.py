"""Owners take turns by setting: many transactions of one owner do not hold up those of another."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from angarium import Angarium
from angarium.transactions import Outcome, Step
from angarium.transactions.keys import FAIR_QUEUE, OWNER_TURNS
from angarium.transactions.model import TransactionStatus
from angarium.transactions.node_work import NodeCapabilities
from tests.faults.profile import rounds
from tests.kit.clock import FakeClock
from tests.transactions.harness import Harness, harness, running_node

FAIR = {"node_fair_owners": True}
MANY = rounds(2_000, 10_000)
ABLE = NodeCapabilities(" echo ", plain_types=" ", threads=0)


async def _start(here: Harness, owner: str, count: int, pipeline: str = "one") -> list[str]:
    return list(await asyncio.gather(*(here.start(pipeline, owner=owner) for _ in range(count))))


async def _owners(here: Harness, count: int, able: NodeCapabilities = ABLE) -> list[str]:
    batch = await here.store.dequeue(0, "n1", ["default"], count, able)
    return [each.owner for each in batch.taken]


async def _on(here: Harness) -> None:
    for partition in here.store.partitions:
        await here.store.touch_node(partition, "n1", ["default"], ["echo"])


async def _left(here: Harness) -> int:
    """Keys of queues in turn that exist."""
    found = 0
    for key in (FAIR_QUEUE, OWNER_TURNS):
        for queue in ("in|default", "out|default", "in|default|block"):
            name = here.runtime.keyspace.name(key, 0, queue)
            found += await here.runtime.redis.call("EXISTS", name, key=name)
    return found


async def test_the_ten_of_one_owner_come_beside_the_first_of_ten_thousand(redis_url: str) -> None:
    async with harness(redis_url, transactions=FAIR) as here:
        await _on(here)
        await _start(here, "large", MANY)
        await _start(here, "small", 10)
        assert Counter(await _owners(here, 20)) == {"large": 10, "small": 10}
        await _start(here, "small", 2)
        await _start(here, "third", 2)
        assert Counter(await _owners(here, 6)) == {"large": 2, "small": 2, "third": 2}
        assert len(await _owners(here, MANY)) == MANY - 12
        assert await _left(here) == 0


async def test_without_the_setting_transactions_run_in_their_order(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await _on(here)
        await _start(here, "large", 30)
        await _start(here, "small", 10)
        assert set(await _owners(here, 30)) == {"large"}
        assert await _left(here) == 0


async def test_entries_of_both_kinds_are_served_while_the_setting_changes(redis_url: str) -> None:
    async with harness(redis_url, transactions=FAIR) as here:
        await _start(here, "before", 30)
        await _on(here)
        await _start(here, "large", 30)
        await _start(here, "small", 30)
        assert Counter(await _owners(here, 20)) == {"before": 10, "large": 5, "small": 5}
        assert Counter(await _owners(here, 100)) == {"before": 20, "large": 25, "small": 25}


async def test_an_owner_s_own_transactions_keep_their_order(redis_url: str) -> None:
    async with harness(redis_url, transactions=FAIR) as here:
        await _on(here)
        ids: dict[str, list[str]] = {"a": [], "b": []}
        for _ in range(20):
            for owner in ids:
                ids[owner].append(await here.start("one", owner=owner))
        batch = await here.store.dequeue(0, "n1", ["default"], 100, ABLE)
        for owner, expected in ids.items():
            assert [each.id for each in batch.taken if each.owner == owner] == expected


async def test_returned_and_recovered_transactions_come_first(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock, transactions=FAIR) as here:
        await _on(here)
        await _start(here, "a", 5)
        batch = await here.store.dequeue(0, "n1", ["default"], 2, ABLE)
        first, second = batch.taken
        assert await here.store.return_to_queue(first.id, first.run) == "returned"
        clock.jump(9_000)
        assert await here.recover() == 1, "the second: its node is silent"
        again = await here.store.dequeue(0, "n1", ["default"], 2, ABLE)
        assert {each.id for each in again.taken} == {first.id, second.id}


async def test_queues_in_turn_are_counted_listed_and_limited(any_redis_url: str) -> None:
    async with harness(any_redis_url, transactions=FAIR) as here:
        await _on(here)
        ids = [*await _start(here, "a", 7), *await _start(here, "b", 3)]
        (queue,) = (
            each
            for each in (await here.client.health_report(1)).queues
            if (each.node_group, each.kind) == ("default", "in")
        )
        assert queue.length == 10
        assert {each.id for each in await here.listed(TransactionStatus.QUEUED)} == set(ids)
        assert len(await here.listed(TransactionStatus.QUEUED, owner="b")) == 3


async def _progress(here: Harness, ids: Sequence[str]) -> int:
    states = [await here.state(each) for each in ids]
    return sum(each.status.final for each in states)


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_a_node_serves_the_small_owner_while_the_large_one_waits(
    redis_url: str, kind: str
) -> None:
    """Also steps that wait for a thread, and transactions that continue after a sleep."""
    app, many = Angarium(), 400

    if kind == "plain":

        @app.step("block")
        def block(step: Step) -> Outcome:
            time.sleep(0.01)
            return step.succeeded()
    else:

        @app.step("block")
        async def block_async(step: Step) -> Outcome:
            await asyncio.sleep(0.01)
            return step.succeeded()

    settings = {**FAIR, "node_threads": 2, "node_concurrency": 2 if kind != "plain" else 500}
    async with harness(redis_url, transactions=settings) as here:
        await _on(here)
        await here.define("p", {"type": "block"})
        large = await _start(here, "large", many, "p")
        async with running_node(here.runtime, app):
            await here.ended(large[0])
            small = await _start(here, "small", 10, "p")
            for id in small:
                assert (await here.ended(id)).status == "success"
            assert await _progress(here, large) < many / 2
            for id in large:
                await here.ended(id)
        assert await _left(here) == 0
