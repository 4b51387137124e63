"""A worker's connection to one dispatcher, which dialled it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from angarium.dispatch import security
from angarium.dispatch.accepted_connection import AcceptedConnection
from angarium.dispatch.errors import FrameInvalid
from angarium.dispatch.frames import DispatchedMessage
from angarium.dispatch.metrics import WorkerMetrics
from angarium.dispatch.protocol import (
    ErrorReceived,
    Hello,
    HelloReceived,
    MessagesReceived,
    ProtocolViolated,
    ReleaseReceived,
    SendBytes,
    WorkerProtocol,
)
from angarium.runtime.log import RepeatedWarnings
from angarium.runtime.settings import CommonSettings

# A dispatcher with more unread bytes than this is disconnected.
UNREAD_BYTES_MAX = 4 * 1024 * 1024


class DispatcherConnectionEvents:
    """Callbacks of a dispatcher connection. The worker implements them."""

    def on_connected(self, connection: DispatcherConnection) -> None: ...
    def on_authenticated(self, connection: DispatcherConnection) -> None: ...
    def on_greeted(self, connection: DispatcherConnection) -> None: ...
    def on_released(self, ids: Sequence[bytes]) -> None: ...
    def on_disconnected(self, connection: DispatcherConnection) -> None: ...
    def on_messages(
        self, messages: Sequence[DispatchedMessage], connection: DispatcherConnection
    ) -> None: ...


class DispatcherConnection(AcceptedConnection):
    def __init__(
        self,
        settings: CommonSettings,
        hello: Hello,
        events: DispatcherConnectionEvents,
        metrics: WorkerMetrics,
        warnings: RepeatedWarnings,
    ) -> None:
        token, bytes_max = security.token(settings), settings.limits.frame_bytes_max
        super().__init__(WorkerProtocol(bytes_max, token, hello, dials=False))
        self._events = events
        self._metrics = metrics
        self._warnings = warnings
        self.window = hello.window
        self.held = 0  # messages of this connection that the worker has not answered
        self.lease_ms = 0  # the dispatcher's; 0 if it does not know RENEW_MESSAGES
        self.overfull = False  # the dispatcher sent more than the window

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(asyncio.Transport, transport).set_write_buffer_limits(UNREAD_BYTES_MAX)
        self._events.on_connected(self)
        self.write(self._protocol.opening())

    def data_received(self, data: bytes) -> None:
        events = self._protocol.receive(data)
        if self._heard(frames=bool(events)):
            self._events.on_authenticated(self)
        for event in events:
            match event:
                case MessagesReceived(messages):
                    self._events.on_messages(messages, self)
                case SendBytes(reply):
                    self.write(reply)
                case ReleaseReceived(ids):
                    self._events.on_released(ids)
                case HelloReceived(hello):
                    self.lease_ms = hello.lease_ms
                    self._events.on_greeted(self)
                case ErrorReceived(text):
                    self._warnings.warn("dispatcher_refused", "", why=text)
                case ProtocolViolated(error):
                    self._close_with_error(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        if self._protocol.incomplete:
            self._metrics.frames_cut += 1
        self._events.on_disconnected(self)

    def _violated(self, error: FrameInvalid) -> None:
        self._metrics.protocol_errors += 1
        self._warnings.warn("protocol_error", error.code, code=error.code, problem=str(error))
