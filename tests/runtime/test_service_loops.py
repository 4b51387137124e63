"""Loops and kept tasks of a service: what a fault in one costs, and how quiet ends them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from prometheus_client import REGISTRY

from angarium.redis.backoff import Backoff
from angarium.runtime.service import Loop
from tests.kit.clock import FakeClock
from tests.kit.eventually import Signal
from tests.runtime.recorder import Block, Recorder, others


@dataclass
class Result:
    again: bool = False


def backoff_of(base_s: float) -> Backoff:
    """The longest delay of every draw, so that a test knows when the next attempt is due."""
    return Backoff(base_s=base_s, ceiling_s=1_000.0, draw=lambda _, longest: longest)


def failures(service: str, task: str) -> float:
    labels = {"service": service, "task": task}
    return REGISTRY.get_sample_value("angarium_supervised_failures_total", labels) or 0.0


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


async def test_a_loop_that_always_has_work_lets_other_tasks_run() -> None:
    service, passed, turns = Recorder(), Signal(), 0

    async def run_once() -> Result:
        passed.fire()
        return Result(again=passed.count < 1_000)

    await service.start()
    service.loop("busy", run_once, 10.0)
    while passed.count < 1_000:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 100
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


async def test_quiet_lets_the_current_pass_end_and_starts_no_other() -> None:
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


async def test_a_loop_until_stop_runs_while_current_work_is_finished() -> None:
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
