"""Writes the results of a worker to the streams, in batches per partition."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

from angarium.dispatch.message_ids import partition_of_id
from angarium.dispatch.store import DispatchStore
from angarium.redis.connection import Argument
from angarium.runtime import log
from angarium.runtime.clock import Clock
from angarium.runtime.errors import AngariumError, ScriptFailed

# Redis executes one batch while the next one is prepared.
IN_FLIGHT_MAX = 2
RETRY_S = 0.1

WaitingResult = tuple[bytes, Sequence[Argument], int]
"""Message id, fields of the stream entry, their size in bytes."""
ResultBatch = Sequence[tuple[bytes, Sequence[Argument]]]


class ResultEvents(Protocol):
    """Callbacks of a result writer. The worker implements them."""

    consumer: str

    def on_stored(self, ids: Sequence[bytes], completed: int) -> None: ...
    def on_failed(self, ids: Sequence[bytes], reason: str, kind: str) -> None: ...


class ResultWriter:
    def __init__(
        self, store: DispatchStore, bytes_max: int, events: ResultEvents, clock: Clock
    ) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._events = events
        self._clock = clock
        self._waiting: dict[int, deque[WaitingResult]] = {}
        self._in_flight: Counter[int] = Counter()
        self._wake = asyncio.Event()
        self._log = log.logger("angarium.dispatch")

    def add(self, message_id: bytes, fields: Sequence[Argument], size: int) -> None:
        partition = partition_of_id(message_id, self._store.partitions)
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = deque()
        waiting.append((message_id, fields, size))
        self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for partition, waiting in self._waiting.items():
                    while waiting and self._in_flight[partition] < IN_FLIGHT_MAX:
                        self._in_flight[partition] += 1
                        group.create_task(self._write(partition, self._next_batch(waiting)))

    def _next_batch(self, waiting: deque[WaitingResult]) -> ResultBatch:
        batch: list[tuple[bytes, Sequence[Argument]]] = []
        size = 0
        while waiting and len(batch) < self._store.items_max:
            if batch and size + waiting[0][2] > self._bytes_max:
                break
            message_id, fields, result_bytes = waiting.popleft()
            batch.append((message_id, fields))
            size += result_bytes
        return batch

    async def _write(self, partition: int, batch: ResultBatch) -> None:
        ids = [message_id for message_id, _ in batch]
        try:
            while True:
                try:
                    stored = await self._store.complete(partition, self._events.consumer, batch)
                except ScriptFailed as error:
                    # Redis refuses the results now and later: reject the messages.
                    self._events.on_failed(ids, f"the result can't be stored: {error}", "store")
                    return
                except AngariumError as error:
                    # Safe to repeat. Without a repeat, another worker would repeat the work.
                    self._log.warning("store_failed", error=str(error), results=len(batch))
                    await self._clock.sleep(RETRY_S)
                else:
                    self._events.on_stored(ids, sum(stored))
                    return
        finally:
            self._in_flight[partition] -= 1
            self._wake.set()
