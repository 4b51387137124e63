"""Watches the partitions for Prometheus: what waits, for how long, what died, and who leads.

A scrape shows what the last look found and asks nobody. A look that fails leaves a gap: what is
not known must not stay on a chart as a straight line.
"""

from __future__ import annotations

from prometheus_client import Gauge

from angarium.dispatch.store import DispatchStore, PartitionStatus
from angarium.runtime.process_report import INTERVAL_S
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service

PENDING = Gauge(
    "angarium_dispatch_pending_messages", "Accepted and unfinished messages.", ["partition"]
)
OLDEST = Gauge(
    "angarium_dispatch_oldest_ms",
    "Milliseconds since the message that waits longest was last sent to a worker; one that was "
    "never sent counts dispatch.ack_timeout_ms more.",
    ["partition"],
)
INBOX = Gauge(
    "angarium_dispatch_inbox_messages", "Messages that wait in the durable intake.", ["partition"]
)
DEAD = Gauge("angarium_dispatch_dead_messages", "Dead letters.", ["partition"])
LED = Gauge("angarium_dispatch_led", "1 when the partition has a leader, else 0.", ["partition"])
GAUGES = (PENDING, OLDEST, INBOX, DEAD, LED)


class DispatchWatch(Service):
    def __init__(self, runtime: Runtime, store: DispatchStore) -> None:
        super().__init__("dispatch-watch", clock=runtime.clock)
        self._store = store

    async def on_start(self) -> None:
        self.loop("look", self.run_once, INTERVAL_S)

    async def on_close(self) -> None:
        _forget()

    async def run_once(self) -> int:
        """How many messages are pending in all."""
        try:
            partitions = range(self._store.partitions)
            found = [await self._store.status(partition) for partition in partitions]
        except Exception:
            _forget()
            raise
        for status in found:
            _show(status)
        return sum(status.pending for status in found)


def _show(status: PartitionStatus) -> None:
    partition = str(status.partition)
    PENDING.labels(partition).set(status.pending)
    OLDEST.labels(partition).set(status.oldest_ms)
    INBOX.labels(partition).set(status.inbox)
    DEAD.labels(partition).set(status.dead)
    LED.labels(partition).set(status.leader is not None)


def _forget() -> None:
    for gauge in GAUGES:
        gauge.clear()
