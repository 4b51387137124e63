"""The role `worker`: takes messages from dispatchers, runs the function, stores the results.

A worker decodes a message and calls the function. One script appends the result to the stream and
removes the message from the pending ones; only then does the worker acknowledge. If the function
raises, the worker rejects the message with the error as the reason. A worker that stops gives back
the messages it has not started and finishes the others. A lost connection loses nothing: the
results are still stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from socket import socket

import msgspec

from angarium.dispatch import security
from angarium.dispatch.dispatcher_connection import DispatcherConnection, DispatcherConnectionEvents
from angarium.dispatch.frames import DispatchedMessage, encode_acknowledgements
from angarium.dispatch.metrics import WorkerMetrics
from angarium.dispatch.protocol import (
    REASON_BYTES_MAX,
    Hello,
    encode_heartbeat,
    encode_rejection,
)
from angarium.dispatch.result_writer import ResultWriter
from angarium.dispatch.results import stream_fields
from angarium.dispatch.settings import DispatchSettings
from angarium.dispatch.store import DispatchStore
from angarium.runtime.application import Angarium, Caller, Handler
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.repeated_warnings import RepeatedWarnings
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import CommonSettings
from angarium.runtime.sockets import listen
from angarium.runtime.text import valid_text
from angarium.runtime.trace import CURRENT_WORK, CurrentWork

MEMBERS_S = 1.0
WILDCARDS = ("", "0.0.0.0", "::")
# After this many messages a function that never awaits lets the event loop read the network.
TURN_MESSAGES_MAX = 100
# Connections that have not proved that they know the token. Each lasts a few seconds at most; more
# of them would use descriptors that dispatchers need.
UNAUTHENTICATED_MAX = 100

_decode = msgspec.json.Decoder().decode


def check(settings: CommonSettings, app: Angarium) -> None:
    app.handler("worker", "worker")
    security.server_tls(settings)
    _listen(settings).close()


def build(runtime: Runtime, app: Angarium) -> Service:
    return Worker(runtime, app.handler("worker", "worker"))


def _listen(settings: CommonSettings) -> socket:
    return listen(
        settings.group(DispatchSettings).worker_host,
        settings.group(DispatchSettings).worker_port,
        "ANGARIUM_DISPATCH__WORKER_PORT",
        host_setting="ANGARIUM_DISPATCH__WORKER_HOST",
    )


class Worker(Service, DispatcherConnectionEvents):
    def __init__(self, runtime: Runtime, handler: Handler) -> None:
        super().__init__("worker", clock=runtime.clock)
        settings = runtime.settings.group(DispatchSettings)
        self._runtime = runtime
        self._handler = handler
        self._is_async = handler.is_async
        self._store = runtime.store(DispatchStore)
        self._concurrency = int(handler.options.get("concurrency", settings.worker_concurrency))
        self._window = int(handler.options.get("window", settings.worker_window))
        self._caller = Caller(1 if self._is_async else self._concurrency)
        self._tls = security.server_tls(runtime.settings)
        self.metrics = WorkerMetrics()
        self.warnings = RepeatedWarnings(self.log, runtime.clock)
        self.consumer = ""
        self._connections: set[DispatcherConnection] = set()
        self._unauthenticated: dict[DispatcherConnection, None] = {}  # oldest first
        self._server: asyncio.Server | None = None
        self._queue: deque[DispatchedMessage] = deque()
        self._unfinished: dict[bytes, DispatcherConnection] = {}  # id → where to send the reply
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waking = False
        bytes_max = runtime.settings.limits.batch_bytes_max
        self._results = ResultWriter(self._store, bytes_max, self, runtime.clock)
        self._reporter = ProcessReporter(runtime, "worker")

    async def on_start(self) -> None:
        listener = _listen(self._runtime.settings)
        port = int(listener.getsockname()[1])
        self.ports = {"worker": port}
        address = self._runtime.settings.group(DispatchSettings).worker_address
        self.consumer = address or f"{await self._host()}:{port}"
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=listener,
            ssl=self._tls,
            ssl_handshake_timeout=security.tls_deadline_s(self._tls),
        )
        self.spawn("handlers", self._run_handlers)
        self.spawn("results", self._results.run)
        self.loop("members", self._join_once, MEMBERS_S)
        # Until the end of the stop: dispatchers close a silent connection, and started messages
        # still finish here.
        beat_s = self._runtime.settings.group(DispatchSettings).heartbeat_ms / 1000
        self.loop("beats", self._beat_once, beat_s, until="stop")
        self.loop("metrics", self._report_once, INTERVAL_S, until="stop")
        await self._join_once()

    async def on_quiet(self) -> None:
        """Leave the list of consumers and give back the messages that are not started."""
        if self._server is not None:
            self._server.close()
        returned, self._queue = self._queue, deque()
        for message_id, _ in returned:
            self._unfinished.pop(message_id).write(encode_rejection(message_id))
        self.metrics.returned += len(returned)
        await self._store.leave_consumers(self.consumer)

    async def on_stop(self) -> None:
        """Wait until the started messages are finished, stored and acknowledged."""
        while self._unfinished:
            await self.clock.sleep(0.01)
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        for connection in (*self._connections, *self._unauthenticated):
            connection.close()
        self._caller.close()
        self._unfinished.clear()
        self.warnings.flush(at_end=True)

    # Connections --------------------------------------------------------------------------

    def _connection(self) -> DispatcherConnection:
        hello = Hello(consumer_id=self.consumer, window=self._window, completes=True)
        return DispatcherConnection(
            self._runtime.settings, hello, self, self.metrics, self.warnings
        )

    @property
    def dispatchers(self) -> int:
        """The number of authenticated connections."""
        return len(self._connections)

    def on_connected(self, connection: DispatcherConnection) -> None:
        """Disconnect the oldest unauthenticated connection if there are too many. A dispatcher
        authenticates within milliseconds, so the oldest one is rarely a dispatcher."""
        self._unauthenticated[connection] = None
        if len(self._unauthenticated) > UNAUTHENTICATED_MAX:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.abort()

    def on_authenticated(self, connection: DispatcherConnection) -> None:
        self._unauthenticated.pop(connection, None)
        self._connections.add(connection)

    def on_disconnected(self, connection: DispatcherConnection) -> None:
        self._unauthenticated.pop(connection, None)
        self._connections.discard(connection)

    def on_messages(
        self, messages: Sequence[DispatchedMessage], connection: DispatcherConnection
    ) -> None:
        if not self.ready:
            for message_id, _ in messages:
                connection.write(encode_rejection(message_id))
            self.metrics.returned += len(messages)
            return
        unfinished, queue = self._unfinished, self._queue
        for message_id, payload in messages:
            # A message may arrive again before it is finished. It runs once, and the reply goes
            # to the connection that sent it last.
            if message_id not in unfinished:
                queue.append((message_id, payload))
            unfinished[message_id] = connection
        self.metrics.received += len(messages)
        self._wake_one()

    # Running the function -----------------------------------------------------------------

    def _wake_one(self) -> None:
        """Wake one idle task. It wakes the next one itself if more messages wait."""
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
        """One of `concurrency` tasks. It wakes the next task only if more messages wait, so a
        function that never awaits runs in one task."""
        turn = 0
        loop = asyncio.get_running_loop()
        while True:
            queue = self._queue
            if not queue:
                waiting = loop.create_future()
                self._idle.append(waiting)
                await waiting
                self._waking = False
                turn = 0
                continue
            message_id, payload = queue.popleft()
            if queue and self._idle:
                self._wake_one()
            await self._handle(message_id, payload)
            turn += 1
            if turn >= TURN_MESSAGES_MAX:
                turn = 0
                await asyncio.sleep(0)

    async def _handle(self, message_id: bytes, payload: bytes) -> None:
        try:
            message = _decode(payload)
            # The function can read the message's id and continue its trace.
            CURRENT_WORK.set(CurrentWork(message_id, message, is_message=True))
            if self._is_async:
                result = await self._handler.function(message)
            else:
                result = await self._caller.call(self._handler, message)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.on_failed([message_id], _reason(error), _origin(error))
            return
        try:
            fields, size = stream_fields(result)
        except Exception as error:
            self.on_failed([message_id], reason := _reason(error), reason)
            return
        self._results.add(message_id, fields, size)

    def on_failed(self, ids: Sequence[bytes], reason: str, kind: str) -> None:
        """Reject messages. The log counts repeated failures of one `kind`."""
        self.metrics.failed += len(ids)
        first = ids[0].decode()
        self.warnings.warn(
            "message_failed", kind, count=len(ids), message_id=first, error=reason[:500]
        )
        for message_id in ids:
            self._unfinished.pop(message_id).write(encode_rejection(message_id, reason))

    def on_stored(self, ids: Sequence[bytes], completed: int) -> None:
        """Acknowledge messages whose results are stored; `completed` of them for the first time."""
        self.metrics.completed += completed
        self.metrics.duplicates += len(ids) - completed
        by_connection: dict[DispatcherConnection, list[bytes]] = {}
        for message_id in ids:
            connection = self._unfinished.pop(message_id)
            if connection in by_connection:
                by_connection[connection].append(message_id)
            else:
                by_connection[connection] = [message_id]
        for connection, part in by_connection.items():
            connection.write(encode_acknowledgements(part))

    async def _host(self) -> str:
        """The host that dispatchers dial. For a wildcard it is the address from which this machine
        connects to Redis; that fails if a proxy or NAT rewrites addresses."""
        host = self._runtime.settings.group(DispatchSettings).worker_host
        if host not in WILDCARDS:
            return host
        info: bytes = await self._runtime.redis.call("CLIENT", "INFO")
        fields = dict(field.partition("=")[::2] for field in info.decode().split())
        return fields["addr"].rpartition(":")[0]

    # Heartbeats and metrics ---------------------------------------------------------------

    async def _join_once(self) -> None:
        await self._store.join_consumers(self.consumer)

    async def _beat_once(self) -> None:
        for connection in self._connections:
            connection.write(encode_heartbeat())

    async def _report_once(self) -> None:
        reported: Mapping[str, float] = {
            **asdict(self.metrics),
            "in_hand": len(self._unfinished),
            "dispatchers": self.dispatchers,
        }
        await self._reporter.report(reported)
        self.log.info("metrics", **reported)
        self.warnings.flush()


def _reason(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # __str__ is the application's code
        text = "its text can't be read"
    return valid_text(f"{type(error).__name__}: {text[:REASON_BYTES_MAX]}")


def _origin(error: Exception) -> str:
    """Type and line of an error: equal for all messages that fail for the same reason."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    return f"{type(error).__name__} {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
