"""The life of a service: what each verb does in each phase, and how it ends by its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import pytest

from angarium.runtime.errors import AngariumError, LeaseLost
from angarium.runtime.service import Service
from tests.kit.clock import FakeClock
from tests.kit.eventually import Signal, eventually
from tests.runtime.recorder import Block, Recorder, others

# The verbs, in order and out of order


async def test_a_service_goes_through_its_hooks_in_order_and_leaves_no_task() -> None:
    service = Recorder()
    assert not service.ready
    assert service.stopped
    await service.start()
    assert service.ready
    assert service.ports == {"http": 1}
    await service.quiet()
    assert not service.ready
    assert not service.stopped
    await service.stop(10)
    assert service.stopped
    assert service.ports == {}
    assert service.hooks_called == ["start", "quiet", "stop", "close"]
    assert not others()


async def test_starting_twice_starts_once_and_both_wait_until_it_is_ready() -> None:
    service, block = Recorder(), Block()
    service.starting = block
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(service.start()) for _ in range(2)]
        await block.entered.wait()
        assert not any(task.done() for task in both)
        block.release.set()
    await service.start()
    assert service.hooks_called == ["start"]
    await service.stop(10)


async def test_stopping_or_quieting_before_the_start_does_nothing() -> None:
    service = Recorder()
    await service.stop(10)
    await service.quiet()
    assert service.hooks_called == []


async def test_stopping_twice_stops_once_also_when_both_come_together() -> None:
    service = Recorder()
    await service.start()
    async with asyncio.TaskGroup() as group:
        group.create_task(service.stop(10))
        group.create_task(service.stop(10))
    await service.stop(10)
    assert service.hooks_called == ["start", "quiet", "stop", "close"]


async def test_a_stop_during_the_start_ends_it_and_the_start_raises() -> None:
    service, block = Recorder(), Block()
    service.starting = block
    starter = asyncio.ensure_future(service.start())
    await block.entered.wait()
    await service.stop(10)
    assert service.stopped
    with pytest.raises(AngariumError, match="stopped while it started"):
        await starter
    assert service.hooks_called == ["start", "close"]
    assert not others()


async def test_a_stop_before_the_first_step_of_the_start_leaves_nothing_behind() -> None:
    service = Recorder()
    starter = asyncio.ensure_future(service.start())
    # One turn: `start` has asked for its owner task, which has not run a step yet.
    await asyncio.sleep(0)
    await service.stop(10)
    with pytest.raises(AngariumError, match="stopped while it started"):
        await starter
    assert service.stopped
    service.hooks_called.clear()
    await service.start()
    assert service.ready
    await service.stop(10)


async def test_a_start_that_is_cancelled_releases_what_it_opened() -> None:
    service, block = Recorder(), Block()
    service.starting = block
    starter = asyncio.ensure_future(service.start())
    await block.entered.wait()
    starter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starter
    assert service.stopped
    assert service.hooks_called == ["start", "close"]
    assert not others()


async def test_a_start_that_fails_releases_what_it_opened_and_raises_its_own_error() -> None:
    service, block = Recorder(), Block()

    async def fail() -> None:
        service.spawn("kept", block)
        await block.entered.wait()
        raise LeaseLost("a newer term exists")

    service.starting = fail
    with pytest.raises(LeaseLost):
        await service.start()
    assert service.stopped
    assert block.cancelled.count == 1
    assert service.hooks_called == ["start", "close"]
    assert not others()


async def test_several_stops_during_the_start_leave_the_closing_undisturbed() -> None:
    service, block, closing = Recorder(), Block(), Block()
    service.starting, service.closing = block, closing
    starter = asyncio.ensure_future(service.start())
    await block.entered.wait()
    stoppers = [asyncio.ensure_future(service.stop(1_000))]
    await closing.entered.wait()
    stoppers.append(asyncio.ensure_future(service.stop(1_000)))
    stoppers.append(asyncio.ensure_future(service.stop(0)))
    await stoppers[-1]
    closing.release.set()
    await asyncio.wait(stoppers)
    assert closing.cancelled.count == 0
    with pytest.raises(AngariumError, match="stopped while it started"):
        await starter


async def test_a_start_during_the_stop_of_another_start_begins_anew() -> None:
    service, block, closing = Recorder(), Block(), Block()
    service.starting, service.closing = block, closing
    first = asyncio.ensure_future(service.start())
    await block.entered.wait()
    # In one turn: the second start comes before the first has noticed its end.
    stopper = asyncio.ensure_future(service.stop(1_000))
    second = asyncio.ensure_future(service.start())
    await closing.entered.wait()
    block.release.set()
    closing.release.set()
    await stopper
    await second
    assert service.ready
    with pytest.raises(AngariumError, match="stopped while it started"):
        await first
    await service.stop(10)
    assert service.hooks_called == ["start", "close", "start", "quiet", "stop", "close"]


async def test_a_start_that_swallows_its_cancellation_is_stopped_all_the_same() -> None:
    service, block = Recorder(), Block()

    async def swallow() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await block()

    service.starting = swallow
    starter = asyncio.ensure_future(service.start())
    await block.entered.wait()
    await service.stop(10)
    with pytest.raises(AngariumError, match="stopped while it started"):
        await starter
    assert service.hooks_called == ["start", "close"]


async def test_a_quiet_service_refuses_to_start_and_a_stopped_one_starts_again() -> None:
    service = Recorder()
    await service.start()
    await service.quiet()
    with pytest.raises(AngariumError, match="is quiet"):
        await service.start()
    await service.stop(10)
    await service.start()
    assert service.ready
    await service.stop(10)
    assert service.hooks_called == ["start", "quiet", "stop", "close"] * 2


async def test_a_start_during_a_stop_waits_for_it_and_begins_anew() -> None:
    service, block = Recorder(), Block()
    service.stopping = block
    await service.start()
    stopper = asyncio.ensure_future(service.stop(10))
    await block.entered.wait()
    starter = asyncio.ensure_future(service.start())
    await asyncio.sleep(0)
    assert not starter.done()
    block.release.set()
    await stopper
    await starter
    assert service.ready
    assert service.hooks_called == ["start", "quiet", "stop", "close", "start"]
    await service.stop(10)


async def test_quiet_during_the_start_takes_effect_once_it_has_started() -> None:
    service, block = Recorder(), Block()
    service.starting = block
    starter = asyncio.ensure_future(service.start())
    await block.entered.wait()
    quieting = asyncio.ensure_future(service.quiet())
    await asyncio.sleep(0)
    block.release.set()
    await starter
    await quieting
    assert not service.ready
    await service.stop(10)
    assert service.hooks_called == ["start", "quiet", "stop", "close"]


async def test_nothing_is_supervised_by_a_service_that_does_not_run() -> None:
    service = Recorder()
    with pytest.raises(AngariumError, match="does not run"):
        service.loop("late", Block(), 1.0)


# Deadlines


async def test_what_is_not_finished_by_the_deadline_is_cancelled_and_closed() -> None:
    clock, block = FakeClock(), Block()
    service = Recorder(clock=clock)
    service.stopping = block
    await service.start()
    stopper = asyncio.ensure_future(service.stop(10))
    await block.entered.wait()
    await clock.advance(8.9)
    assert block.cancelled.count == 0
    await clock.advance(0.1)
    await stopper
    assert block.cancelled.count == 1
    assert service.stopped
    assert service.hooks_called[-1] == "close"
    assert not others()


async def test_a_second_stop_with_a_shorter_deadline_shortens_the_first() -> None:
    clock, block = FakeClock(), Block()
    service = Recorder(clock=clock)
    service.stopping = block
    await service.start()
    first = asyncio.ensure_future(service.stop(1_000))
    await block.entered.wait()
    await service.stop(0)
    await first
    assert clock.monotonic() == 0
    assert block.cancelled.count == 1
    assert service.hooks_called[-1] == "close"


async def test_a_stop_that_is_cancelled_cancels_the_work_and_still_closes() -> None:
    block = Block()
    service = Recorder()
    service.stopping = block
    await service.start()
    stopper = asyncio.ensure_future(service.stop(1_000))
    await block.entered.wait()
    stopper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopper
    await eventually(lambda: service.stopped)
    assert service.hooks_called[-1] == "close"


async def test_a_task_that_ignores_its_cancellation_is_named_and_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, service, deaf = FakeClock(), Recorder(), Signal()
    service.clock = clock
    release = asyncio.Event()

    async def ignore() -> None:
        while not release.is_set():
            deaf.fire()
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    await service.start()
    service.spawn("deaf", ignore)
    await deaf.wait()
    stopper = asyncio.ensure_future(service.stop(10))
    await clock.wait_for_sleepers()
    await clock.advance(10)
    await stopper
    assert clock.monotonic() == 10
    assert not service.stopped
    assert "stop_overdue" in caplog.text
    assert "deaf" in caplog.text
    release.set()
    await eventually(lambda: service.stopped)


async def test_a_hook_that_fails_on_the_way_out_does_not_keep_the_rest_from_running(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Recorder()

    async def fail() -> None:
        raise ValueError("no way out")

    service.stopping = fail
    service.closing = fail
    await service.start()
    await service.stop(10)
    assert service.stopped
    assert service.hooks_called == ["start", "quiet", "stop", "close"]
    assert caplog.text.count("hook_failed") == 2


# Stress


class Exclusive(Service):
    """Fails the test if two lives overlap, or if a life is closed twice or not at all."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__("exclusive")
        self.draw = draw
        self.open = 0
        self.starts = 0
        self.closes = 0

    async def on_start(self) -> None:
        assert self.open == 0
        self.open += 1
        self.starts += 1
        self.loop("turns", self._turn, 0.0)
        self.spawn("kept", asyncio.Event().wait)
        for _ in range(self.draw.randrange(4)):
            await asyncio.sleep(0)

    async def on_close(self) -> None:
        try:
            for _ in range(self.draw.randrange(4)):
                await asyncio.sleep(0)
        finally:
            self.open -= 1
            self.closes += 1

    async def _turn(self) -> None:
        assert self.open == 1


@pytest.mark.parametrize("seed", range(10))
async def test_starts_and_stops_in_any_interleaving_never_overlap_nor_leak(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    draw = random.Random(seed)
    service = Exclusive(draw)

    async def act() -> None:
        for _ in range(15):
            for _ in range(draw.randrange(6)):
                await asyncio.sleep(0)
            match draw.randrange(4):
                case 0 | 1:
                    # Stopped while it started, or quiet: both are answers a starter may get.
                    with contextlib.suppress(AngariumError):
                        await service.start()
                case 2:
                    await service.stop(draw.choice([0, 5]))
                case 3:
                    await service.quiet()

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(act())
    await service.stop(5)
    assert service.stopped
    assert service.starts == service.closes
    assert service.starts > 1
    assert "failed" not in caplog.text
    await asyncio.sleep(0)
    assert not others()
