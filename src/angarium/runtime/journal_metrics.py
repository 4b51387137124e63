"""Metrics of the journal for Prometheus, and a warning when entries were dropped.

At the size limit the oldest entries are dropped, also those that a reader has not read. Each loss
is logged once, with the number of events and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import Gauge

from angarium.runtime import log
from angarium.runtime.journal import Journal, JournalStatus
from angarium.runtime.runtime import Runtime

ENTRIES = Gauge("angarium_journal_entries", "Entries in the journal.", ["partition"])
EVENTS = Gauge("angarium_journal_events", "Events ever written to the journal.", ["partition"])
DROPPED = Gauge(
    "angarium_journal_dropped_events",
    "Events given up at the size limit before a reader had them.",
    ["partition"],
)
BEHIND = Gauge(
    "angarium_journal_reader_behind_ms",
    "Milliseconds between a reader's last committed entry and the newest one.",
    ["partition", "reader"],
)


@dataclass(frozen=True)
class JournalLosses:
    """Events that were dropped since the last pass, by partition."""

    lost: Mapping[int, int]


class JournalMetrics:
    def __init__(self, runtime: Runtime) -> None:
        self._journal = Journal(runtime)
        self._partitions = runtime.settings.partitions
        self._bytes_max = runtime.settings.journal.bytes_max
        self._dropped: dict[int, int] = {}
        self._log = log.logger("angarium.journal")

    async def run_once(self) -> JournalLosses:
        lost = {}
        for partition in range(self._partitions):
            status = await self._journal.status(partition)
            _set_gauges(str(partition), status)
            # Losses from before this process started are logged too: perhaps nobody logged them.

            new_losses = status.dropped_events - self._dropped.get(partition, 0)
            self._dropped[partition] = status.dropped_events
            if new_losses > 0:
                lost[partition] = new_losses
                self._warn(partition, new_losses, status)
        return JournalLosses(lost)

    def _warn(self, partition: int, new_losses: int, status: JournalStatus) -> None:
        self._log.warning(
            "journal_events_lost",
            partition=partition,
            events=new_losses,
            in_all=status.dropped_events,
            bytes_max=self._bytes_max,
            readers=sorted(status.readers),
            fix="run the lake, forget readers that are gone, or raise ANGARIUM_JOURNAL__BYTES_MAX",
        )


def _set_gauges(partition: str, status: JournalStatus) -> None:
    ENTRIES.labels(partition).set(status.entries)
    EVENTS.labels(partition).set(status.events)
    DROPPED.labels(partition).set(status.dropped_events)
    newest_ms = int(status.last_id.partition("-")[0])
    for reader, position in status.readers.items():
        behind_ms = max(0, newest_ms - int(position.partition("-")[0]))
        BEHIND.labels(partition, reader).set(behind_ms)
