"""The role `worker`: listens for dispatchers, runs the application's function, stores results.

A message is decoded, handed to the function, and its result appended to the stream in the script
that also takes the message out of the pending ones; only then is it acknowledged. A function that
raises refuses its message with the error as the reason. On the way out, what was not begun is
given back and what was begun is finished. Losing a connection loses nothing: results are stored
all the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from socket import socket
from typing import cast

import msgspec

from angarium.dispatch import security
from angarium.dispatch.counts import WorkerCounts
from angarium.dispatch.errors import FrameInvalid
from angarium.dispatch.frames import encode_acknowledgements
from angarium.dispatch.identity import partition_of_id
from angarium.dispatch.protocol import (
    REASON_BYTES_MAX,
    Answer,
    Broken,
    Greeted,
    Greeting,
    Messages,
    Refused,
    WorkerSide,
    farewell,
    heartbeat,
    rejection,
)
from angarium.dispatch.results import fields_of
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.warnings import RepeatedWarnings
from angarium.redis.connection import Argument
from angarium.runtime.application import Angarium, Caller, Handler
from angarium.runtime.errors import AngariumError, ScriptFailed
from angarium.runtime.limits import Limits
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import Settings
from angarium.runtime.sockets import listen
from angarium.runtime.text import valid_text
from angarium.runtime.trace import IN_HAND, InHand

MEMBERS_S = 1.0
WILDCARDS = ("", "0.0.0.0", "::")
# One that Redis works on, one that is prepared meanwhile.
IN_FLIGHT_MAX = 2
# A function that never waits for anything would otherwise keep the loop from hearing the network.
TURN_MESSAGES_MAX = 100
# A dispatcher that reads no acknowledgements has this much of them waiting before it is cut off.
UNREAD_BYTES_MAX = 4 * 1024 * 1024
RETRY_S = 0.1
# Connections that have not proved that they know the token, where one is set. Each lasts for some
# seconds at most; every one beyond these would cost a descriptor that dispatchers need.
STRANGERS_MAX = 100

_decode = msgspec.json.Decoder().decode


def check(settings: Settings, app: Angarium) -> None:
    app.handler("worker", "worker")
    security.server_tls(settings)
    _listen(settings).close()


def build(runtime: Runtime, app: Angarium) -> Service:
    return Worker(runtime, app.handler("worker", "worker"))


def _listen(settings: Settings) -> socket:
    return listen(
        settings.dispatch.worker_host,
        settings.dispatch.worker_port,
        "ANGARIUM_DISPATCH__WORKER_PORT",
        host_setting="ANGARIUM_DISPATCH__WORKER_HOST",
    )


class Worker(Service):
    def __init__(self, runtime: Runtime, handler: Handler) -> None:
        super().__init__("worker", clock=runtime.clock)
        settings = runtime.settings.dispatch
        self._runtime = runtime
        self._handler = handler
        self._is_async = handler.is_async
        self._store = DispatchStore(runtime)
        self._concurrency = int(handler.options.get("concurrency", settings.worker_concurrency))
        self._window = int(handler.options.get("window", settings.worker_window))
        self._caller = Caller(1 if self._is_async else self._concurrency)
        self._tls = security.server_tls(runtime.settings)
        self.counts = WorkerCounts()
        self.warnings = RepeatedWarnings(self.log, runtime.clock)
        self.consumer = ""
        self._connections: set[_Connection] = set()  # of dispatchers that are trusted
        self._strangers: dict[_Connection, None] = {}  # the others, in the order they came
        self._server: asyncio.Server | None = None
        self._todo: deque[tuple[bytes, bytes]] = deque()
        self._in_hand: dict[bytes, _Connection] = {}  # and who is to be told how it went
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waking = False
        self._results = _Results(self, runtime.settings.limits)
        self._figures = ProcessReporter(runtime, "worker")

    async def on_start(self) -> None:
        listener = _listen(self._runtime.settings)
        port = int(listener.getsockname()[1])
        self.ports = {"worker": port}
        address = self._runtime.settings.dispatch.worker_address
        self.consumer = address or f"{await self._host()}:{port}"
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=listener,
            ssl=self._tls,
            ssl_handshake_timeout=security.tls_deadline_s(self._tls),
        )
        self.spawn("handlers", self._run_handlers)
        self.spawn("results", self._results.pump)
        self.loop("members", self._join_once, MEMBERS_S)
        # Until the end: what is begun is finished here, and silence would mean that it is not.
        beat_s = self._runtime.settings.dispatch.heartbeat_ms / 1000
        self.loop("beats", self._beat_once, beat_s, until="stop")
        self.loop("figures", self._figures_once, INTERVAL_S, until="stop")
        await self._join_once()

    async def on_quiet(self) -> None:
        """Leave the list and give back what was not begun."""
        if self._server is not None:
            self._server.close()
        given_back, self._todo = self._todo, deque()
        for message_id, _ in given_back:
            self._in_hand.pop(message_id).write(rejection(message_id))
        self.counts.returned += len(given_back)
        await self._store.leave_consumers(self.consumer)

    async def on_stop(self) -> None:
        """Finish what was begun, store it, say so."""
        while self._in_hand:
            await self.clock.sleep(0.01)
        await self._figures.withdraw()

    async def on_close(self) -> None:
        for connection in (*self._connections, *self._strangers):
            connection.close()
        self._caller.close()
        self._in_hand.clear()
        self.warnings.flush(at_end=True)

    # What connections tell ----------------------------------------------------------------

    def _connection(self) -> _Connection:
        return _Connection(self, self._runtime.settings)

    def greeting(self) -> Greeting:
        return Greeting(
            consumer_id=self.consumer,
            window=self._window,
            completes=True,
        )

    @property
    def dispatchers(self) -> int:
        """Connections of dispatchers that are trusted."""
        return len(self._connections)

    def connected(self, connection: _Connection) -> None:
        """Of those who have not proved themselves yet, the oldest goes when there are too many:
        a dispatcher needs milliseconds, so it is seldom that one."""
        self._strangers[connection] = None
        if len(self._strangers) > STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()

    def joined(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)
        self._connections.add(connection)

    def parted(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)
        self._connections.discard(connection)

    def refused(self, error: FrameInvalid) -> None:
        self.counts.protocol_errors += 1
        self.warnings.warn("protocol_error", error.code, code=error.code, problem=str(error))

    def received(self, messages: Sequence[tuple[bytes, bytes]], connection: _Connection) -> None:
        if not self.ready:
            for message_id, _ in messages:
                connection.write(rejection(message_id))
            self.counts.returned += len(messages)
            return
        in_hand, todo = self._in_hand, self._todo
        for message_id, payload in messages:
            # One that is in hand already was sent again meanwhile: it is done once, and the
            # last who sent it hears of it.
            if message_id not in in_hand:
                todo.append((message_id, payload))
            in_hand[message_id] = connection
        self.counts.received += len(messages)
        self._wake_one()

    # Running the function -----------------------------------------------------------------

    def _wake_one(self) -> None:
        """One that is on its way wakes the next itself, if there is still something to do."""
        while self._idle and not self._waking:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                self._waking = True

    async def _run_handlers(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._handle_for_ever())

    async def _handle_for_ever(self) -> None:
        """One of `concurrency`. It wakes the next only when there is more to do than it can
        begin itself, so a function that never waits is run by one of them."""
        turn = 0
        loop = asyncio.get_running_loop()
        while True:
            todo = self._todo
            if not todo:
                waiting = loop.create_future()
                self._idle.append(waiting)
                await waiting
                self._waking = False
                turn = 0
                continue
            message_id, payload = todo.popleft()
            if todo and self._idle:
                self._wake_one()
            await self._handle(message_id, payload)
            turn += 1
            if turn >= TURN_MESSAGES_MAX:
                turn = 0
                await asyncio.sleep(0)

    async def _handle(self, message_id: bytes, payload: bytes) -> None:
        try:
            message = _decode(payload)
            # For the function's own use: its message's id, and the trace that it carries on.
            IN_HAND.set(InHand(message_id, message, is_message=True))
            if self._is_async:
                result = await self._handler.function(message)
            else:
                result = await self._caller.call(self._handler, message)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.failed([message_id], _reason(error), _origin(error))
            return
        try:
            fields, size = fields_of(result)
        except Exception as error:
            self.failed([message_id], reason := _reason(error), reason)
            return
        self._results.add(message_id, fields, size)

    def failed(self, ids: Sequence[bytes], reason: str, kind: str) -> None:
        """`kind` tells failures apart in the log; each message keeps its own reason."""
        self.counts.failed += len(ids)
        first = ids[0].decode()
        self.warnings.warn(
            "message_failed", kind, count=len(ids), message_id=first, error=reason[:500]
        )
        for message_id in ids:
            self._in_hand.pop(message_id).write(rejection(message_id, reason))

    # Storing ------------------------------------------------------------------------------

    async def store(
        self, results: Sequence[tuple[bytes, Sequence[Argument]]], partition: int
    ) -> list[bool]:
        return await self._store.complete(partition, self.consumer, results)

    def stored(self, ids: Sequence[bytes], fresh: int) -> None:
        self.counts.completed += fresh
        self.counts.duplicates += len(ids) - fresh
        told: dict[_Connection, list[bytes]] = {}
        for message_id in ids:
            connection = self._in_hand.pop(message_id)
            if connection in told:
                told[connection].append(message_id)
            else:
                told[connection] = [message_id]
        for connection, part in told.items():
            connection.acknowledge(part)

    @property
    def items_max(self) -> int:
        return self._store.items_max

    @property
    def partitions(self) -> int:
        return self._store.partitions

    async def _host(self) -> str:
        """Where dispatchers dial. A wildcard is no such address, and the one under which Redis
        knows this machine is, unless something in between rewrites addresses."""
        host = self._runtime.settings.dispatch.worker_host
        if host not in WILDCARDS:
            return host
        info: bytes = await self._runtime.redis.call("CLIENT", "INFO")
        fields = dict(field.partition("=")[::2] for field in info.decode().split())
        return fields["addr"].rpartition(":")[0]

    # Signs of life ------------------------------------------------------------------------

    async def _join_once(self) -> None:
        await self._store.join_consumers(self.consumer)

    async def _beat_once(self) -> None:
        for connection in self._connections:
            connection.write(heartbeat())

    async def _figures_once(self) -> None:
        figures: Mapping[str, float] = {
            **self.counts.table(),
            "in_hand": len(self._in_hand),
            "dispatchers": self.dispatchers,
        }
        await self._figures.report(figures)
        self.log.info("figures", **figures)
        self.warnings.flush()


Result = tuple[bytes, Sequence[Argument], int]
"""Message id, fields of the stream entry, their size in bytes."""


class _Results:
    """Results on their way into the stream, in batches of one partition."""

    def __init__(self, worker: Worker, limits: Limits) -> None:
        self._worker = worker
        self._items_max = worker.items_max
        self._bytes_max = limits.batch_bytes_max
        self._waiting: dict[int, deque[Result]] = {}
        self._in_flight: Counter[int] = Counter()
        self._wake = asyncio.Event()

    def add(self, message_id: bytes, fields: Sequence[Argument], size: int) -> None:
        partition = partition_of_id(message_id, self._worker.partitions)
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = deque()
        waiting.append((message_id, fields, size))
        self._wake.set()

    async def pump(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for partition, waiting in self._waiting.items():
                    while waiting and self._in_flight[partition] < IN_FLIGHT_MAX:
                        self._in_flight[partition] += 1
                        group.create_task(self._store(partition, self._next_batch(waiting)))

    def _next_batch(self, waiting: deque[Result]) -> list[tuple[bytes, Sequence[Argument]]]:
        batch: list[tuple[bytes, Sequence[Argument]]] = []
        size = 0
        while waiting and len(batch) < self._items_max:
            if batch and size + waiting[0][2] > self._bytes_max:
                break
            message_id, fields, result_bytes = waiting.popleft()
            batch.append((message_id, fields))
            size += result_bytes
        return batch

    async def _store(
        self, partition: int, batch: Sequence[tuple[bytes, Sequence[Argument]]]
    ) -> None:
        ids = [message_id for message_id, _ in batch]
        try:
            while True:
                try:
                    fresh = await self._worker.store(batch, partition)
                except ScriptFailed as error:
                    # Redis will not take it, now or later; others may know what to do with it.
                    self._worker.failed(ids, f"the result can't be stored: {error}", "store")
                    return
                except AngariumError as error:
                    # Safe to send again; dropping it would mean doing the work again.
                    self._worker.log.warning("store_failed", error=str(error), results=len(batch))
                    await self._worker.clock.sleep(RETRY_S)
                else:
                    self._worker.stored(ids, sum(fresh))
                    return
        finally:
            self._in_flight[partition] -= 1
            self._wake.set()


class _Connection(asyncio.Protocol):
    """One dispatcher at our port, or a stranger until it has proved that it is one."""

    def __init__(self, worker: Worker, settings: Settings) -> None:
        self._worker = worker
        token, bytes_max = security.token(settings), settings.limits.frame_bytes_max
        self._side = WorkerSide(bytes_max, token, worker.greeting(), dials=False)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(UNREAD_BYTES_MAX)
        if self._side.trusted:
            self._worker.joined(self)
        else:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(security.HANDSHAKE_S_MAX, self._no_proof)
            self._worker.connected(self)
        self.write(self._side.opening())

    def data_received(self, data: bytes) -> None:
        for event in self._side.receive(data):
            match event:
                case Messages(messages):
                    self._worker.received(messages, self)
                case Answer(answer):
                    self.write(answer)
                case Greeted():
                    self._stop_deadline()
                    self._worker.joined(self)
                case Refused(text):
                    self._worker.warnings.warn("dispatcher_refused", "", why=text)
                case Broken(error):
                    self._refuse(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_deadline()
        if self._side.incomplete:
            self._worker.counts.frames_cut += 1
        self._worker.parted(self)

    def _no_proof(self) -> None:
        self._refuse(security.proof_missing())

    def _refuse(self, error: FrameInvalid) -> None:
        self._worker.refused(error)
        self.write(farewell(error))
        self.close()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def pause_writing(self) -> None:
        self.abort()

    def acknowledge(self, ids: Sequence[bytes]) -> None:
        self.write(encode_acknowledgements(ids))

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _reason(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # the text is made by code of the application's own
        text = "its text can't be read"
    return valid_text(f"{type(error).__name__}: {text[:REASON_BYTES_MAX]}")


def _origin(error: Exception) -> str:
    """Type and place: the same for every message that meets the same bug, whatever its text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    return f"{type(error).__name__} {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
