"""A transaction that a node runs: its state in this process, its completion, its failures."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

import msgspec

from angarium.runtime.errors import AngariumError
from angarium.transactions.model import TakenTransaction, TransactionStatus, check_name
from angarium.transactions.step import Outcome, Step

SLEEP_S_MAX = 10 * 365 * 86_400
RUN_LOST_STATUSES = frozenset({"no_state", "not_running", "stale_run"})


class StepError(Exception):
    """The definition or the result of a step is not usable: the transaction ends as
    internal-error, and another try would not help."""


class StepFailed(Exception):
    """A step raised or took too long: this try has failed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


class StepStopped(Exception):
    """A step was cancelled, whatever it returned after that."""


class RunLost(Exception):
    """Another run has the transaction, or it has ended. The results of this run are dropped."""


class Completion(msgspec.Struct, frozen=True):
    """How a transaction ends."""

    status: TransactionStatus
    output: bytes = b""
    note: str = ""
    reason: str = ""  # of a dead letter


class RunningTransaction(msgspec.Struct, eq=False):
    """`stopped` is the final status for which this node cancelled the task; `step_late` if only the
    step, and not the transaction, took too long."""

    taken: TakenTransaction
    deadline_s: float
    step_deadline_s: float = math.inf  # infinite between two steps
    step: Step | None = None
    limit_ms: float = 0
    cancel: bool = False
    stopped: TransactionStatus | None = None
    stopped_s: float = math.inf
    step_late: bool = False
    has_thread: bool = False  # holds one of the node's threads
    note: str = ""
    task: asyncio.Task[None] | None = None
    end: asyncio.Future[str] | None = None  # the steps are over, and the completion was sent

    @property
    def timeout_note(self) -> str:
        assert self.step is not None
        return (
            f"step {self.step.index + 1} ({self.step.type}) took longer than {self.limit_ms:g} ms"
        )


@dataclass
class NodeMetrics:
    """Counters of one node since its start."""

    taken: int = 0
    refused: int = 0
    left_waiting: int = 0  # looked at, and left for a node that has their step
    handed_over: int = 0
    steps: int = 0
    slept: int = 0
    failed_tries: int = 0
    recovered: int = 0
    returned: int = 0
    lost: int = 0
    ended: dict[str, int] = field(default_factory=dict)

    def report(self) -> dict[str, int]:
        return {
            "taken": self.taken,
            "refused": self.refused,
            "not_ours": self.left_waiting,
            "handed_over": self.handed_over,
            "steps": self.steps,
            "slept": self.slept,
            "failed_tries": self.failed_tries,
            "recovered": self.recovered,
            "lost": self.lost,
            **{f"ended_{status}": count for status, count in self.ended.items()},
        }


def checked(outcome: Outcome) -> Outcome:
    """Refuse values that the scripts cannot use."""
    if not isinstance(outcome.note, str):
        raise StepError("its note is not a text")
    seconds = outcome.seconds
    if seconds is not None:
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= seconds <= SLEEP_S_MAX:
            raise StepError(f"it wants to sleep for {seconds!r} seconds")
    if outcome.switch is not None:
        try:
            check_name(outcome.switch, "switch")
        except (AngariumError, TypeError) as error:
            raise StepError(str(error)) from None
    return outcome


def retries_timeout(running: RunningTransaction, is_async: bool) -> bool:
    """A plain function that took too long still runs in its thread. A second try would run beside
    it, so there is none."""
    return is_async and running.step_late
