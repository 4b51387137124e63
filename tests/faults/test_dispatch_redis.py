"""Redis killed under a dispatcher and a worker: what the durable intake took arrives once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from angarium.runtime.errors import AngariumError
from tests.dispatch.processes import DispatchProcesses, dispatch_processes
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.server import ServerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


async def enqueue(ours: DispatchProcesses, over: asyncio.Event) -> Counter[str]:
    """Enqueue until `over`. Each message is repeated with its own key until Redis confirms it."""
    taken: Counter[str] = Counter()
    number = 0
    while not over.is_set():
        name = str(number)
        try:
            await ours.store.enqueue(b'{"n":"%s"}' % name.encode(), f"key-{name}")
        except AngariumError:
            continue  # unknown or refused: the same key again, so it counts once
        taken[name] += 1
        number += 1
    return taken


async def test_a_killed_redis_loses_and_doubles_nothing_that_was_enqueued() -> None:
    times = rounds(3, 20)
    with ServerProcess(aof=True, fsync="always") as server:
        async with dispatch_processes(server.url, durability="local") as ours:
            await ours.add_dispatcher()
            await ours.add_dispatcher()
            await ours.add_worker()
            await ours.add_worker()
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                load = [group.create_task(enqueue(ours, over)) for _ in range(1)]
                for _ in range(times):
                    await moves(ours)
                    server.kill()
                    await asyncio.to_thread(server.restart)
                await moves(ours)
                over.set()
            expected = sum((task.result() for task in load), Counter[str]())
            await ours.wait_settled(expected.total())
            arrived = await ours.results()
            lost, doubled = expected - arrived.counts, arrived.counts - expected
            print(
                f"{expected.total()} taken, Redis killed {times} times: lost {lost.total()}, "
                f"doubled {doubled.total()}, longest gap {arrived.longest_gap_ms()} ms"
            )
            assert lost == Counter()
            assert doubled == Counter()
            assert all(role.alive for role in (*ours.dispatchers, *ours.workers))


async def moves(ours: DispatchProcesses) -> None:
    """Wait until more results arrive."""

    async def count() -> int:
        return (await ours.store.status(0)).processed

    before = await eventually(count, deadline_s=60, ignoring=(AngariumError,))

    async def more() -> bool:
        return await count() > before + 20

    await eventually(more, deadline_s=60, ignoring=(AngariumError,))
