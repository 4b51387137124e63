"""Functions that take longer than the acknowledgement time-out: each message runs once.

What a live worker has stays with it, however long its function takes, over changes of the leader
and broken connections. `tests/faults/test_dispatch_slow.py` does it with processes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from angarium.dispatch.dispatcher import Dispatcher
from tests.dispatch.harness import dispatch_services

pytestmark = pytest.mark.timeout(240)


async def test_a_fast_function_costs_no_renewal(redis_url: str) -> None:
    async with dispatch_services(redis_url, ack_timeout_ms=60_000) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(*[b'{"n":%d}' % n for n in range(500)])
        await ours.wait_for_results(500)
        assert worker.metrics.renewed == 0


async def test_a_hand_over_leaves_slow_messages_with_their_worker(redis_url: str) -> None:
    """Nothing is counted, neither for those that run nor for those that were not sent."""
    gate = asyncio.Event()
    runs: Counter[int] = Counter()

    async def wait(message: dict[str, Any]) -> dict[str, Any]:
        runs[message["n"]] += 1
        await gate.wait()
        return message

    async with dispatch_services(redis_url, ack_timeout_ms=1_500, lock_ms=1_000) as ours:
        first = await ours.add_dispatcher()
        worker = await ours.add_worker(wait, options={"window": 5})
        await ours.publish(*[b'{"n":%d}' % n for n in range(8)])
        await ours.wait_until(lambda: len(runs) == 5)
        second = await ours.add_dispatcher()
        await first.stop(10)
        await ours.wait_until(lambda: second.partitions[0].leading)
        renewed = worker.metrics.renewed
        await ours.wait_until(lambda: worker.metrics.renewed > renewed + 10)
        gate.set()
        await ours.wait_for_results(8)
        assert runs == Counter(range(8))
        assert await ours.dead() == 0


async def test_a_worker_renews_on_another_connection_when_its_own_breaks(redis_url: str) -> None:
    gate = asyncio.Event()
    runs: list[int] = []

    async def wait(message: dict[str, Any]) -> dict[str, Any]:
        runs.append(message["n"])
        await gate.wait()
        return message

    async with dispatch_services(redis_url, ack_timeout_ms=1_500) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker(wait, options={"window": 3})
        await ours.publish(*[b'{"n":%d}' % n for n in range(5)])
        await ours.wait_until(lambda: len(runs) == 3)
        for _ in range(3):
            break_connections(dispatcher)
            await ours.wait_until(lambda: held_at(dispatcher) == 3)
        renewed = worker.metrics.renewed
        await ours.wait_until(lambda: worker.metrics.renewed > renewed + 9)
        assert len(runs) == 3, "the window counts what the worker holds from the old connection"
        gate.set()
        await ours.wait_for_results(5)
        assert sorted(runs) == list(range(5))


def break_connections(dispatcher: Dispatcher) -> None:
    for connection in dispatcher.workers.connections:
        assert connection._transport is not None
        connection._transport.abort()


def held_at(dispatcher: Dispatcher) -> int:
    return sum(len(each.unacknowledged) for each in dispatcher.workers.connections)
