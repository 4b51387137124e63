"""What a node says when it asks for work, and what it gets. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from angarium.transactions.model import TakenTransaction, faults_of


@dataclass(frozen=True)
class NodeWork:
    """The transactions that a node runs, as of the Redis time `as_of_ms`. `recovers_others`: the
    node has sent heartbeats for long enough to tell a silent node from a silent Redis."""

    ids: Sequence[str]
    as_of_ms: int
    recovers_others: bool = True


@dataclass(frozen=True)
class RecoveryResult:
    """The number of transactions that were queued again or ended, those of this node that must be
    cancelled, and id and reason of each whose nodes crashed too often."""

    count: int
    to_cancel: Sequence[str]
    dead: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class NodeCapabilities:
    """What a node can run, encoded by `encode_step_types`. The script need not check the steps of
    `pipelines` («name|version»). `waiting`: also take transactions that wait for a step type. Steps
    of the `plain_types` need one of the free `threads`. `alone`: the node runs no transaction that
    must run alone."""

    step_types: str
    pipelines: str = ""
    waiting: bool = True
    plain_types: str = " "
    threads: int = 0
    alone: bool = True


@dataclass(frozen=True)
class DequeueBatch:
    """The result of one dequeue. `refused` entries of the queues could not run. `waiting` ones now
    wait for a node that can run their next step. `more`: the queues may have more."""

    taken: list[TakenTransaction]
    refused: int
    waiting: int = 0
    more: bool = False

    @property
    def entries(self) -> int:
        return len(self.taken) + self.refused + self.waiting


def taken_of(row: list[Any]) -> TakenTransaction:
    """A row of the reply to a dequeue."""
    id, run, score, label, version, data, remaining_ms, needs_thread = row[:8]
    taken = TakenTransaction(
        id.decode(), run.decode(), score, label.decode(), version.decode(), data, remaining_ms
    )
    taken.needs_thread = bool(needs_thread)
    if len(row) > 8:
        taken.external_id = row[8].decode()
        taken.checkpoint = row[9]
        taken.cancel = bool(row[10])
        taken.switches, taken.metadata = row[11], row[12]
        taken.tries, taken.crashes = faults_of(row[13].decode())
        taken.children = row[15:]
        checkpoint, children = "f" if taken.checkpoint else "", "c" if taken.children else ""
        taken.flags = f"{checkpoint}{row[14].decode()}{children}"
    return taken
