"""Functions that take longer than the acknowledgement time-out: each message runs once.

What a live worker has stays with it, however long its function takes, over changes of the leader
and broken connections. What a dead or hanging worker had is due again within the lease.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from angarium.dispatch.dispatcher import Dispatcher
from tests.dispatch.harness import DispatchServices, dispatch_services
from tests.dispatch.processes import DispatchProcesses, dispatch_processes
from tests.dispatch.slow import RUNS
from tests.faults.profile import LONG, rounds
from tests.kit.eventually import eventually

pytestmark = pytest.mark.timeout(900 if LONG else 240)
SLOW = "tests.dispatch.slow:app"


class SlowFunction:
    """Takes the seconds that `draw` gives, and counts its runs by message."""

    def __init__(self, draw: Any) -> None:
        self.runs: Counter[int] = Counter()
        self._draw = draw

    async def __call__(self, message: dict[str, Any]) -> dict[str, Any]:
        self.runs[message["n"]] += 1
        await asyncio.sleep(self._draw())
        return message


async def check_each_ran_once(ours: DispatchServices, function: SlowFunction, count: int) -> None:
    results = await ours.wait_for_results(count)
    assert Counter(int(each["n"]) for each in results) == Counter(range(count))
    assert function.runs == Counter(range(count))
    assert await ours.dead() == 0


@pytest.mark.parametrize("seconds", [3, 30] if LONG else [3])
async def test_f3_a_slow_function_runs_once_for_each_message(
    redis_url: str, seconds: float
) -> None:
    count = rounds(300, 3_000)
    function = SlowFunction(lambda: seconds)
    async with dispatch_services(redis_url, ack_timeout_ms=2_000, lock_ms=2_000) as ours:
        dispatcher = await ours.add_dispatcher()
        options = {"concurrency": rounds(100, 300)}
        worker = await ours.add_worker(function, options=options)
        await ours.publish(*[b'{"n":%d}' % n for n in range(count)])
        await check_each_ran_once(ours, function, count)
        assert worker.metrics.duplicates == 0
        assert worker.metrics.renewed > 0
        assert dispatcher.metrics.redelivered == 0


async def test_f3_functions_of_any_length_run_once_on_three_workers(redis_url: str) -> None:
    count, seeded = rounds(150, 3_000), random.Random(11)
    function = SlowFunction(lambda: seeded.uniform(0, rounds(3, 10)))
    async with dispatch_services(redis_url, ack_timeout_ms=2_000, lock_ms=2_000) as ours:
        await ours.add_dispatcher()
        for _ in range(3):
            await ours.add_worker(function, options={"concurrency": 50, "window": 200})
        await ours.publish(*[b'{"n":%d}' % n for n in range(count)])
        await check_each_ran_once(ours, function, count)


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


# Processes ------------------------------------------------------------------------------------


async def started(ours: DispatchProcesses, runs: Path, count: int) -> Counter[str]:
    def enough() -> bool:
        return runs.exists() and len(runs.read_text().split()) >= count

    await eventually(enough, deadline_s=60)
    return Counter(runs.read_text().split())


async def wait_for_results(ours: DispatchProcesses, count: int) -> Counter[str]:
    await ours.wait_settled(count)
    return (await ours.results()).counts


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_what_a_dead_or_hanging_worker_had_goes_to_another_one(
    redis_url: str, tmp_path: Path, fault: str
) -> None:
    runs = tmp_path / "runs"
    count = 20
    settings = {"ack_timeout_ms": 1_500, "lock_ms": 2_000}
    async with dispatch_processes(redis_url, dispatch=settings) as ours:
        await ours.add_dispatcher()
        victim = await ours.add_worker(SLOW, **{RUNS: str(runs)})
        await ours.wait_for_leaders()
        await ours.publish([b'{"n":%d,"s":4}' % n for n in range(count)])
        await started(ours, runs, count)
        (victim.kill if fault == "kill" else victim.pause)()
        await ours.add_worker(SLOW, **{RUNS: str(runs)})
        assert await started(ours, runs, 2 * count) == Counter({str(n): 2 for n in range(count)})
        if fault == "pause":
            victim.resume()
        found = await wait_for_results(ours, count)
        assert found == Counter({str(n): 1 for n in range(count)}), "each result is stored once"
        assert (await ours.store.status(0)).dead == 0


async def test_slow_messages_stay_with_their_worker_when_the_leader_is_killed(
    redis_url: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    count = 20
    async with dispatch_processes(redis_url, dispatch={"lock_ms": 1_000}) as ours:
        await ours.add_dispatcher()
        await ours.add_dispatcher()
        await ours.add_worker(SLOW, **{RUNS: str(runs)})
        leader = await ours.wait_for_leaders()
        await ours.publish([b'{"n":%d,"s":8}' % n for n in range(count)])
        await started(ours, runs, count)
        leader.kill()
        found = await wait_for_results(ours, count)
        assert found == Counter({str(n): 1 for n in range(count)})
        assert Counter(runs.read_text().split()) == found, "each message ran once"
