"""Waiting: true values come back, failures tell what was seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.kit.eventually import NeverTrue, Signal, eventually, wait_until


def counter(limit: int) -> Callable[[], int]:
    """Falsy until it was asked so often."""
    asked = 0

    def condition() -> int:
        nonlocal asked
        asked += 1
        return asked if asked >= limit else 0

    return condition


async def test_the_value_that_made_it_true_comes_back() -> None:
    assert await eventually(counter(3)) == 3
    assert wait_until(counter(3)) == 3


async def test_an_async_condition_is_awaited() -> None:
    look = counter(3)

    async def condition() -> int:
        return look()

    assert await eventually(condition) == 3


async def test_a_failure_tells_what_was_seen_last() -> None:
    with pytest.raises(NeverTrue, match=r"within 0\.05 s .* it last saw \[\]"):
        await eventually(list, deadline_s=0.05)
    with pytest.raises(NeverTrue, match="it last saw 0"):
        wait_until(counter(10_000), deadline_s=0.02)


async def test_a_condition_that_hangs_is_given_up_at_the_deadline() -> None:
    async def condition() -> bool:
        await asyncio.Event().wait()
        return True

    with pytest.raises(NeverTrue, match="did not come back"):
        await eventually(condition, deadline_s=0.05)


async def test_assertions_mean_not_yet_and_other_errors_are_raised_at_once() -> None:
    look = counter(3)

    def asserting() -> bool:
        assert look() == 3
        return True

    def failing() -> bool:
        raise KeyError("gone")

    assert await eventually(asserting) is True
    with pytest.raises(KeyError):
        await eventually(failing)
    with pytest.raises(NeverTrue, match="KeyError"):
        await eventually(failing, deadline_s=0.02, ignoring=(KeyError,))


async def test_a_time_out_of_the_condition_is_not_mistaken_for_the_deadline() -> None:
    def condition() -> bool:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await eventually(condition)


async def test_a_signal_lets_go_at_the_nth_time_and_not_before() -> None:
    signal = Signal()
    waiting = asyncio.create_task(signal.wait(3))
    signal.fire()
    signal.fire("arguments are", "ignored")
    await asyncio.sleep(0)
    assert not waiting.done()
    signal.fire()
    await waiting
    await signal.wait(2)
    assert signal.count == 3
    with pytest.raises(NeverTrue, match="3 of 4"):
        await signal.wait(4, deadline_s=0.02)
