"""Answers of workers on their way to Redis, and the ACK port where any of them may bring theirs.

Acknowledgements and refusals are gathered and written in batches, one partition at a time. They
carry no term: that a worker has stored a result stays true, whoever leads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from socket import socket
from typing import Any, TypeVar, cast

from angarium.dispatch import security
from angarium.dispatch.counts import DispatcherCounts
from angarium.dispatch.errors import FrameInvalid
from angarium.dispatch.identity import partition_of_id
from angarium.dispatch.protocol import (
    Acknowledged,
    Answer,
    Broken,
    DispatcherSide,
    Greeted,
    Refused,
    Rejected,
    farewell,
    rejection,
)
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.warnings import RepeatedWarnings
from angarium.runtime import log
from angarium.runtime.clock import Clock
from angarium.runtime.errors import AngariumError, NotDurable, OutcomeUnknown, ScriptFailed
from angarium.runtime.settings import Settings

Writer = Callable[[bytes], None]
"""Writes bytes back to whoever sent the acknowledgement, if it is still there."""

Row = TypeVar("Row", bound=tuple[Any, ...])
BATCH_MAX = 500
RETRY_S = 0.1


class Answers:
    """What workers said of messages, written down in batches."""

    def __init__(
        self, store: DispatchStore, on_due: Callable[[int], None], counts: DispatcherCounts
    ) -> None:
        self._store = store
        self._on_due = on_due  # told of a partition in which messages may be due again
        self._counts = counts
        self._acks: deque[tuple[bytes, str, Writer]] = deque()
        self._rejects: deque[tuple[bytes, str, int]] = deque()
        self._finished: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._log = log.logger("angarium.dispatch")

    def acknowledge(self, message_id: bytes, consumer: str, answer: Writer) -> None:
        self._acks.append((message_id, consumer, answer))
        self._idle.clear()
        self._wake.set()

    def reject(self, message_id: bytes, reason: str, delay_ms: int) -> None:
        """Due again, after `delay_ms` the first time; without a reason as if never sent."""
        self._rejects.append((message_id, reason, delay_ms))
        self._idle.clear()
        self._wake.set()

    def tell_others(self, ids: Sequence[bytes]) -> None:
        """Messages that another dispatcher sent were acknowledged here."""
        if ids:
            self._finished.extend(ids)
            self._wake.set()

    async def drained(self) -> None:
        await self._idle.wait()

    async def pump(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._acks or self._rejects:
                await self._write_acks()
                await self._write_rejects()
            self._idle.set()
            await self._tell_finished()

    async def _write_acks(self) -> None:
        taken = [self._acks.popleft() for _ in range(min(BATCH_MAX, len(self._acks)))]
        for partition, part in self._by_partition(taken).items():
            pairs = [(message_id, consumer) for message_id, consumer, _ in part]
            try:
                done = await self._store.acknowledge(partition, pairs)
            except ScriptFailed as error:
                self._log.error("acknowledge_refused", error=str(error), messages=len(part))
                continue
            except AngariumError as error:
                # Safe to send twice. A worker of another make will not say it again by itself.
                self._log.warning("acknowledge_failed", error=str(error), messages=len(part))
                self._acks.extendleft(reversed(part))
                await asyncio.sleep(RETRY_S)
                continue
            self._counts.processed += sum(done)
            for (message_id, _, answer), known in zip(part, done, strict=True):
                if not known:
                    self._counts.acks_unknown += 1
                    answer(rejection(message_id, "unknown: not pending, or finished already"))

    async def _write_rejects(self) -> None:
        taken = [self._rejects.popleft() for _ in range(min(BATCH_MAX, len(self._rejects)))]
        for partition, part in self._by_partition(taken).items():
            try:
                statuses = await self._store.reject(partition, part)
            except (OutcomeUnknown, NotDurable, ScriptFailed) as error:
                # Twice would count two failures; left alone, the time-out brings it back.
                self._log.warning("reject_unknown", error=str(error), messages=len(part))
                continue
            except AngariumError:
                self._rejects.extendleft(reversed(part))
                await asyncio.sleep(RETRY_S)
                continue
            self._counts.rejected += statuses.count("requeued")
            self._counts.dead += statuses.count("dead")
            self._on_due(partition)

    async def _tell_finished(self) -> None:
        while self._finished:
            count = min(BATCH_MAX, len(self._finished))
            try:
                await self._store.tell_finished([self._finished.popleft() for _ in range(count)])
            except AngariumError as error:
                # A hint: without it their windows open again after some time-outs.
                self._log.warning("hint_failed", error=str(error), messages=count)

    def _by_partition(self, taken: Sequence[Row]) -> dict[int, list[Row]]:
        parts: dict[int, list[Row]] = {}
        for each in taken:
            parts.setdefault(partition_of_id(each[0], self._store.partitions), []).append(each)
        return parts


class AckListener:
    """The ACK port: frames of workers that acknowledge elsewhere than on their own link."""

    def __init__(
        self,
        answers: Answers,
        settings: Settings,
        counts: DispatcherCounts,
        on_acknowledged: Callable[[Sequence[bytes]], None],
        clock: Clock,
    ) -> None:
        self._answers = answers
        self._settings = settings
        self.counts = counts
        self._on_acknowledged = on_acknowledged
        self.warnings = RepeatedWarnings(log.logger("angarium.dispatch"), clock)
        self._tls = security.server_tls(settings)
        self._server: asyncio.Server | None = None
        self.connections: set[_AckConnection] = set()

    async def open(self, listener: socket) -> int:
        """Listen; the port."""
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=listener,
            ssl=self._tls,
            ssl_handshake_timeout=security.tls_deadline_s(self._tls),
        )
        return int(listener.getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        self.warnings.flush(at_end=True)

    @property
    def has_place(self) -> bool:
        return len(self.connections) < self._settings.limits.ack_connections_max

    def acknowledged(self, ids: Sequence[bytes], consumer: str, answer: Writer) -> None:
        for message_id in ids:
            self._answers.acknowledge(message_id, consumer, answer)
        self._on_acknowledged(ids)

    def rejected(self, rejected: Rejected, consumer: str) -> None:
        reason = rejected.reason and f"{consumer}: {rejected.reason}"
        delay_ms = self._settings.dispatch.retry_delay_ms
        self._answers.reject(rejected.message_id, reason, delay_ms)

    def refused(self, error: FrameInvalid, consumer: str) -> None:
        self.counts.protocol_errors += 1
        self.warnings.warn(
            "protocol_error", error.code, code=error.code, problem=str(error), consumer=consumer
        )

    def _connection(self) -> _AckConnection:
        token = security.token(self._settings)
        side = DispatcherSide(self._settings.limits.frame_bytes_max, token, dials=False)
        return _AckConnection(self, side)


class _AckConnection(asyncio.Protocol):
    def __init__(self, listener: AckListener, side: DispatcherSide) -> None:
        self._listener = listener
        self._side = side
        self._consumer = "ack port"
        self._transport: asyncio.Transport | None = None
        self._stranger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._listener.has_place:
            self._transport.abort()
            return
        self._listener.connections.add(self)
        if not self._side.trusted:
            loop = asyncio.get_running_loop()
            self._stranger = loop.call_later(security.HANDSHAKE_S_MAX, self._no_proof)
            self.answer(self._side.opening())
        peer = self._transport.get_extra_info("peername")
        self._consumer = f"{peer[0]}:{peer[1]}" if peer else self._consumer

    def data_received(self, data: bytes) -> None:
        for event in self._side.receive(data):
            match event:
                case Acknowledged(ids):
                    self._listener.acknowledged(ids, self._consumer, self.answer)
                case Rejected():
                    self._listener.rejected(event, self._consumer)
                case Greeted(greeting):
                    self._known()
                    self._consumer = greeting.consumer_id or self._consumer
                case Answer(answer):
                    self.answer(answer)
                case Refused(text):
                    self._listener.warnings.warn("worker_refused", "", why=text)
                case Broken(error):
                    self._refuse(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._known()
        self._listener.connections.discard(self)
        if self._side.incomplete:
            self._listener.counts.frames_cut += 1

    def _no_proof(self) -> None:
        self._refuse(security.proof_missing())

    def _refuse(self, error: FrameInvalid) -> None:
        self._listener.refused(error, self._consumer)
        self.answer(farewell(error))
        self.close()

    def _known(self) -> None:
        if self._stranger is not None:
            self._stranger.cancel()
            self._stranger = None

    def pause_writing(self) -> None:
        # It does not read our answers: there is nothing it could still be told.
        if self._transport is not None:
            self._transport.abort()

    def answer(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
