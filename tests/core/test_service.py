"""The life of a service: what each verb does in each phase, and what a fault in it costs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from prometheus_client import REGISTRY

from angarium.core.backoff import Backoff
from angarium.core.errors import AngariumError, LeaseLost
from angarium.core.service import Loop, Service
from tests.kit.clock import FakeClock
from tests.kit.eventually import Signal, eventually


@dataclass
class Result:
    again: bool = False


class Recorder(Service):
    """Writes down its hooks; a test may replace any of them."""

    def __init__(self, name: str = "recorder", clock: FakeClock | None = None) -> None:
        super().__init__(name, clock=clock)
        self.story: list[str] = []
        self.starting: Callable[[], Awaitable[None]] | None = None
        self.stopping: Callable[[], Awaitable[None]] | None = None
        self.closing: Callable[[], Awaitable[None]] | None = None

    async def on_start(self) -> None:
        self.story.append("start")
        self.ports = {"http": 1}
        if self.starting is not None:
            await self.starting()

    async def on_quiet(self) -> None:
        self.story.append("quiet")

    async def on_stop(self) -> None:
        self.story.append("stop")
        if self.stopping is not None:
            await self.stopping()
        await super().on_stop()

    async def on_close(self) -> None:
        self.story.append("close")
        if self.closing is not None:
            await self.closing()


@dataclass
class Block:
    """Something that waits for ever, and can be watched doing it."""

    entered: Signal = field(default_factory=Signal)
    cancelled: Signal = field(default_factory=Signal)
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self) -> None:
        self.entered.fire()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.fire()
            raise


def backoff_of(base_s: float) -> Backoff:
    """The longest delay of every draw, so that a test knows when the next attempt is due."""
    return Backoff(base_s=base_s, ceiling_s=1_000.0, draw=lambda _, longest: longest)


def failures(service: str, task: str) -> float:
    labels = {"service": service, "task": task}
    return REGISTRY.get_sample_value("angarium_supervised_failures_total", labels) or 0.0


def others() -> set[asyncio.Task[object]]:
    current = asyncio.current_task()
    return {task for task in asyncio.all_tasks() if task is not current}


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
    assert service.story == ["start", "quiet", "stop", "close"]
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
    assert service.story == ["start"]
    await service.stop(10)


async def test_stopping_or_quieting_before_the_start_does_nothing() -> None:
    service = Recorder()
    await service.stop(10)
    await service.quiet()
    assert service.story == []


async def test_stopping_twice_stops_once_also_when_both_come_together() -> None:
    service = Recorder()
    await service.start()
    async with asyncio.TaskGroup() as group:
        group.create_task(service.stop(10))
        group.create_task(service.stop(10))
    await service.stop(10)
    assert service.story == ["start", "quiet", "stop", "close"]


async def test_a_stop_during_the_start_ends_it_and_the_starter_is_told() -> None:
    service, block = Recorder(), Block()
    service.starting = block
    starter = asyncio.ensure_future(service.start())
    await block.entered.wait()
    await service.stop(10)
    assert service.stopped
    with pytest.raises(AngariumError, match="stopped while it started"):
        await starter
    assert service.story == ["start", "close"]
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
    service.story.clear()
    await service.start()
    assert service.ready
    await service.stop(10)


async def test_a_start_that_is_cancelled_gives_back_what_it_took() -> None:
    service, block = Recorder(), Block()
    service.starting = block
    starter = asyncio.ensure_future(service.start())
    await block.entered.wait()
    starter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starter
    assert service.stopped
    assert service.story == ["start", "close"]
    assert not others()


async def test_a_start_that_fails_gives_back_what_it_took_and_raises_its_own_error() -> None:
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
    assert service.story == ["start", "close"]
    assert not others()


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
    assert service.story == ["start", "quiet", "stop", "close"] * 2


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
    assert service.story == ["start", "quiet", "stop", "close", "start"]
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
    assert service.story == ["start", "quiet", "stop", "close"]


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
    assert service.story[-1] == "close"
    assert not others()


async def test_a_second_stop_with_less_patience_shortens_the_first() -> None:
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
    assert service.story[-1] == "close"


async def test_a_stop_that_is_cancelled_cuts_the_work_short_and_still_closes() -> None:
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
    assert service.story[-1] == "close"


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
    assert service.story == ["start", "quiet", "stop", "close"]
    assert caplog.text.count("hook_failed") == 2


# Loops


class Looping(Recorder):
    """A service with one loop whose passes follow a script of results and faults."""

    def __init__(self, clock: FakeClock, script: list[object], name: str = "looping") -> None:
        super().__init__(name, clock)
        self.script = script
        self.passed = Signal()
        self.turns: Loop | None = None
        self.passes_at_s: list[float] = []

    async def on_start(self) -> None:
        await super().on_start()
        self.turns = self.loop("turns", self.run_once, 10.0, backoff=backoff_of(1.0))

    async def run_once(self) -> object:
        self.passes_at_s.append(self.clock.monotonic())
        self.passed.fire()
        step = self.script.pop(0) if self.script else Result()
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, Block):
            await step()
        return step


async def test_a_loop_runs_at_its_interval_and_again_at_once_when_a_pass_asks_for_it() -> None:
    clock = FakeClock()
    service = Looping(clock, [Result(again=True), Result(again=True), Result()])
    await service.start()
    await clock.wait_for_sleepers()
    assert service.passes_at_s == [0.0, 0.0, 0.0]
    await clock.advance(9.9)
    assert len(service.passes_at_s) == 3
    await clock.advance(10.1)
    assert service.passes_at_s == [0.0, 0.0, 0.0, 10.0, 20.0]
    await service.stop(10)


async def test_a_pass_that_raises_is_counted_and_tried_again_after_a_growing_back_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    script = [ValueError("one"), OSError("two"), Result(), ValueError("three")]
    service = Looping(clock, list(script), name="faulty")
    before = failures("faulty", "turns")
    await service.start()
    await clock.wait_for_sleepers()
    assert service.ready
    await clock.advance(14)
    # After 1 s, after 2 s more, then the interval: a success starts the back-off afresh.
    assert service.passes_at_s == [0.0, 1.0, 3.0, 13.0, 14.0]
    assert failures("faulty", "turns") - before == 3
    assert "'task': 'turns'" in caplog.text
    assert "ValueError('three')" in caplog.text
    assert service.ready
    await service.stop(10)


async def test_a_cancellation_that_is_not_the_loops_own_counts_as_a_fault() -> None:
    clock = FakeClock()
    service = Looping(clock, [asyncio.CancelledError()], name="bystander")
    before = failures("bystander", "turns")
    await service.start()
    await clock.wait_for_sleepers()
    await clock.advance(1.0)
    assert service.passes_at_s == [0.0, 1.0]
    assert failures("bystander", "turns") - before == 1
    await service.stop(10)


async def test_waking_a_loop_runs_its_next_pass_now_and_a_wake_during_a_pass_is_kept() -> None:
    clock, block = FakeClock(), Block()
    service = Looping(clock, [Result(), block])
    await service.start()
    await clock.wait_for_sleepers()
    assert service.turns is not None
    service.turns.wake()
    await block.entered.wait()
    service.turns.wake()
    block.release.set()
    await service.passed.wait(3)
    assert clock.monotonic() == 0
    await service.stop(10)


async def test_waking_a_loop_does_not_cut_its_back_off_short() -> None:
    clock = FakeClock()
    service = Looping(clock, [ValueError("down")])
    await service.start()
    await clock.wait_for_sleepers()
    assert service.turns is not None
    service.turns.wake()
    await clock.advance(0.9)
    assert service.passes_at_s == [0.0]
    await clock.advance(0.1)
    assert service.passes_at_s == [0.0, 1.0]
    await service.stop(10)


async def test_quiet_lets_the_pass_in_hand_end_and_starts_no_other() -> None:
    clock, block = FakeClock(), Block()
    service = Looping(clock, [block])
    await service.start()
    await block.entered.wait()
    await service.quiet()
    stopper = asyncio.ensure_future(service.stop(10))
    await clock.wait_for_sleepers()
    assert not stopper.done()
    block.release.set()
    await stopper
    assert service.passed.count == 1
    assert block.cancelled.count == 0


async def test_quiet_ends_a_loop_that_waits_for_its_interval_or_its_back_off() -> None:
    for script in ([Result()], [ValueError("down")]):
        clock = FakeClock()
        service = Looping(clock, list(script))
        await service.start()
        await clock.wait_for_sleepers()
        await service.quiet()
        await service.stop(10)
        assert clock.monotonic() == 0
        assert service.passed.count == 1


async def test_a_loop_until_stop_runs_on_while_work_in_hand_is_finished() -> None:
    clock, block, renewed = FakeClock(), Block(), Signal()
    service = Recorder(clock=clock)
    service.stopping = block

    async def renew() -> None:
        renewed.fire()

    await service.start()
    service.loop("renewal", renew, 1.0, until="stop")
    await renewed.wait()
    stopper = asyncio.ensure_future(service.stop(100))
    await block.entered.wait()
    await clock.advance(3)
    assert renewed.count == 4
    block.release.set()
    await stopper
    assert not others()


# Tasks that must not end


async def test_a_spawned_task_that_fails_or_returns_is_started_again_after_a_back_off() -> None:
    clock, runs = FakeClock(), Signal()
    service = Recorder("keeper", clock)
    before = failures("keeper", "kept")

    async def run() -> None:
        runs.fire()
        if runs.count == 1:
            raise ValueError("lost")
        if runs.count == 3:
            await asyncio.Event().wait()

    await service.start()
    service.spawn("kept", run, backoff=backoff_of(1.0))
    await clock.wait_for_sleepers()
    assert runs.count == 1
    await clock.advance(0.9)
    assert runs.count == 1
    await clock.advance(2.1)
    assert runs.count == 3
    assert failures("keeper", "kept") - before == 2
    await service.stop(10)
    assert not others()


async def test_a_task_that_was_healthy_for_long_starts_from_a_short_back_off() -> None:
    clock, runs = FakeClock(), Signal()
    service = Recorder(clock=clock)

    async def run() -> None:
        runs.fire()
        if runs.count == 3:
            await clock.sleep(3_600)
        raise ValueError("lost")

    await service.start()
    service.spawn("kept", run, backoff=backoff_of(1.0))
    await clock.advance(3)  # 1 s and 2 s of back-off, then an hour of health
    assert runs.count == 3
    await clock.advance(3_601)
    assert runs.count == 4
    await service.stop(10)


async def test_a_spawned_task_that_ends_after_quiet_is_not_started_again() -> None:
    service, block = Recorder(), Block()
    await service.start()
    task = service.spawn("kept", block)
    await block.entered.wait()
    await service.quiet()
    block.release.set()
    await asyncio.wait({task})
    assert block.entered.count == 1
    await service.stop(10)


async def test_one_loop_that_fails_leaves_the_others_alone() -> None:
    clock, good = FakeClock(), Signal()
    service = Looping(clock, [ValueError(str(n)) for n in range(50)])

    async def run_once() -> None:
        good.fire()

    await service.start()
    service.loop("good", run_once, 1.0)
    await clock.advance(20)
    assert good.count == 21
    await service.stop(10)


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
