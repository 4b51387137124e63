"""What a dispatcher or a worker has counted since it began, for the log and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass
class DispatcherCounts:
    received: int = 0
    accepted: int = 0
    refused: int = 0
    sent: int = 0
    redelivered: int = 0
    processed: int = 0
    rejected: int = 0
    dead: int = 0
    acks_unknown: int = 0
    acks_foreign: int = 0
    protocol_errors: int = 0
    frames_cut: int = 0
    too_large: int = 0
    takeovers: int = 0
    gap_accepted: int = 0

    def table(self) -> Mapping[str, int]:
        return asdict(self)


@dataclass
class WorkerCounts:
    received: int = 0
    completed: int = 0
    duplicates: int = 0
    failed: int = 0
    returned: int = 0
    protocol_errors: int = 0
    frames_cut: int = 0

    def table(self) -> Mapping[str, int]:
        return asdict(self)
