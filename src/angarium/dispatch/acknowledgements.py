"""Writes the acknowledgements and rejections of workers to Redis, in batches per partition.

They carry no term: a worker that stored a result has stored it, whichever dispatcher leads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from angarium.dispatch.message_ids import partition_of_id
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.protocol import encode_rejection
from angarium.dispatch.store import DispatchStore
from angarium.runtime import log
from angarium.runtime.errors import AngariumError, NotDurable, OutcomeUnknown, ScriptFailed

SendReply = Callable[[bytes], None]
"""Sends bytes to the worker that acknowledged, if it is still connected."""

Row = TypeVar("Row", bound=tuple[Any, ...])
BATCH_MAX = 500
RETRY_S = 0.1


class AcknowledgementWriter:
    def __init__(
        self, store: DispatchStore, on_due: Callable[[int], None], metrics: DispatcherMetrics
    ) -> None:
        """`on_due(partition)` is called when messages of the partition may be due again."""
        self._store = store
        self._on_due = on_due
        self._metrics = metrics
        self._acks: deque[tuple[bytes, str, SendReply]] = deque()
        self._rejections: deque[tuple[bytes, str, int]] = deque()
        self._finished: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._log = log.logger("angarium.dispatch")

    def acknowledge(self, message_id: bytes, consumer: str, send_reply: SendReply) -> None:
        self._acks.append((message_id, consumer, send_reply))
        self._idle.clear()
        self._wake.set()

    def reject(self, message_id: bytes, reason: str, delay_ms: int) -> None:
        """The message is due again after `delay_ms`, which doubles with each delivery. Without a
        reason it is due at once and the delivery does not count."""
        self._rejections.append((message_id, reason, delay_ms))
        self._idle.clear()
        self._wake.set()

    def announce_finished(self, ids: Sequence[bytes]) -> None:
        """Tell the other dispatchers that messages they sent were acknowledged here."""
        if ids:
            self._finished.extend(ids)
            self._wake.set()

    async def drained(self) -> None:
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._acks or self._rejections:
                await self._write_acks()
                await self._write_rejections()
            self._idle.set()
            await self._publish_finished()

    async def _write_acks(self) -> None:
        batch = [self._acks.popleft() for _ in range(min(BATCH_MAX, len(self._acks)))]
        for partition, part in self._by_partition(batch).items():
            pairs = [(message_id, consumer) for message_id, consumer, _ in part]
            try:
                known = await self._store.acknowledge(partition, pairs)
            except ScriptFailed as error:
                self._log.error("acknowledge_refused", error=str(error), messages=len(part))
                continue
            except AngariumError as error:
                # Safe to repeat. A third-party worker does not repeat an acknowledgement.
                self._log.warning("acknowledge_failed", error=str(error), messages=len(part))
                self._acks.extendleft(reversed(part))
                await asyncio.sleep(RETRY_S)
                continue
            self._metrics.processed += sum(known)
            for (message_id, _, send_reply), is_known in zip(part, known, strict=True):
                if not is_known:
                    self._metrics.acks_unknown += 1
                    reason = "unknown: not pending, or finished already"
                    send_reply(encode_rejection(message_id, reason))

    async def _write_rejections(self) -> None:
        batch = [self._rejections.popleft() for _ in range(min(BATCH_MAX, len(self._rejections)))]
        for partition, part in self._by_partition(batch).items():
            try:
                statuses = await self._store.reject(partition, part)
            except (OutcomeUnknown, NotDurable, ScriptFailed) as error:
                # A repeat could count two failures. Without one the time-out makes them due.
                self._log.warning("reject_unknown", error=str(error), messages=len(part))
                continue
            except AngariumError:
                self._rejections.extendleft(reversed(part))
                await asyncio.sleep(RETRY_S)
                continue
            self._metrics.rejected += statuses.count("requeued")
            self._metrics.dead += statuses.count("dead")
            self._on_due(partition)

    async def _publish_finished(self) -> None:
        while self._finished:
            count = min(BATCH_MAX, len(self._finished))
            ids = [self._finished.popleft() for _ in range(count)]
            try:
                await self._store.announce_finished(ids)
            except AngariumError as error:
                # Only a hint: without it the slots are free after FORGET_TIMEOUTS time-outs.
                self._log.warning("hint_failed", error=str(error), messages=count)

    def _by_partition(self, rows: Sequence[Row]) -> dict[int, list[Row]]:
        parts: dict[int, list[Row]] = {}
        for row in rows:
            parts.setdefault(partition_of_id(row[0], self._store.partitions), []).append(row)
        return parts
