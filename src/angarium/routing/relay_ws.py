"""WebSocket at the relay: each message of a connection is queued, text or binary.

A message that asks for a response gets it on the same connection. What is no envelope ends the
connection with close code 1007 and the reason; what can't be queued now, with 1013. Messages of
one connection for one key are queued in the order they came. The relay stops to read from a
connection that has too much without an answer, or that does not read its answers, and from any
that brings more while the relay itself holds too much. A peer that begins a message and does not
end it, or does not read its answers, is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest

from angarium.routing.flow import Flow
from angarium.routing.items import DirectResponse
from angarium.runtime.errors import AngariumError, InputInvalid, LimitExceeded, Overloaded

# The close frame holds 125 bytes, two of them the code.
REASON_BYTES_MAX = 123
# For a message that comes in pieces, for answers to be read, and for a close frame to be answered.
PATIENCE_S = 30.0
MESSAGE = (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION)


class Desk(Protocol):
    """Who takes what a connection brings."""

    body_bytes_max: int
    connection_messages_max: int
    connection_bytes_max: int
    flow: Flow

    def enter(self, connection: WsConnection) -> bool:
        """Whether there is space for one more."""

    def leave(self, connection: WsConnection) -> None: ...

    def take(self, body: bytes) -> asyncio.Future[DirectResponse | None]:
        """A message came: done when it is queued and, if its sender waits, answered."""


class WsConnection(WSListener):
    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk
        self._transport: WSTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._parts = bytearray()
        self._begun_bytes = 0
        self._began_s: float | None = None  # a message whose last piece has not come
        self._unread_s: float | None = None  # answers that the peer does not read
        self._ended_s: float | None = None
        # Messages without an answer, with their bytes.
        self._answers: dict[asyncio.Future[DirectResponse | None], int] = {}
        self._bytes = 0
        self._pauses: set[str] = set()  # why this connection is not read from

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if not self._desk.enter(self):
            self._end(WSCloseCode.TRY_AGAIN_LATER, "too many connections")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._desk.leave(self)
        self._desk.flow.leave(self)
        self._forget_parts()
        for answer in list(self._answers):
            answer.cancel()  # nobody is left to hear it; the message is queued

    def pause_writing(self) -> None:
        # Pings are answered too: without this, a peer that only pings could fill our memory.
        self._unread_s = self._loop.time()
        self._pause("answers are not read")

    def resume_writing(self) -> None:
        self._unread_s = None
        self._read_on("answers are not read")

    def resume(self) -> None:
        self._read_on("relay is full")

    @property
    def overdue(self) -> bool:
        since = (self._began_s, self._unread_s, self._ended_s)
        oldest_s = min((at_s for at_s in since if at_s is not None), default=None)
        return oldest_s is not None and self._loop.time() - oldest_s > PATIENCE_S

    def give_up(self) -> None:
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code() or WSCloseCode.OK)
            transport.disconnect()
        elif kind in MESSAGE and self._ended_s is None:
            self._take_part(frame)

    def quiet(self) -> None:
        self._end(WSCloseCode.GOING_AWAY, "the relay is shutting down")

    def _take_part(self, frame: WSFrame) -> None:
        self._parts += frame.get_payload_as_memoryview()
        if len(self._parts) > self._desk.body_bytes_max:
            self._end(WSCloseCode.MESSAGE_TOO_BIG, "the message is too long")
        elif frame.fin:
            body = bytes(self._parts)
            self._forget_parts()
            self._take(body)
        else:
            self._await_end()

    def _await_end(self) -> None:
        """A message has begun: its time and its bytes count."""
        if self._began_s is None:
            self._began_s = self._loop.time()
        grown, self._begun_bytes = len(self._parts) - self._begun_bytes, len(self._parts)
        try:
            self._desk.flow.grew(grown)
        except Overloaded as error:
            self._refuse(error)

    def _forget_parts(self) -> None:
        self._desk.flow.grew(-self._begun_bytes)
        self._begun_bytes, self._began_s = 0, None
        self._parts.clear()

    def _take(self, body: bytes) -> None:
        try:
            answer = self._desk.take(body)
        except AngariumError as error:
            self._refuse(error)
            return
        self._answers[answer] = len(body)
        self._bytes += len(body)
        answer.add_done_callback(self._taken)
        desk = self._desk
        if len(self._answers) >= desk.connection_messages_max or (
            self._bytes >= desk.connection_bytes_max
        ):
            self._pause("too much without an answer")
        if desk.flow.full:
            self._pause("relay is full")
            desk.flow.pause(self)

    def _taken(self, future: asyncio.Future[DirectResponse | None]) -> None:
        self._bytes -= self._answers.pop(future)
        if self._pauses and (
            len(self._answers) <= self._desk.connection_messages_max // 2
            and self._bytes <= self._desk.connection_bytes_max // 2
        ):
            self._read_on("too much without an answer")
        error = None if future.cancelled() else future.exception()
        if isinstance(error, AngariumError):
            self._refuse(error)
        elif error is not None or future.cancelled():
            self._end(WSCloseCode.INTERNAL_ERROR, "something went wrong; the log says what")
        elif (answer := future.result()) is not None and self._transport is not None:
            text = answer.content_type.startswith("application/json")
            self._transport.send(WSMsgType.TEXT if text else WSMsgType.BINARY, answer.body)

    def _pause(self, why: str) -> None:
        """What picows has read already still comes, up to a socket buffer."""
        if not self._pauses and (transport := self._open_transport) is not None:
            transport.pause_reading()
        self._pauses.add(why)

    def _read_on(self, why: str) -> None:
        was_paused = bool(self._pauses)
        self._pauses.discard(why)
        if was_paused and not self._pauses and (transport := self._open_transport) is not None:
            transport.resume_reading()

    @property
    def _open_transport(self) -> asyncio.Transport | None:
        if self._transport is None or self._transport.underlying_transport.is_closing():
            return None
        return self._transport.underlying_transport

    def _refuse(self, error: AngariumError) -> None:
        if isinstance(error, LimitExceeded):
            code = WSCloseCode.MESSAGE_TOO_BIG
        elif isinstance(error, InputInvalid):
            code = WSCloseCode.INVALID_TEXT
        else:
            code = WSCloseCode.TRY_AGAIN_LATER
        self._end(code, f"{error.code}: {error}")

    def _end(self, code: WSCloseCode, reason: str) -> None:
        if self._transport is not None and self._ended_s is None:
            self._ended_s = self._loop.time()
            self._forget_parts()
            short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
            self._transport.send_close(code, short)
            self._transport.disconnect(graceful=True)


def listener_of(desk: Desk) -> Callable[[WSUpgradeRequest], WsConnection]:
    return lambda _: WsConnection(desk)
