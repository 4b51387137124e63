"""Writes the acknowledgements and rejections that workers send to dispatchers, in batches.

They carry no term: a worker that stored a result has stored it, whichever dispatcher leads. Their
number is limited: a connection that sends more than Redis takes is not read until Redis has caught
up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from angarium.dispatch.message_ids import partition_of_id
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.protocol import RejectionReceived, encode_rejection
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.transitions import AckItem, RejectItem
from angarium.runtime import log
from angarium.runtime.batching import Batcher
from angarium.runtime.errors import AngariumError, Overloaded, RedisUnavailable, ScriptFailed

SendReply = Callable[[bytes], None]
"""Sends bytes to the worker that acknowledged, if it is still connected."""

Item = TypeVar("Item", AckItem, RejectItem)
RETRY_S = 0.1
# Ids in one hint to the other dispatchers, and the hints that wait. A hint that is dropped costs a
# third-party worker a slot for some time-outs.
HINT_IDS_MAX = 500
HINTS_MAX = 10_000
# Between two connections that are read again: the first one's data arrives meanwhile.
RESUME_S = 0.001


class AcknowledgementWriter:
    def __init__(
        self,
        store: DispatchStore,
        on_due: Callable[[int], None],
        metrics: DispatcherMetrics,
        waiting_max: int,
    ) -> None:
        """`on_due(partition)` is called when messages of the partition may be due again."""
        self._store = store
        self._on_due = on_due
        self._metrics = metrics
        self._waiting_max = waiting_max
        self._waiting = 0
        self._paused: dict[asyncio.Transport, Callable[[], None] | None] = {}  # longest first
        self._resuming = False
        self._rejections = store.rejections()
        self._finished: deque[bytes] = deque(maxlen=HINTS_MAX)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._log = log.logger("angarium.dispatch")

    def acknowledge(self, ids: Sequence[bytes], consumer: str, send_reply: SendReply) -> None:
        for message_id in ids:
            done = partial(self._on_acknowledged, message_id, send_reply)
            self._begin(self._store.acknowledgements, AckItem(message_id, consumer), done)

    def reject(self, rejection: RejectionReceived, consumer: str, delivery: int) -> None:
        """The message is due again after a delay that doubles with each delivery. Without a reason
        it is due at once and the delivery does not count. `delivery`: see HeldItem."""
        reason = rejection.reason and f"{consumer}: {rejection.reason}"
        item = RejectItem(rejection.message_id, consumer, delivery, reason, False, 1.0)
        partition = partition_of_id(rejection.message_id, self._store.partitions)
        self._begin(self._rejections, item, partial(self._on_rejected, partition))

    def announce_finished(self, ids: Sequence[bytes]) -> None:
        """Tell the other dispatchers that messages they sent were acknowledged here."""
        if ids:
            self._finished.extend(ids)
            self._wake.set()

    @property
    def full(self) -> bool:
        return self._waiting > self._waiting_max

    def push_back(
        self, transport: asyncio.Transport, on_resume: Callable[[], None] | None = None
    ) -> None:
        """Stop reading from a connection while too many of these writes wait. `on_resume` is called
        in its turn, also if the connection has ended by then."""
        if self.full and transport not in self._paused:
            self._paused[transport] = on_resume
            self._metrics.acks_paused += 1
            if not transport.is_closing():
                transport.pause_reading()

    def pauses(self, transport: asyncio.Transport) -> bool:
        """Whether the connection is not read because too many of these writes wait."""
        return transport in self._paused

    async def drained(self) -> None:
        await self._idle.wait()

    async def run(self) -> None:
        """Publish the hints for the other dispatchers."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._finished:
                count = min(HINT_IDS_MAX, len(self._finished))
                ids = [self._finished.popleft() for _ in range(count)]
                try:
                    await self._store.announce_finished(ids)
                except AngariumError as error:
                    self._log.warning("hint_failed", error=str(error), messages=count)

    def _begin(self, batcher: Batcher[Item, str], item: Item, done: Callable[[str], None]) -> None:
        self._waiting += 1
        self._idle.clear()
        self._submit(batcher, item, done)

    def _submit(self, batcher: Batcher[Item, str], item: Item, done: Callable[[str], None]) -> None:
        partition = partition_of_id(item.message_id, self._store.partitions)
        try:
            future = batcher.submit(partition, item)
        except Overloaded:
            self._submit_later(batcher, item, done)
        except RedisUnavailable:
            self._end()  # this process is shutting down
        else:
            future.add_done_callback(partial(self._on_reply, batcher, item, done))

    def _submit_later(
        self, batcher: Batcher[Item, str], item: Item, done: Callable[[str], None]
    ) -> None:
        asyncio.get_running_loop().call_later(RETRY_S, self._submit, batcher, item, done)

    def _on_reply(
        self,
        batcher: Batcher[Item, str],
        item: Item,
        done: Callable[[str], None],
        future: asyncio.Future[Any],
    ) -> None:
        if future.cancelled():
            self._end()
            return
        error = future.exception()
        if error is None:
            done(future.result())
        elif isinstance(error, AngariumError) and not isinstance(error, ScriptFailed):
            # Safe to repeat, and a third-party worker does not repeat an acknowledgement.
            self._metrics.acks_repeated += 1
            self._submit_later(batcher, item, done)
            return
        else:
            self._log.error("acknowledge_refused", error=str(error))
        self._end()

    def _end(self) -> None:
        self._waiting -= 1
        if self._waiting == 0:
            self._idle.set()
        self._resume_soon(0)

    def _resume_soon(self, delay_s: float) -> None:
        if self._paused and not self._resuming and self._waiting <= self._waiting_max // 2:
            self._resuming = True
            asyncio.get_running_loop().call_later(delay_s, self._resume_one)

    def _resume_one(self) -> None:
        """One connection in a turn of the loop: each may have thousands of acknowledgements in its
        buffers, and all of them together would fill the memory."""
        self._resuming = False
        if self._paused and self._waiting <= self._waiting_max // 2:
            transport = next(iter(self._paused))
            on_resume = self._paused.pop(transport)
            if not transport.is_closing():
                transport.resume_reading()
            if on_resume is not None:
                on_resume()
            self._resume_soon(RESUME_S)

    def _on_acknowledged(self, message_id: bytes, send_reply: SendReply, reply: str) -> None:
        if reply == "acknowledged":
            self._metrics.processed += 1
            return
        self._metrics.acks_unknown += 1
        send_reply(encode_rejection(message_id, "unknown: not pending, or finished already"))

    def _on_rejected(self, partition: int, reply: str) -> None:
        self._metrics.rejected += reply == "requeued"
        self._metrics.dead += reply == "dead"
        self._metrics.acks_foreign += reply == "lost"
        self._on_due(partition)
