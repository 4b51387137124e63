"""The fake clock: nobody wakes early, nobody late, always in the same order."""

from __future__ import annotations

import asyncio

import pytest

from angarium.runtime.clock import Clock
from tests.kit.clock import EPOCH_MS, FakeClock


async def test_sleepers_wake_in_order_of_time_then_of_falling_asleep() -> None:
    clock = FakeClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in [("c", 3), ("a1", 1), ("b", 2), ("a2", 1)]:
            group.create_task(sleeper(name, seconds))
        assert await clock.advance(2.5) == 3
        assert woken == [("a1", 1.0), ("a2", 1.0), ("b", 2.0)]
        assert clock.sleepers == 1
        await clock.advance(0.5)
    assert woken[-1] == ("c", 3.0)


async def test_a_sleeper_that_sleeps_again_is_woken_again_in_the_same_advance() -> None:
    clock = FakeClock()
    ticks: list[float] = []

    async def ticker() -> None:
        while True:
            await clock.sleep(0.1)
            ticks.append(clock.monotonic())

    async with asyncio.TaskGroup() as group:
        task = group.create_task(ticker())
        assert await clock.advance(1.0) == 10
        task.cancel()
    assert ticks == [tick / 10 for tick in range(1, 11)]


async def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = FakeClock()
    assert clock.now_ms() == EPOCH_MS
    assert clock.monotonic() == 0
    await clock.sleep(0)
    assert clock.monotonic() == 0


async def test_the_owned_wall_time_moves_with_it_and_can_be_set_wrong() -> None:
    clock = FakeClock(1_000)
    await clock.advance(1.5)
    assert clock.now_ms() == 2_500
    clock.jump(-2_000)
    assert clock.now_ms() == 500
    assert clock.monotonic() == 1.5
    with pytest.raises(ValueError, match="backwards"):
        await clock.advance(-1)


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(clock.sleep(1))
        await clock.wait_for_sleepers(1)
        task.cancel()
    assert clock.sleepers == 0
    assert await clock.advance(5) == 0
