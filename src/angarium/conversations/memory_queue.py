"""A process's queue of tasks by group: the first task of each group is validated, then executed.

    main queue ──► priority queue ──► execution queue ──► done
    all, by group   first of a group   validated, executed    │ must wait: parked until woken,
        ▲                ▲                                     │ its wait ends, or a poll
        └────────────────┴─────────────────────────────────────┘

Tasks of a group run one at a time, by their `order` and not by arrival. `wake` returns a parked
group to the priority queue; `poll` does so for some groups, in case a wake-up was lost. A task that
stays too long or is validated too often goes to its error task. A validation may say how soon the
task must begin; a task that waited longer for its slot is validated again. The queue knows neither
Redis nor conversations.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from angarium.conversations.errors import RetriesEnded, error_text
from angarium.conversations.queued_task import QueuedTask, TaskVerdict, Validation
from angarium.runtime import log
from angarium.runtime.clock import Clock

# An execution that lasts longer gives up its concurrency slot: a client that hangs must not block
# the others. `MemoryQueueLimits.slow_max` limits how many executions may do so.
SLOW_S = 1.0
# A longer wait gets no timer; polling ends it.
TIMER_S_MAX = 60.0


class _Stage(Enum):
    PRIORITY = auto()
    EXECUTION = auto()
    PARKED = auto()


@dataclass(slots=True, eq=False)
class _Group:
    name: str
    tasks: list[QueuedTask] = field(default_factory=list)  # a heap
    stage: _Stage = _Stage.PARKED
    woken: bool = False  # during execution: its validation may be out of date
    timer: asyncio.TimerHandle | None = None
    executing: QueuedTask | None = None


@dataclass(slots=True)
class MemoryQueueMetrics:
    """Counters since the start of the process."""

    added: int = 0
    executed: int = 0
    validations: int = 0
    waits: int = 0
    dropped: int = 0
    failed: int = 0
    retries_ended: int = 0
    slow: int = 0


@dataclass(frozen=True, slots=True)
class MemoryQueueLimits:
    concurrent: int = 25
    concurrent_factor: float = 2.0
    max_retries: int = 100
    slow_max: int = 500

    @property
    def execution_max(self) -> int:
        return max(1, round(self.concurrent * self.concurrent_factor))


class MemoryQueue:
    """Executes tasks while `run` runs."""

    def __init__(self, limits: MemoryQueueLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._ids = itertools.count(1)
        self._groups: dict[str, _Group] = {}
        self._priority: deque[_Group] = deque()
        self._parked: dict[str, _Group] = {}  # by name, the longest parked first
        self._timed: dict[int, QueuedTask] = {}  # by internal id, the oldest first
        self._task_ids: set[str] = set()
        self._bytes = 0
        self._in_execution = 0
        self._slow = 0
        self._slots = asyncio.Semaphore(limits.concurrent)
        self._tasks: asyncio.TaskGroup | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._filled = asyncio.Event()
        self._log = log.logger("angarium.conversations")
        self.metrics = MemoryQueueMetrics()

    def __len__(self) -> int:
        return len(self._task_ids)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def parked(self) -> int:
        return len(self._parked)

    @property
    def in_execution(self) -> int:
        return self._in_execution

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._task_ids

    async def run(self) -> None:
        """Execute until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                self._fill()
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def add(self, task: QueuedTask) -> bool:
        """False if the queue already has a task of this id."""
        if task.task_id in self._task_ids:
            return False
        self._task_ids.add(task.task_id)
        self._bytes += task.size_bytes
        self._filled.set()
        task.internal_id = next(self._ids)
        task.entered_s = self._clock.monotonic()
        self.metrics.added += 1
        if task.time_in_queue is not None:
            self._timed[task.internal_id] = task
        group = self._groups.get(task.task_group)
        if group is None:
            group = self._groups[task.task_group] = _Group(task.task_group)
            self._parked[group.name] = group
        heapq.heappush(group.tasks, task)
        if group.tasks[0] is task:
            self._ready(group)
        return True

    def wake(self, name: str) -> None:
        """The first task of this group may be able to run now."""
        group = self._groups.get(name)
        if group is not None:
            self._ready(group)

    def wake_all(self) -> None:
        for group in list(self._parked.values()):
            self._ready(group)

    def poll(self) -> int:
        """End the tasks that stayed too long, and validate some parked groups again.

        The longest parked groups come first; returns their number.
        """
        self._end_overstayed()
        some = list(itertools.islice(self._parked.values(), self._limits.execution_max))
        for group in some:
            self._ready(group)
        return len(some)

    async def filled(self) -> None:
        """Wait until the queue has a task."""
        await self._filled.wait()

    async def drained(self) -> None:
        """Wait until no task is in execution."""
        await self._idle.wait()

    def take_all(self) -> list[QueuedTask]:
        """Remove and return all tasks that are not in execution."""
        left: list[QueuedTask] = []
        for group in list(self._groups.values()):
            left += [task for task in group.tasks if task is not group.executing]
            group.tasks = [task for task in group.tasks if task is group.executing]
            if not group.tasks:
                self._forget(group)
        for task in left:
            self._leave(task)
        return left

    # Moving groups between the queues

    def _ready(self, group: _Group) -> None:
        if group.stage is _Stage.EXECUTION:
            group.woken = True
            return
        if group.stage is _Stage.PRIORITY:
            return
        self._unpark(group)
        group.stage = _Stage.PRIORITY
        self._priority.append(group)
        self._fill()

    def _fill(self) -> None:
        while (
            self._tasks is not None
            and self._priority
            and self._in_execution - self._slow < self._limits.execution_max
        ):
            group = self._priority.popleft()
            if not group.tasks:
                self._forget(group)
                continue
            group.stage, group.woken = _Stage.EXECUTION, False
            group.executing = group.tasks[0]
            self._in_execution += 1
            self._idle.clear()
            self._tasks.create_task(self._work(group, group.executing))

    def _park(self, group: _Group, left_s: float | None) -> None:
        group.stage = _Stage.PARKED
        self._parked[group.name] = group
        if left_s is not None and left_s <= TIMER_S_MAX:
            loop = asyncio.get_running_loop()
            group.timer = loop.call_later(max(0.0, left_s), self._ready, group)

    def _unpark(self, group: _Group) -> None:
        self._parked.pop(group.name, None)
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None

    def _forget(self, group: _Group) -> None:
        self._unpark(group)
        if self._groups.get(group.name) is group:
            del self._groups[group.name]

    def _leave(self, task: QueuedTask) -> None:
        self._timed.pop(task.internal_id, None)
        self._task_ids.discard(task.task_id)
        self._bytes -= task.size_bytes
        if not self._task_ids:
            self._filled.clear()

    # Execution

    async def _work(self, group: _Group, task: QueuedTask) -> None:
        done, left_s = True, None
        try:
            done, left_s = await self._attempt(task)
        except BaseException as error:
            if _cancelled_from_outside():
                raise
            # A task may raise anything: only the task ends, not the queue or the process. The
            # exception is caught here because a coroutine can't continue after GeneratorExit.
            await self._fail(
                task, RuntimeError(f"the task raised {type(error).__name__}: {error_text(error)}")
            )
        finally:
            if done:
                self._drop(group, task)
            group.executing = None
            self._in_execution -= 1
            if self._in_execution == 0:
                self._idle.set()
            group.stage = _Stage.PARKED
            if not group.tasks:
                self._forget(group)
            elif not group.woken and (left_s is not None if done else group.tasks[0] is task):
                self._park(group, left_s)
            else:
                self._ready(group)
            self._fill()

    def _drop(self, group: _Group, task: QueuedTask) -> None:
        self._leave(task)
        if group.tasks and group.tasks[0] is task:
            heapq.heappop(group.tasks)
        elif task in group.tasks:  # a task of lower order was added meanwhile
            group.tasks.remove(task)
            heapq.heapify(group.tasks)

    async def _attempt(self, task: QueuedTask) -> tuple[bool, float | None]:
        """(whether the task is done, seconds that its group must wait)."""
        try:
            if self._too_long(task) or task.validations >= self._limits.max_retries:
                self.metrics.retries_ended += 1
                raise RetriesEnded(
                    f"{task.task_id} could not be sent after {task.validations} checks"
                )
            found = await self._validate(task)
            if found.verdict is not TaskVerdict.RUN:
                return self._not_now(found)
            await self._slots.acquire()
            slot = _ConcurrencySlot(self)
            try:
                if self._clock.monotonic() >= task.begin_by_s:
                    # It waited long for the slot: somebody else may have the task by now.
                    found = await self._validate(task)
                    if found.verdict is not TaskVerdict.RUN:
                        return self._not_now(found)
                left_s = await self._execute(task, slot)
            finally:
                slot.release()
            self.metrics.executed += 1
            return True, left_s
        except Exception as error:
            await self._fail(task, error)
            return True, None

    async def _validate(self, task: QueuedTask) -> Validation:
        if task.validation_task is None:
            return Validation(TaskVerdict.RUN)
        task.validations += 1
        self.metrics.validations += 1
        asked_s = self._clock.monotonic()
        found = await task.validation_task(task)
        task.begin_by_s = math.inf if found.left_s is None else asked_s + found.left_s
        return found

    def _not_now(self, found: Validation) -> tuple[bool, float | None]:
        if found.verdict is TaskVerdict.WAIT:
            self.metrics.waits += 1
            return False, found.left_s
        self.metrics.dropped += 1
        return True, None

    async def _execute(self, task: QueuedTask, slot: _ConcurrencySlot) -> float | None:
        timer = asyncio.get_running_loop().call_later(SLOW_S, slot.give_up)
        try:
            return await task.execution_task(task)
        finally:
            timer.cancel()

    async def _fail(self, task: QueuedTask, error: Exception) -> None:
        self.metrics.failed += 1
        if task.error_task is None:
            self._log.error("task_failed", task=task.task_id, error=repr(error), exc_info=error)
            return
        try:
            await task.error_task(task, error)
        except Exception as worse:
            self._log.error("error_task_failed", task=task.task_id, error=repr(worse))

    def _too_long(self, task: QueuedTask) -> bool:
        age_s = self._clock.monotonic() - task.entered_s
        return task.time_in_queue is not None and age_s >= task.time_in_queue

    def _end_overstayed(self) -> None:
        """Stops at the first task that may stay: all tasks may stay about equally long."""
        if self._tasks is None:
            return
        for task in list(itertools.takewhile(self._too_long, self._timed.values())):
            del self._timed[task.internal_id]
            group = self._groups[task.task_group]
            if group.executing is task:
                continue  # the execution has its own time limit
            self._drop(group, task)
            if not group.tasks:
                self._forget(group)
            self.metrics.retries_ended += 1
            error = RetriesEnded(f"{task.task_id} stayed in the queue too long")
            self._tasks.create_task(self._fail(task, error))


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _ConcurrencySlot:
    """Released once: early by a slow execution, or when the execution ends."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self._held = True
        self._slow = False

    def give_up(self) -> None:
        queue = self._queue
        if self._held and queue._slow < queue._limits.slow_max:
            self._slow = True
            queue._slow += 1
            queue.metrics.slow += 1
            self._free()
            queue._fill()

    def release(self) -> None:
        if self._slow:
            self._slow = False
            self._queue._slow -= 1
        self._free()

    def _free(self) -> None:
        if self._held:
            self._held = False
            self._queue._slots.release()
