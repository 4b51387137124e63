"""The ACK port: accepts acknowledgements and rejections on connections that workers open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from socket import socket

from angarium.dispatch import security
from angarium.dispatch.accepted_connection import AcceptedConnection
from angarium.dispatch.acknowledgements import AcknowledgementWriter, SendReply
from angarium.dispatch.errors import FrameInvalid, FrameMisplaced
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.protocol import (
    AcknowledgementsReceived,
    DispatcherProtocol,
    ErrorReceived,
    HelloReceived,
    ProtocolViolated,
    RejectionReceived,
    ReleaseReceived,
    RenewalReceived,
    SendBytes,
)
from angarium.runtime import log
from angarium.runtime.clock import Clock
from angarium.runtime.log import RepeatedWarnings
from angarium.runtime.settings import CommonSettings

# A connection that sends so little at a time does not wait its turn behind those that send much.
SMALL_BYTES_MAX = 4 * 1024


class AckListener:
    def __init__(
        self,
        acknowledgements: AcknowledgementWriter,
        settings: CommonSettings,
        metrics: DispatcherMetrics,
        on_acknowledged: Callable[[Sequence[bytes]], None],
        clock: Clock,
    ) -> None:
        self._acknowledgements = acknowledgements
        self._settings = settings
        self.metrics = metrics
        self._on_acknowledged = on_acknowledged
        self.warnings = RepeatedWarnings(log.logger("angarium.dispatch"), clock)
        self._tls = security.server_tls(settings)
        self._server: asyncio.Server | None = None
        self.connections: dict[AckConnection, None] = {}  # oldest first

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

    def admit(self, connection: AckConnection) -> None:
        """Beyond the limit, the oldest connection that never sent a frame makes way. Without one,
        the new connection is closed."""
        if len(self.connections) >= self._settings.limits_of(DispatchLimits).ack_connections_max:
            mute = next((each for each in self.connections if not each.spoke), None)
            if mute is None:
                connection.abort()
                return
            del self.connections[mute]
            mute.abort()
        self.connections[connection] = None

    def acknowledged(self, ids: Sequence[bytes], consumer: str, send_reply: SendReply) -> None:
        self._acknowledgements.acknowledge(ids, consumer, send_reply)
        self._on_acknowledged(ids)

    def rejected(self, rejection: RejectionReceived, consumer: str) -> None:
        self._acknowledgements.reject(rejection, consumer, 0)

    @property
    def full(self) -> bool:
        return self._acknowledgements.full

    def push_back(self, transport: asyncio.Transport, on_resume: Callable[[], None]) -> None:
        self._acknowledgements.push_back(transport, on_resume)

    def violated(self, error: FrameInvalid, consumer: str) -> None:
        self.metrics.protocol_errors += 1
        self.warnings.warn(
            "protocol_error", error.code, code=error.code, problem=str(error), consumer=consumer
        )

    def _connection(self) -> AckConnection:
        token = security.token(self._settings)
        bytes_max = self._settings.limits_of(DispatchLimits).frame_bytes_max
        return AckConnection(self, DispatcherProtocol(bytes_max, token, dials=False))


class AckConnection(AcceptedConnection):
    # A worker may dial before it has anything to acknowledge.
    _may_wait = True

    def __init__(self, listener: AckListener, protocol: DispatcherProtocol) -> None:
        super().__init__(protocol)
        self._listener = listener
        self._consumer = "ack port"
        self._unread = b""  # arrived while too many acknowledgements waited

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.admit(self)
        if not self._protocol.authenticated:
            self.write(self._protocol.opening())
        peer = transport.get_extra_info("peername")
        self._consumer = f"{peer[0]}:{peer[1]}" if peer else self._consumer

    def data_received(self, data: bytes) -> None:
        self._unread += data
        small = len(self._unread) <= SMALL_BYTES_MAX
        if small or not self._listener.full:
            self._read()
        if self._transport is not None and not small:
            self._listener.push_back(self._transport, self._read)

    def _read(self) -> None:
        data, self._unread = self._unread, b""
        events = self._protocol.receive(data)
        self._heard(frames=bool(events))
        for event in events:
            match event:
                case AcknowledgementsReceived(ids):
                    self._listener.acknowledged(ids, self._consumer, self.write)
                case RejectionReceived():
                    self._listener.rejected(event, self._consumer)
                case HelloReceived(hello):
                    self._consumer = hello.consumer_id or self._consumer
                case SendBytes(reply):
                    self.write(reply)
                case ErrorReceived(text):
                    self._listener.warnings.warn("worker_refused", "", why=text)
                case RenewalReceived() | ReleaseReceived():
                    problem = "RENEW_MESSAGES and RELEASE_MESSAGES belong on a worker's own port"
                    self._close_with_error(FrameMisplaced(problem))
                case ProtocolViolated(error):
                    self._close_with_error(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._listener.connections.pop(self, None)
        if self._protocol.incomplete:
            self._listener.metrics.frames_cut += 1

    def _violated(self, error: FrameInvalid) -> None:
        self._listener.violated(error, self._consumer)
