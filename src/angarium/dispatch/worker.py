"""The role `worker`: takes messages from dispatchers, runs the function, stores the results.

A worker decodes a message and calls the function. One script appends the result to the stream and
removes the message from the pending ones; only then does the worker acknowledge. If the function
raises, the worker stores the failure, and its retry policy decides what follows. While a message is
here, waiting or running, the worker renews it, so no other worker gets it. A worker that stops
gives back the messages it has not started and finishes the others. A lost connection loses
nothing: the results are still stored, and the messages are renewed on another connection.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from socket import socket
from typing import Any

import msgspec

from angarium.dispatch import security
from angarium.dispatch.dispatcher_connection import DispatcherConnection, DispatcherConnectionEvents
from angarium.dispatch.failures import failure_text, frames_of
from angarium.dispatch.frames import (
    Command,
    DispatchedMessage,
    encode_acknowledgements,
    encode_ids,
)
from angarium.dispatch.held_messages import HeldMessages
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.message_ids import partition_of_id
from angarium.dispatch.metrics import WorkerMetrics
from angarium.dispatch.protocol import (
    REASON_BYTES_MAX,
    Hello,
    encode_heartbeat,
    encode_hello,
    encode_rejection,
)
from angarium.dispatch.queues import is_queue_name
from angarium.dispatch.results import stream_fields
from angarium.dispatch.settings import DispatchSettings
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.transitions import RejectItem, ResultItem
from angarium.runtime.application import (
    Application,
    Caller,
    Handler,
    HandlerExit,
    handler_exit,
)
from angarium.runtime.errors import (
    AngariumError,
    InputInvalid,
    Overloaded,
    ScriptFailed,
    SettingInvalid,
)
from angarium.runtime.log import RepeatedWarnings
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
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
# Connections that have sent no frame yet, or not proved the token. Each lasts a few seconds at
# most; more of them would use descriptors that dispatchers need.
UNAUTHENTICATED_MAX = 100
# A message is renewed when the last renewal is a third of the lease old, at the latest a tick
# later. So a function that is faster costs nothing, and one renewal may be late.
RENEW_PART = 1 / 3
RENEW_TICKS = 12
RENEW_TICK_S_MAX = 0.1
# Results and failures that Redis did not take are sent again after this time.
STORE_RETRY_S = 0.1
# Kinds of errors whose traceback is logged. A kind is a type and a line of code.
TRACEBACKS_MAX = 100

_decode = msgspec.json.Decoder().decode


class TooLate(Exception):
    """The function exceeded its time, and its failure is stored already."""


def check(settings: CommonSettings, app: Application) -> None:
    for name in _handlers(app):
        if name and not is_queue_name(name):
            problem = f"@app.worker({name[:100]!r}) names no queue"
            fix = "use up to 64 letters, digits, '_', '.' and '-'"
            raise SettingInvalid("ANGARIUM_APP", problem, fix)
    security.server_tls(settings)
    host = settings.group(DispatchSettings).worker_host
    security.check_exposure(settings, host, "ANGARIUM_DISPATCH__WORKER_HOST")
    for place in range(len(_handlers(app))):
        _listen(settings, place).close()


def build(runtime: Runtime, app: Application) -> Service:
    from angarium.dispatch.worker_group import WorkerGroup

    handlers = _handlers(app)
    alone = len(handlers) == 1
    workers = [
        Worker(runtime, each, place, reports=alone) for place, each in enumerate(handlers.values())
    ]
    return workers[0] if alone else WorkerGroup(runtime, workers)


def _handlers(app: Application) -> Mapping[str, Handler]:
    """The functions by queue; at least one."""
    return app.handlers("worker") or {"": app.handler("worker", "worker")}


def _listen(settings: CommonSettings, place: int = 0) -> socket:
    """The functions of one application have successive ports, if a port is set."""
    port = settings.group(DispatchSettings).worker_port
    return listen(
        settings.group(DispatchSettings).worker_host,
        port and port + place,
        "ANGARIUM_DISPATCH__WORKER_PORT",
        host_setting="ANGARIUM_DISPATCH__WORKER_HOST",
    )


class Worker(Service, DispatcherConnectionEvents):
    def __init__(
        self, runtime: Runtime, handler: Handler, place: int = 0, *, reports: bool = True
    ) -> None:
        """`place` is that of the function in its application. Unless `reports`, the caller reports
        the figures."""
        self.queue = handler.name
        self._place = place
        self._reports = reports
        super().__init__(self._port_name, clock=runtime.clock)
        settings = runtime.settings.group(DispatchSettings)
        self._runtime = runtime
        self._handler = handler
        self._store = runtime.store(DispatchStore)
        self._concurrency = int(handler.options.get("concurrency", settings.worker_concurrency))
        self._window = int(handler.options.get("window", settings.worker_window))
        self._caller = Caller(1 if handler.is_async else self._concurrency)
        # What needs neither a thread nor a time limit is awaited here.
        direct = handler.is_async and handler.retry.timeout_s is None
        self._function = handler.function if direct else None
        self._tls = security.server_tls(runtime.settings)
        self.metrics = WorkerMetrics()
        self.warnings = RepeatedWarnings(self.log, runtime.clock)
        self.consumer = ""
        self._connections: set[DispatcherConnection] = set()
        self._unauthenticated: dict[DispatcherConnection, None] = {}  # oldest first
        self._server: asyncio.Server | None = None
        self._queue: deque[DispatchedMessage] = deque()
        self._queued_bytes = 0
        self._bytes_max = runtime.settings.limits_of(DispatchLimits).worker_bytes_max
        self._held = HeldMessages()
        self._lease_ms = settings.ack_timeout_ms
        self._answers: dict[DispatcherConnection, dict[Command, list[bytes]]] = {}
        self._traced: dict[str, str] = {}  # kind of error → frames of its traceback
        self._handlers: asyncio.Task[None] | None = None  # the parent of the tasks below
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waking = False
        self._connections_max = runtime.settings.limits_of(DispatchLimits).worker_connections_max
        self._rejections = self._store.rejections(handler.retry)
        self._reporter = ProcessReporter(runtime, "worker")

    async def on_start(self) -> None:
        listener = _listen(self._runtime.settings, self._place)
        port = int(listener.getsockname()[1])
        self.ports = {self._port_name: port}
        self.consumer = self._advertised() or f"{await self._host()}:{port}"
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=listener,
            ssl=self._tls,
            ssl_handshake_timeout=security.tls_deadline_s(self._tls),
        )
        self._completions = self._store.completions(self.consumer, self._on_results)
        self.spawn("handlers", self._run_handlers)
        self.loop("members", self._join_once, MEMBERS_S)
        # Until the end of the stop: dispatchers close a silent connection, and started messages
        # still finish here.
        beat_s = self._runtime.settings.group(DispatchSettings).heartbeat_ms / 1000
        self.loop("beats", self._beat_once, beat_s, until="stop")
        tick_s = min(self._lease_ms / 1000 / RENEW_TICKS, RENEW_TICK_S_MAX)
        self.loop("renewals", self._renew_once, tick_s, until="stop")
        if self._reports:
            self.loop("metrics", self._report_once, INTERVAL_S, until="stop")
        await self._join_once()

    async def on_quiet(self) -> None:
        """Leave the list of consumers and give back the messages that are not started."""
        if self._server is not None:
            self._server.close()
        returned, self._queue = self._queue, deque()
        self._queued_bytes = 0
        for message_id, _ in returned:
            if (connection := self._held.remove(message_id)) is not None:
                connection.write(encode_rejection(message_id))
        self.metrics.returned += len(returned)
        if self.queue:
            await self._store.leave_named_consumers(self.queue, self.consumer)
        else:
            await self._store.leave_consumers(self.consumer)

    async def on_stop(self) -> None:
        """Wait until the started messages are finished, stored and acknowledged."""
        while self._held:
            await self.clock.sleep(0.01)
        if self._reports:
            await self._reporter.withdraw()

    async def on_close(self) -> None:
        for connection in (*self._connections, *self._unauthenticated):
            connection.close()
        self._caller.close()
        self.warnings.flush(at_end=True)

    # Connections --------------------------------------------------------------------------

    def _connection(self) -> DispatcherConnection:
        # Messages of a broken connection count too; their dispatcher learns of them by renewals.
        hello = self._hello(max(1, self._window - len(self._held.orphans)))
        return DispatcherConnection(
            self._runtime.settings, hello, self, self.metrics, self.warnings
        )

    def _hello(self, window: int) -> Hello:
        return Hello(
            consumer_id=self.consumer,
            window=window,
            completes=True,
            renews=True,
            queue=self.queue,
        )

    @property
    def _port_name(self) -> str:
        return f"worker:{self.queue}" if self.queue else "worker"

    def _advertised(self) -> str | None:
        """`dispatch.worker_address`, with the port of this function."""
        address = self._runtime.settings.group(DispatchSettings).worker_address
        if address is None or self._place == 0:
            return address
        host, _, port = address.rpartition(":")
        return f"{host}:{int(port) + self._place}"

    @property
    def dispatchers(self) -> int:
        """The number of connections that spoke, and proved the token where one is set."""
        return len(self._connections)

    def on_connected(self, connection: DispatcherConnection) -> None:
        """Disconnect the oldest connection that has not spoken if there are too many. A dispatcher
        speaks within milliseconds, so the oldest one is rarely a dispatcher."""
        self._unauthenticated[connection] = None
        if len(self._unauthenticated) > UNAUTHENTICATED_MAX:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.abort()

    def on_authenticated(self, connection: DispatcherConnection) -> None:
        self._unauthenticated.pop(connection, None)
        if len(self._connections) >= self._connections_max:
            connection.abort()
            return
        self._connections.add(connection)

    def on_greeted(self, connection: DispatcherConnection) -> None:
        """The dispatcher sent its HELLO. What the worker holds of broken connections is renewed
        now, because the lease may be nearly over."""
        if connection.lease_ms:
            self._lease_ms = connection.lease_ms
            if self._held.orphans:
                self._renew(float("inf"))
        if connection.window < self._window:
            self._open_window(connection)

    def on_released(self, ids: Sequence[bytes]) -> None:
        self.metrics.lost += self._held.lose(ids)

    def on_disconnected(self, connection: DispatcherConnection) -> None:
        self._unauthenticated.pop(connection, None)
        self._connections.discard(connection)

    def on_messages(
        self, messages: Sequence[DispatchedMessage], connection: DispatcherConnection
    ) -> None:
        room = max(0, self._window - connection.held) if self.ready else 0
        size = sum([len(payload) for _, payload in messages])
        if self._queued_bytes + size > self._bytes_max:
            room = self._fitting(messages, room)
        if len(messages) > room:
            self._give_back(messages[room:], connection)
            messages = messages[:room]
        # A message may arrive again before it is finished. It runs once, and the answer goes to
        # the connection that sent it last.
        new = self._held.add_all(messages, connection, self.clock.monotonic())
        self._queue.extend(new)
        self._queued_bytes += sum([len(payload) for _, payload in new])
        self.metrics.received += len(messages)
        self._wake_one()

    def _fitting(self, messages: Sequence[DispatchedMessage], room: int) -> int:
        """How many of the first `room` messages may wait here. One is always taken if none does."""
        free_bytes = self._bytes_max - self._queued_bytes
        for place, (_, payload) in enumerate(messages[:room]):
            if free_bytes < len(payload) and (place > 0 or self._queue):
                return place
            free_bytes -= len(payload)
        return room

    def _give_back(
        self, messages: Sequence[DispatchedMessage], connection: DispatcherConnection
    ) -> None:
        """Messages that arrive during the stop, or beyond the window."""
        connection.overfull = True
        for message_id, _ in messages:
            connection.write(encode_rejection(message_id))
        self.metrics.returned += len(messages)

    def _open_window(self, connection: DispatcherConnection) -> None:
        connection.overfull = False
        connection.window = self._window
        connection.write(encode_hello(self._hello(self._window)))

    # Running the function -----------------------------------------------------------------

    def _wake_one(self) -> None:
        """Wake one idle task. It wakes the next one itself if more messages wait."""
        while self._idle and not self._waking:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                self._waking = True

    async def _run_handlers(self) -> None:
        self._handlers = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._run_slot())

    async def _run_slot(self) -> None:
        while True:
            try:
                await self._handle_for_ever()
            except asyncio.CancelledError:
                if not self._cancelled_itself():
                    raise
                self._waking = False
                self._wake_one()

    def _cancelled_itself(self) -> bool:
        """Whether a function, or a library that it uses, cancelled the task that runs it. The task
        goes on."""
        task = asyncio.current_task()
        if task is None or self._handlers is None or self._handlers.cancelling():
            return False
        while task.cancelling():
            task.uncancel()
        return True

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
            self._queued_bytes -= len(payload)
            if queue and self._idle:
                self._wake_one()
            await self._handle(message_id, payload)
            turn += 1
            if turn >= TURN_MESSAGES_MAX:
                turn = 0
                await asyncio.sleep(0)

    async def _handle(self, message_id: bytes, payload: bytes) -> None:
        if message_id in self._held.lost:
            self._held.remove(message_id)  # another worker has it, and it was not started here
            return
        try:
            message = _decode(payload)
            # The function can read the message's id and continue its trace.
            CURRENT_WORK.set(CurrentWork(message_id, message, is_message=True))
            if self._function is not None:
                result = await self._function(message)
            elif self._handler.retry.timeout_s is None:
                result = await self._caller.call(self._handler, message)
            else:
                result = await self._call_in_time(message_id, message)
            fields, size = stream_fields(result)
        except TooLate:
            return
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            did = "cancelled its own task:" if task and task.cancelling() else "raised"
            if not self._cancelled_itself():
                raise
            self._fail(message_id, HandlerExit(f"the function {did} {error!r}"))
        except Exception as error:
            self._fail(message_id, error)
        except BaseException as error:
            self._fail(message_id, handler_exit(error))
        else:
            self._store_result(ResultItem(message_id, fields), size)

    async def _call_in_time(self, message_id: bytes, message: Any) -> Any:
        """A function that exceeds its time fails the message at once. The slot is free when the
        function has ended: a thread can't be interrupted. A late result is stored if the message
        is still unfinished."""
        timeout_s = self._handler.retry.timeout_s
        call = asyncio.ensure_future(self._caller.call(self._handler, message))
        try:
            await asyncio.wait({call}, timeout=timeout_s)
            if not call.done():
                self._fail(message_id, TimeoutError(f"the function took more than {timeout_s:g} s"))
                if self._handler.is_async:
                    call.cancel()
                await asyncio.wait({call})
                if call.cancelled() or call.exception() is not None:
                    raise TooLate
        finally:
            call.cancel()
        return call.result()

    # Results and failures -----------------------------------------------------------------

    def _store_result(self, item: ResultItem, size: int) -> None:
        partition = partition_of_id(item.message_id, self._store.partitions)
        try:
            self._completions.send(partition, item, size)
        except Overloaded:
            self._later(self._store_result, item, size)

    def _on_results(self, items: Sequence[ResultItem], replies: Sequence[str | Exception]) -> None:
        completed = replies.count("completed")
        finished = [item.message_id for item in items]
        if completed < len(items):
            finished = []
            for item, reply in zip(items, replies, strict=True):
                if isinstance(reply, Exception):
                    self._on_not_stored(item, reply)
                else:
                    finished.append(item.message_id)
        self.metrics.completed += completed
        self.metrics.duplicates += len(finished) - completed
        self._answer(finished, Command.ACK_MESSAGE)

    def _on_not_stored(self, item: ResultItem, error: Exception) -> None:
        if isinstance(error, (ScriptFailed, InputInvalid)):
            # Redis refuses the result now and later.
            self._fail(item.message_id, error, f"the result can't be stored: {error}")
        else:
            # Safe to repeat. Without a repeat, another worker would repeat the work.
            self.warnings.warn("store_failed", type(error).__name__, error=str(error))
            self._later(self._store_result, item, sum(map(len, item.fields)))

    def _fail(self, message_id: bytes, error: BaseException, reason: str = "") -> None:
        """Store the failure of a try. The log counts repeated failures of one kind."""
        reason = reason or _reason(error)
        self.metrics.failed += 1
        self._log_failure(message_id, error, reason)
        last = not self._handler.retry.retries_error(error) and not reason.startswith("the result")
        draw = random.uniform(0.5, 1.0)
        text = failure_text(f"{self.consumer}: {reason}", self._frames(error))
        item = RejectItem(message_id, self.consumer, 0, text, last, draw)
        self._held.begin_failure(message_id, item)
        self._store_failure(item)

    def _store_failure(self, item: RejectItem) -> None:
        partition = partition_of_id(item.message_id, self._store.partitions)
        try:
            stored = self._rejections.submit(partition, item)
        except Overloaded:
            self._later(self._store_failure, item)
        else:
            stored.add_done_callback(partial(self._on_failure_stored, item))

    def _on_failure_stored(self, item: RejectItem, stored: asyncio.Future[str]) -> None:
        if stored.cancelled():
            return
        error = stored.exception()
        if isinstance(error, AngariumError) and not isinstance(error, ScriptFailed):
            self._later(self._store_failure, item)
            return
        if error is not None:
            # Without a renewal the message is due after the lease.
            self.warnings.warn("failure_not_stored", type(error).__name__, error=str(error))
        elif stored.result() == "dead":
            self.metrics.dead += 1
        if self._held.is_failing(item.message_id, item):
            self._answer([item.message_id], Command.RELEASE_MESSAGES)

    def _frames(self, error: BaseException) -> str:
        """Formatting costs more than storing, so errors of one line are formatted once."""
        kind = _origin(error)
        found = self._traced.get(kind)
        if found is None:
            found = frames_of(error)
            if len(self._traced) < TRACEBACKS_MAX:
                self._traced[kind] = found
        return found

    def _log_failure(self, message_id: bytes, error: BaseException, reason: str) -> None:
        kind = _origin(error)
        shown: dict[str, Any] = {"message_id": message_id.decode(), "error": reason[:500]}
        if kind not in self._traced and len(self._traced) < TRACEBACKS_MAX:
            self.log.warning("function_failed", **shown, exc_info=error)
        self.warnings.warn("message_failed", kind, **shown)

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        asyncio.get_running_loop().call_later(STORE_RETRY_S, call, *args)

    def _answer(self, ids: Sequence[bytes], command: Command) -> None:
        """Tell the dispatchers that the messages are no longer here. All answers of this turn of
        the loop are written together."""
        if ids and not self._answers:
            asyncio.get_running_loop().call_soon(self._write_answers)
        for connection, own in self._held.remove_all(ids).items():
            self._answers.setdefault(connection, {}).setdefault(command, []).extend(own)

    def _write_answers(self) -> None:
        answers, self._answers = self._answers, {}
        for connection, by_command in answers.items():
            if ids := by_command.get(Command.ACK_MESSAGE):
                connection.write(encode_acknowledgements(ids))
            if ids := by_command.get(Command.RELEASE_MESSAGES):
                connection.write(encode_ids(Command.RELEASE_MESSAGES, ids))
            if connection.overfull and self._has_space_for(connection):
                self._open_window(connection)

    def _has_space_for(self, connection: DispatcherConnection) -> bool:
        few = connection.held <= self._window // 2 and self._queued_bytes <= self._bytes_max // 2
        return self.ready and few

    # Renewals -----------------------------------------------------------------------------

    async def _renew_once(self) -> None:
        self._renew(self.clock.monotonic() - self._lease_ms / 1000 * RENEW_PART)

    def _renew(self, before_s: float) -> None:
        now_s = self.clock.monotonic()
        for connection, ids in self._held.to_renew(before_s, now_s, self._connections).items():
            self.metrics.renewed += len(ids)
            connection.write(encode_ids(Command.RENEW_MESSAGES, ids))

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
        if self.queue:
            await self._store.join_named_consumers(self.queue, self.consumer)
        else:
            await self._store.join_consumers(self.consumer)

    async def _beat_once(self) -> None:
        for connection in self._connections:
            connection.write(encode_heartbeat())

    def figures(self) -> Mapping[str, int]:
        return {
            **asdict(self.metrics),
            "in_hand": len(self._held),
            "dispatchers": self.dispatchers,
        }

    async def _report_once(self) -> None:
        reported = self.figures()
        await self._reporter.report(reported)
        self.log.debug("metrics", **reported)
        self.warnings.flush()


def _reason(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # __str__ is the application's code
        text = "its text can't be read"
    return valid_text(f"{type(error).__name__}: {text[:REASON_BYTES_MAX]}")


def _origin(error: BaseException) -> str:
    """Type and line of an error: equal for all messages that fail for the same reason."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    return f"{type(error).__name__} {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
