"""The memory queue alone: groups, order, limits, waiting and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from angarium.conversations.errors import RetriesEnded
from angarium.conversations.memory_queue import MemoryQueue, MemoryQueueLimits
from angarium.conversations.queued_task import QueuedTask, TaskVerdict, Validation
from tests.conversations.harness import DEADLINE_S
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually

RUN, WAIT, DROP = (
    Validation(TaskVerdict.RUN),
    Validation(TaskVerdict.WAIT),
    Validation(TaskVerdict.DROP),
)


@dataclass
class QueueHarness:
    """A queue, and tasks that record what happens to them."""

    queue: MemoryQueue
    clock: FakeClock
    executed: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[str, Validation] = field(default_factory=dict)
    running: int = 0
    most_running: int = 0
    gate: asyncio.Event | None = None

    def add(self, name: str, group: str = "g", order: int = 0, stay_s: float | None = None) -> bool:
        return self.queue.add(
            QueuedTask(
                execution_task=self.execute,
                validation_task=self.validate,
                error_task=self.fail,
                task_id=name,
                task_group=group,
                ts_input=0,
                ts_output=0,
                time_in_queue=stay_s,
                order=order,
            )
        )

    async def validate(self, task: QueuedTask) -> Validation:
        return self.answers.get(task.task_id, RUN)

    async def execute(self, task: QueuedTask) -> float | None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if self.gate is not None:
            await self.gate.wait()
        self.running -= 1
        if task.task_id.startswith("bad"):
            raise ValueError(task.task_id)
        self.executed.append(task.task_id)
        return None

    async def fail(self, task: QueuedTask, error: Exception) -> None:
        self.failed.append((task.task_id, type(error).__name__))

    async def until_executed(self, *names: str) -> None:
        await eventually(lambda: self.executed == list(names), DEADLINE_S)

    async def until_failed(self, *names: str) -> None:
        await eventually(lambda: [name for name, _ in self.failed] == list(names), DEADLINE_S)


@asynccontextmanager
async def queue_harness(limits: MemoryQueueLimits | None = None) -> AsyncIterator[QueueHarness]:
    clock = FakeClock()
    it = QueueHarness(MemoryQueue(limits or MemoryQueueLimits(), clock), clock)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(it.queue.run())
        await asyncio.sleep(0)
        try:
            yield it
        finally:
            running.cancel()


async def test_tasks_of_a_group_run_by_their_order_and_not_by_arrival() -> None:
    async with queue_harness() as it:
        it.answers["b"] = WAIT
        it.add("b", order=2)
        await eventually(lambda: it.queue.parked == 1)
        it.add("a", order=1)
        it.answers["b"] = RUN
        await it.until_executed("a", "b")
        assert len(it.queue) == 0


async def test_groups_do_not_wait_for_each_other() -> None:
    async with queue_harness() as it:
        it.answers["stuck"] = WAIT
        it.add("stuck", "one")
        it.add("free", "two")
        await it.until_executed("free")
        assert it.queue.parked == 1
        it.answers["stuck"] = RUN
        it.queue.wake("one")
        await it.until_executed("free", "stuck")


async def test_a_task_id_is_in_the_queue_once() -> None:
    async with queue_harness() as it:
        it.answers["a"] = WAIT
        assert it.add("a")
        assert not it.add("a")
        assert "a" in it.queue


async def test_a_wait_with_a_known_end_is_validated_again_at_that_time() -> None:
    async with queue_harness() as it:
        it.answers["a"] = Validation(TaskVerdict.WAIT, 0.02)
        it.add("a")
        await eventually(lambda: it.queue.metrics.waits >= 2, DEADLINE_S)
        it.answers["a"] = RUN
        await it.until_executed("a")


async def test_polling_finds_a_task_whose_wake_up_was_lost() -> None:
    async with queue_harness() as it:
        it.answers["a"] = WAIT
        it.add("a")
        await eventually(lambda: it.queue.parked == 1)
        it.answers["a"] = RUN
        assert it.queue.poll() == 1
        await it.until_executed("a")


async def test_polling_validates_no_more_than_the_execution_queue_takes() -> None:
    async with queue_harness(MemoryQueueLimits(concurrent=2, concurrent_factor=2)) as it:
        for number in range(10):
            it.answers[f"t{number}"] = WAIT
            it.add(f"t{number}", f"g{number}")
        await eventually(lambda: it.queue.parked == 10)
        assert it.queue.poll() == 4


async def test_no_more_run_at_once_than_allowed() -> None:
    async with queue_harness(MemoryQueueLimits(concurrent=3, concurrent_factor=2)) as it:
        it.gate = asyncio.Event()
        for number in range(10):
            it.add(f"t{number}", f"g{number}")
        await eventually(lambda: it.running == 3)
        assert it.queue.in_execution == 6
        it.gate.set()
        await eventually(lambda: len(it.executed) == 10)
        assert it.most_running == 3


async def test_a_dropped_task_makes_way_for_the_next() -> None:
    async with queue_harness() as it:
        it.answers["a"] = DROP
        it.add("a", order=1)
        it.add("b", order=2)
        await it.until_executed("b")


@pytest.mark.parametrize("checks", [1, 5])
async def test_a_task_is_validated_at_most_max_retries_times(checks: int) -> None:
    async with queue_harness(MemoryQueueLimits(max_retries=checks)) as it:
        it.answers["a"] = Validation(TaskVerdict.WAIT, 0.0)
        it.add("a")
        await it.until_failed("a")
        assert it.failed[0][1] == RetriesEnded.__name__
        assert it.queue.metrics.validations == checks


async def test_a_task_behind_others_also_ends_after_its_time_in_queue() -> None:
    async with queue_harness() as it:
        it.answers["a"] = WAIT
        it.add("a", order=1, stay_s=25)
        it.add("b", order=2, stay_s=25)
        await eventually(lambda: it.queue.parked == 1)
        await it.clock.advance(24.9)
        it.queue.poll()
        await eventually(lambda: it.queue.metrics.waits >= 2)
        assert it.failed == []
        await it.clock.advance(0.2)
        it.queue.poll()
        await eventually(lambda: len(it.failed) == 2)
        assert len(it.queue) == 0


async def test_a_task_that_raises_goes_to_its_error_task_and_the_next_runs() -> None:
    async with queue_harness() as it:
        it.add("bad", order=1)
        it.add("good", order=2)
        await it.until_executed("good")
        assert it.failed == [("bad", "ValueError")]


async def test_tasks_that_are_not_in_execution_can_be_removed() -> None:
    async with queue_harness() as it:
        it.gate = asyncio.Event()
        it.add("running", "g", order=1)
        await eventually(lambda: it.running == 1)
        it.add("behind", "g", order=2)
        it.add("first", "g", order=0)
        it.answers["parked"] = WAIT
        it.add("parked", "h")
        await eventually(lambda: it.queue.parked == 1)
        taken = {task.task_id for task in it.queue.take_all()}
        assert taken == {"behind", "first", "parked"}
        it.gate.set()
        await it.queue.drained()
        assert it.executed == ["running"]
        assert len(it.queue) == 0


@pytest.mark.parametrize(
    ("waited_s", "now", "executed"),
    [(4.9, DROP, ["first", "second"]), (5.0, DROP, ["first"]), (5.0, RUN, ["first", "second"])],
)
async def test_a_task_that_waits_for_its_slot_longer_than_it_may_is_validated_again(
    waited_s: float, now: Validation, executed: list[str]
) -> None:
    async with queue_harness(MemoryQueueLimits(concurrent=1, slow_max=0)) as it:
        it.gate = asyncio.Event()
        it.answers["second"] = Validation(TaskVerdict.RUN, left_s=5)
        it.add("first", "g1")
        await eventually(lambda: it.running == 1, DEADLINE_S)
        it.add("second", "g2")
        await eventually(lambda: it.queue.metrics.validations == 2, DEADLINE_S)
        await it.clock.advance(waited_s)
        it.answers["second"] = now
        it.gate.set()
        await eventually(lambda: len(it.queue) == 0, DEADLINE_S)
        assert it.executed == executed


async def test_passes_begin_with_the_first_task_and_end_with_the_last() -> None:
    async with queue_harness() as it:
        filled = asyncio.ensure_future(it.queue.filled())
        await asyncio.sleep(0)
        assert not filled.done()
        it.answers["a"] = WAIT
        it.add("a")
        await filled
        it.answers["a"] = RUN
        await eventually(lambda: it.queue.poll() == 0 and len(it.queue) == 0, DEADLINE_S)
        assert it.executed == ["a"]
        filled = asyncio.ensure_future(it.queue.filled())
        await asyncio.sleep(0)
        assert not filled.done()
        filled.cancel()
