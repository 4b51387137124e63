"""Counters of a dispatcher or a worker since its start, for the log and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DispatcherMetrics:
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
    acks_repeated: int = 0
    acks_paused: int = 0
    renewed: int = 0
    renewals_lost: int = 0
    stalls: int = 0
    overflowed: int = 0
    spilled: int = 0
    lost: int = 0
    protocol_errors: int = 0
    frames_cut: int = 0
    too_large: int = 0
    takeovers: int = 0
    gap_accepted: int = 0


@dataclass
class WorkerMetrics:
    received: int = 0
    completed: int = 0
    duplicates: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    renewed: int = 0
    returned: int = 0
    protocol_errors: int = 0
    frames_cut: int = 0
