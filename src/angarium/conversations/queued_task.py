"""A task of the memory queue, and what its validation finds. Values only."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


class TaskVerdict(Enum):
    RUN = auto()  # to begin within `Validation.left_s`, if that is known
    WAIT = auto()  # another task is ahead; `Validation.left_s` is the longest wait if known
    DROP = auto()  # this process does not have the task any more


@dataclass(frozen=True, slots=True)
class Validation:
    verdict: TaskVerdict
    left_s: float | None = None


ValidationTask = Callable[["QueuedTask"], Awaitable[Validation]]
ExecutionTask = Callable[["QueuedTask"], Awaitable[float | None]]
ErrorTask = Callable[["QueuedTask", Exception], Awaitable[None]]


@dataclass(slots=True, eq=False)
class QueuedTask:
    """`execution_task` returns the seconds that the next task of its group must wait, or None."""

    execution_task: ExecutionTask
    task_id: str
    task_group: str
    ts_input: int
    ts_output: int
    validation_task: ValidationTask | None = None
    error_task: ErrorTask | None = None
    internal_id: int = 0
    time_in_queue: float | None = None  # seconds
    size_bytes: int = 0
    message_options: Any = None
    corr: str = ""
    order: int = 0
    validations: int = 0
    entered_s: float = 0.0
    begin_by_s: float = math.inf
    """Later than that its validation is out of date."""

    def __lt__(self, other: QueuedTask) -> bool:
        return (self.order, self.internal_id) < (other.order, other.internal_id)
