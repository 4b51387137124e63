"""A transaction that a node runs: its state in this process, its completion, its failures."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

import msgspec

from angarium.transactions.model import TakenTransaction, TransactionStatus
from angarium.transactions.step import Step


class StepError(Exception):
    """A step raised, or its definition or result is not usable: the transaction ends as
    internal-error."""


class StepStopped(Exception):
    """A step was cancelled, whatever it returned after that."""


class RunLost(Exception):
    """Another run has the transaction, or it has ended. The results of this run are dropped."""


class Completion(msgspec.Struct, frozen=True):
    """How a transaction ends."""

    status: TransactionStatus
    output: bytes = b""
    note: str = ""


class RunningTransaction(msgspec.Struct, eq=False):
    """`stopped` is the final status for which this node cancelled the task."""

    taken: TakenTransaction
    deadline_s: float
    step_deadline_s: float = math.inf  # infinite between two steps
    step: Step | None = None
    limit_ms: float = 0
    cancel: bool = False
    stopped: TransactionStatus | None = None
    stopped_s: float = math.inf
    note: str = ""
    task: asyncio.Task[None] | None = None
    end: asyncio.Future[bytes] | None = None  # the steps are over, and the completion was sent

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
    recovered: int = 0
    returned: int = 0
    lost: int = 0
    ended: dict[str, int] = field(default_factory=dict)
