"""Writes the renewals of workers to Redis, in batches per partition.

A renewal carries no term: any dispatcher that the worker is connected to takes it, so a worker
keeps what it holds while no dispatcher leads. The script compares the holder. The number that waits
is limited: connections that send more are not read until Redis has caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from angarium.dispatch.acknowledgements import AcknowledgementWriter
from angarium.dispatch.message_ids import partition_of_id
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.transitions import HeldItem
from angarium.dispatch.worker_connection import WorkerConnection
from angarium.dispatch.worker_pool import WorkerPool
from angarium.runtime import log
from angarium.runtime.errors import AngariumError

RETRY_S = 0.05

WaitingRenewals = dict[WorkerConnection, dict[bytes, int]]
"""Connection → message id → number of the delivery."""


class RenewalWriter:
    def __init__(
        self,
        store: DispatchStore,
        workers: WorkerPool,
        metrics: DispatcherMetrics,
        on_delay: Callable[[], None],
        acknowledgements: AcknowledgementWriter,
        waiting_max: int,
    ) -> None:
        """`on_delay()` is called when renewals could not be written in time."""
        self._store = store
        self._workers = workers
        self._metrics = metrics
        self._on_delay = on_delay
        self._acknowledgements = acknowledgements
        self._waiting_max = waiting_max
        self._waiting: WaitingRenewals = {}
        self._paused: set[WorkerConnection] = set()
        self._wake = asyncio.Event()
        self._log = log.logger("angarium.dispatch")

    def add(self, connection: WorkerConnection, ids: Sequence[bytes]) -> None:
        if not connection.renews:
            return
        waiting = self._waiting.setdefault(connection, {})
        lost, adopted = [], []
        for message_id in ids:
            delivery = connection.delivery_of(message_id)
            if delivery == 0:
                if self._workers.connection_with(message_id) is not None:
                    lost.append(message_id)  # this dispatcher sent it to another worker
                    continue
                adopted.append(message_id)
            waiting[message_id] = delivery
        connection.adopt(adopted)
        self._lose(connection, lost)
        self._wake.set()
        self._push_back(connection)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, {}
            for connection, deliveries in waiting.items():
                try:
                    await self._write(connection, deliveries)
                except AngariumError as error:
                    self._log.warning("renew_failed", error=str(error), messages=len(deliveries))
                    self._on_delay()
                    again = self._waiting.setdefault(connection, {})
                    again.update({**deliveries, **again})
                    self._wake.set()
                    await asyncio.sleep(RETRY_S)
            self._resume()

    def _count(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _push_back(self, connection: WorkerConnection) -> None:
        """Each renewal that was read is written and answered, so no more of them are read."""
        if self._count() > self._waiting_max:
            self._metrics.acks_paused += connection not in self._paused
            self._paused.add(connection)
            connection.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._count() <= self._waiting_max // 2:
            paused, self._paused = self._paused, set()
            for connection in paused:
                connection.resume_reading(self._acknowledgements)

    async def _write(self, connection: WorkerConnection, deliveries: dict[bytes, int]) -> None:
        parts: dict[int, list[HeldItem]] = {}
        partitions, consumer = self._store.partitions, connection.consumer
        for message_id, delivery in deliveries.items():
            part = parts.setdefault(partition_of_id(message_id, partitions), [])
            part.append(HeldItem(message_id, consumer, delivery))
        for partition, items in parts.items():
            replies = await self._store.renew(partition, items)
            lost = [
                item.message_id
                for item, reply in zip(items, replies, strict=True)
                if reply != "renewed"
            ]
            self._metrics.renewed += len(items) - len(lost)
            self._lose(connection, lost)

    def _lose(self, connection: WorkerConnection, ids: Sequence[bytes]) -> None:
        self._metrics.renewals_lost += len(ids)
        connection.release(ids)
