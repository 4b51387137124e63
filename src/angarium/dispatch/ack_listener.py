"""The ACK port: accepts acknowledgements and rejections on connections that workers open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from socket import socket

from angarium.dispatch import security
from angarium.dispatch.accepted_connection import AcceptedConnection
from angarium.dispatch.acknowledgements import AcknowledgementWriter, SendReply
from angarium.dispatch.errors import FrameInvalid
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.protocol import (
    AcknowledgementsReceived,
    DispatcherProtocol,
    ErrorReceived,
    HelloReceived,
    ProtocolViolated,
    RejectionReceived,
    SendBytes,
)
from angarium.dispatch.settings import DispatchSettings
from angarium.runtime import log
from angarium.runtime.clock import Clock
from angarium.runtime.repeated_warnings import RepeatedWarnings
from angarium.runtime.settings import CommonSettings


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
        self.connections: set[AckConnection] = set()

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
    def is_full(self) -> bool:
        return len(self.connections) >= self._settings.limits_of(DispatchLimits).ack_connections_max

    def acknowledged(self, ids: Sequence[bytes], consumer: str, send_reply: SendReply) -> None:
        for message_id in ids:
            self._acknowledgements.acknowledge(message_id, consumer, send_reply)
        self._on_acknowledged(ids)

    def rejected(self, rejection: RejectionReceived, consumer: str) -> None:
        reason = rejection.reason and f"{consumer}: {rejection.reason}"
        delay_ms = self._settings.group(DispatchSettings).retry_delay_ms
        self._acknowledgements.reject(rejection.message_id, reason, delay_ms)

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
    def __init__(self, listener: AckListener, protocol: DispatcherProtocol) -> None:
        super().__init__()
        self._listener = listener
        self._protocol = protocol
        self._consumer = "ack port"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._listener.is_full:
            self.abort()
            return
        self._listener.connections.add(self)
        if not self._protocol.authenticated:
            self._start_deadline()
            self.write(self._protocol.opening())
        peer = transport.get_extra_info("peername")
        self._consumer = f"{peer[0]}:{peer[1]}" if peer else self._consumer

    def data_received(self, data: bytes) -> None:
        for event in self._protocol.receive(data):
            match event:
                case AcknowledgementsReceived(ids):
                    self._listener.acknowledged(ids, self._consumer, self.write)
                case RejectionReceived():
                    self._listener.rejected(event, self._consumer)
                case HelloReceived(hello):
                    self._stop_deadline()
                    self._consumer = hello.consumer_id or self._consumer
                case SendBytes(reply):
                    self.write(reply)
                case ErrorReceived(text):
                    self._listener.warnings.warn("worker_refused", "", why=text)
                case ProtocolViolated(error):
                    self._close_with_error(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_deadline()
        self._listener.connections.discard(self)
        if self._protocol.incomplete:
            self._listener.metrics.frames_cut += 1

    def _violated(self, error: FrameInvalid) -> None:
        self._listener.violated(error, self._consumer)
