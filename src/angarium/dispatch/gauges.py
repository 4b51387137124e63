"""Prometheus gauges: pending messages, their age, inbox, dead letters, leader, named queues.

A scrape shows the values of the last pass and sends no command to Redis. A pass that fails removes
the values: a chart then shows a gap instead of an old value.
"""

from __future__ import annotations

from prometheus_client import Gauge

from angarium.dispatch.service import DispatchService
from angarium.dispatch.store import PartitionStatus
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
WAITING = Gauge(
    "angarium_dispatch_waiting_messages",
    "Messages that wait for a worker of their named queue.",
    ["queue"],
)
QUEUE_WORKERS = Gauge("angarium_dispatch_queue_workers", "Workers of a named queue.", ["queue"])
GAUGES = (PENDING, OLDEST, INBOX, DEAD, LED, WAITING, QUEUE_WORKERS)


class DispatchGauges(Service):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("dispatch-gauges", clock=runtime.clock)
        self._dispatch = DispatchService(runtime)

    async def on_start(self) -> None:
        self.loop("read", self.run_once, INTERVAL_S)

    async def on_close(self) -> None:
        _clear()

    async def run_once(self) -> int:
        """The number of pending messages in all partitions."""
        try:
            statuses = await self._dispatch.partitions()
            queues = await self._dispatch.queues()
        except Exception:
            _clear()
            raise
        for status in statuses:
            _set(status)
        WAITING.clear()  # queues without messages and workers are gone
        QUEUE_WORKERS.clear()
        for each in queues:
            WAITING.labels(each.queue).set(each.waiting)
            QUEUE_WORKERS.labels(each.queue).set(each.workers)
        return sum(status.pending for status in statuses)


def _set(status: PartitionStatus) -> None:
    partition = str(status.partition)
    PENDING.labels(partition).set(status.pending)
    OLDEST.labels(partition).set(status.oldest_ms)
    INBOX.labels(partition).set(status.inbox)
    DEAD.labels(partition).set(status.dead)
    LED.labels(partition).set(status.leader is not None)


def _clear() -> None:
    for gauge in GAUGES:
        gauge.clear()
