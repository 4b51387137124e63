"""A dispatcher's connection to one worker: handshake, window, heartbeats.

A connection has free slots while the worker has completed the handshake, holds fewer messages than
its window and reads what it is sent. The connection reports acknowledgements, rejections and, when
it ends, the unacknowledged messages to `WorkerConnectionEvents`. It does not know the state of a
message in Redis.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from angarium.dispatch import security
from angarium.dispatch.acknowledgements import AcknowledgementWriter
from angarium.dispatch.errors import FrameInvalid, TokenRefused
from angarium.dispatch.frames import Command, DispatchedMessage, encode_ids, encode_messages
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.protocol import (
    AcknowledgementsReceived,
    DispatcherProtocol,
    ErrorReceived,
    Hello,
    HelloReceived,
    ProtocolViolated,
    RejectionReceived,
    ReleaseReceived,
    RenewalReceived,
    SendBytes,
    encode_error,
    encode_heartbeat,
)
from angarium.dispatch.queues import UNNAMED
from angarium.runtime import log
from angarium.runtime.log import RepeatedWarnings
from angarium.runtime.tracing import Tracing

# Our own worker sends HELLO at once. A third-party worker never does and should not wait long.
HELLO_WAIT_S = 0.25
# After this many heartbeat intervals without a byte, a worker that sent HELLO is dead or hangs.
SILENT_BEATS_MAX = 3
# A worker with more unsent bytes than this reads too slowly and is sent no more.
WRITE_BUFFER_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True)
class WorkerConnectionOptions:
    token: str | None
    tls: ssl.SSLContext | None
    frame_bytes_max: int
    window: int  # of a worker that does not name one
    heartbeat_s: float
    name: str  # of this dispatcher
    lease_ms: int = 0  # how long a worker holds a message without renewing it
    tracing: Tracing | None = None


class WorkerConnectionEvents:
    """Callbacks of a worker connection. The dispatcher implements them."""

    def on_acknowledged(self, connection: WorkerConnection, ids: Sequence[bytes]) -> None: ...
    def on_rejected(self, connection: WorkerConnection, rejection: RejectionReceived) -> None: ...
    def on_renewed(self, connection: WorkerConnection, ids: Sequence[bytes]) -> None: ...
    def on_released(self, connection: WorkerConnection, ids: Sequence[bytes]) -> None: ...
    def on_lost(self, connection: WorkerConnection, unacknowledged: Sequence[bytes]) -> None: ...
    def on_free_slots(self) -> None: ...


class WorkerConnection(asyncio.Protocol):
    def __init__(
        self,
        address: str,
        options: WorkerConnectionOptions,
        events: WorkerConnectionEvents,
        metrics: DispatcherMetrics,
        warnings: RepeatedWarnings,
    ) -> None:
        self.address = address
        self.consumer = address
        self.completes = False
        self.renews = False
        self.queue = UNNAMED
        self.unacknowledged: dict[bytes, float] = {}  # id → time of sending, oldest first
        self._deliveries: dict[bytes, int] = {}  # of those that were sent more than once
        self._window = 0
        self._effective_window = 0  # smaller than the window while acknowledgements are late
        self._acknowledged = False  # since the last time-out
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._options = options
        self._events = events
        self._metrics = metrics
        self._warnings = warnings
        self._reason_logged = False  # the reason why the connection ends
        hello = Hello(consumer_id=options.name, lease_ms=options.lease_ms)
        self._protocol = DispatcherProtocol(
            options.frame_bytes_max, options.token, hello, dials=True
        )
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.said_hello = False
        self._paused = False
        self.delisted = False  # not in the list of consumers: it finishes and is sent no more
        self.reserved = False  # for messages that may have killed workers
        self.draining = False  # it gives messages back: it is sent no more until its next HELLO
        self._received_since_beat = True
        self._silent_beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._log = log.logger("angarium.dispatch", consumer=address)

    @property
    def free_slots(self) -> int:
        """The number of messages that the worker can be sent now."""
        if self.reserved or not self.usable:
            return 0
        return max(0, self._effective_window - len(self.unacknowledged))

    @property
    def usable(self) -> bool:
        """Whether the worker may be sent messages at all."""
        if self._paused or self.delisted or self.draining or self._effective_window == 0:
            return False
        return self._transport is not None and not self._transport.is_closing()

    def send(self, messages: Sequence[DispatchedMessage], deliveries: Mapping[bytes, int]) -> None:
        """`deliveries` has the number of the delivery of each message that is sent again."""
        assert self._transport is not None
        now_s = self._loop.time()
        ids = [message_id for message_id, _ in messages]
        self.unacknowledged.update(dict.fromkeys(ids, now_s))
        self._transport.write(encode_messages(messages))
        if deliveries and (again := [each for each in ids if each in deliveries]):
            self._deliveries.update((each, deliveries[each]) for each in again)
            if self.renews:
                # The record of the holder lets another dispatcher renew them if this one dies.
                self._events.on_renewed(self, again)
        tracing = self._options.tracing
        if tracing is not None:
            values = {"angarium.consumer": self.consumer}
            tracing.messages("dispatch send", messages, time.time_ns(), values)

    def delivery_of(self, message_id: bytes) -> int:
        """The number of the delivery on this connection; 0 if it holds no such message."""
        if message_id not in self.unacknowledged:
            return 0
        return self._deliveries.get(message_id, 1)

    def adopt(self, ids: Sequence[bytes]) -> None:
        """Count messages that the worker holds from an earlier connection or dispatcher."""
        now_s = self._loop.time()
        for message_id in ids:
            self.unacknowledged.setdefault(message_id, now_s)

    def settle(self, ids: Sequence[bytes]) -> int:
        """Free the slots of messages that the worker no longer holds.

        Returns how many of them this connection did not hold.
        """
        foreign = self._free(ids)
        self._acknowledged = True
        self._effective_window = min(self._window, self._effective_window * 2)
        return foreign

    def expire(self, ids: Sequence[bytes]) -> None:
        """Free the slots of messages that timed out; another worker gets them.

        The window shrinks if no acknowledgement arrived since the last time-out: a worker that
        is too slow gets fewer messages, because each of them arrives late.
        """
        self.release(ids)
        if not self._acknowledged:
            self._effective_window = max(1, self._effective_window // 2)
        self._acknowledged = False

    def release(self, ids: Sequence[bytes]) -> None:
        """Tell a worker that renews which messages it no longer holds."""
        self._free(ids)
        if ids and self.renews:
            self.write(encode_ids(Command.RELEASE_MESSAGES, ids))

    def forget_sent_before(self, before_s: float) -> int:
        """Free the slots of old messages: they were finished elsewhere, or another leader took
        over. Without this they would fill the window for ever. Returns their number.

        A worker that renews answers for each message, so nothing of it is forgotten."""
        if self.renews:
            return 0
        old = []
        for message_id, sent_s in self.unacknowledged.items():
            if sent_s >= before_s:
                break
            old.append(message_id)
        self._free(old)
        return len(old)

    def _free(self, ids: Sequence[bytes]) -> int:
        """The number of ids that had no slot."""
        unacknowledged, foreign = self.unacknowledged, 0
        for message_id in ids:
            if message_id in unacknowledged:
                del unacknowledged[message_id]
            else:
                foreign += 1
        if self._deliveries:
            for message_id in ids:
                self._deliveries.pop(message_id, None)
        return foreign

    def push_back(self, acknowledgements: AcknowledgementWriter) -> None:
        if self._transport is not None:
            acknowledgements.push_back(self._transport)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self, acknowledgements: AcknowledgementWriter) -> None:
        """Unless too many acknowledgements wait, too: then reading resumes with them."""
        if self._transport is None or self._transport.is_closing():
            return
        if not acknowledgements.pauses(self._transport):
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # Callbacks of the event loop ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        self._timer = self._loop.call_later(HELLO_WAIT_S, self._no_hello)

    def data_received(self, data: bytes) -> None:
        self._received_since_beat = True
        for event in self._protocol.receive(data):
            match event:
                case AcknowledgementsReceived(ids):
                    self._events.on_acknowledged(self, ids)
                case RejectionReceived():
                    self._events.on_rejected(self, event)
                case RenewalReceived(ids):
                    self._events.on_renewed(self, ids)
                case ReleaseReceived(ids):
                    self._events.on_released(self, ids)
                case SendBytes(reply):
                    self.write(reply)
                case HelloReceived(hello):
                    self._handle_hello(hello)
                case ErrorReceived(text):
                    self._reason_logged = True
                    self._warn("worker_refused", why=text)
                case ProtocolViolated(error):
                    self._close_with_error(error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._events.on_free_slots()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._protocol.incomplete:
            self._metrics.frames_cut += 1
        if not self._protocol.authenticated and not self._reason_logged:
            problem = "the connection ended before a proof of dispatch.token: do the tokens differ?"
            self._warn("protocol_error", code=TokenRefused.code, problem=problem)
        unacknowledged, self.unacknowledged = list(self.unacknowledged), {}
        self._deliveries.clear()
        self._effective_window = 0
        self._events.on_lost(self, unacknowledged)
        if not self.closed.done():
            self.closed.set_result(None)

    # Handshake and heartbeats -------------------------------------------------------------

    def _handle_hello(self, hello: Hello) -> None:
        if not self.said_hello:
            self.said_hello = True
            self._restart_timer(self._options.heartbeat_s, self._beat)
            self._log.info("worker_connected", window=hello.window)
        self.draining = False
        self.consumer = hello.consumer_id or self.address
        self.completes = hello.completes
        self.renews = hello.completes and hello.renews
        self.queue = hello.queue
        self._open_window(hello.window or self._options.window)

    def _open_window(self, window: int) -> None:
        self._window = self._effective_window = window
        # In the next turn of the loop: a worker that was connected before sends RENEW_MESSAGES
        # right after HELLO, and these messages count first.
        self._loop.call_soon(self._events.on_free_slots)

    def _no_hello(self) -> None:
        """A third-party worker: it gets plain frames and no heartbeats."""
        if self._protocol.authenticated:
            self._log.info("worker_connected", window=self._options.window, said_hello=False)
            self._open_window(self._options.window)
        else:
            self._restart_timer(security.HANDSHAKE_S_MAX, self._proof_overdue)

    def _proof_overdue(self) -> None:
        self._close_with_error(security.proof_overdue())

    def _close_with_error(self, error: FrameInvalid) -> None:
        self._metrics.protocol_errors += 1
        self._reason_logged = True
        self._warn("protocol_error", code=error.code, problem=str(error))
        self.write(encode_error(error))
        self.close()

    def _warn(self, event: str, **values: Any) -> None:
        """The dispatcher dials such a worker again for as long as it is listed."""
        self._warnings.warn(event, self.address, consumer=self.address, **values)

    def _beat(self) -> None:
        assert self._transport is not None
        # Count beats instead of seconds: after a pause of this process, the bytes that workers
        # sent meanwhile are read only after this timer.
        # A worker that is not read while Redis is slow is not silent.
        heard = self._received_since_beat or not self._transport.is_reading()
        self._silent_beats = 0 if heard else self._silent_beats + 1
        self._received_since_beat = False
        if self._silent_beats >= SILENT_BEATS_MAX:
            self._log.warning("worker_silent", beats=self._silent_beats)
            self._transport.abort()
            return
        if not self._paused:
            self._transport.write(encode_heartbeat())
        self._restart_timer(self._options.heartbeat_s, self._beat)

    def _restart_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, call)
