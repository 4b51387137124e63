"""WebSocket at the relay: each message of a connection is queued, text or binary.

A message that asks for a response gets it on the same connection. What is no envelope ends the
connection with close code 1007 and the reason; what can't be queued now, with 1013. Messages of
one connection for one key are queued in the order they came. A peer that begins a message and
does not end it, or does not read its answers, is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest

from angarium.core.errors import AngariumError, InputInvalid, LimitExceeded
from angarium.routing.items import DirectResponse

# The close frame holds 125 bytes, two of them the code.
REASON_BYTES_MAX = 123
# For a message that comes in pieces, for answers to be read, and for a close frame to be answered.
PATIENCE_S = 30.0
MESSAGE = (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION)


class Desk(Protocol):
    """Who takes what a connection brings."""

    body_bytes_max: int

    def enter(self, connection: WsConnection) -> bool:
        """Whether there is room for one more."""

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
        self._began_s: float | None = None  # a message whose last piece has not come
        self._unread_s: float | None = None  # answers that the peer does not read
        self._ended_s: float | None = None
        self._answers: set[asyncio.Future[DirectResponse | None]] = set()

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if not self._desk.enter(self):
            self._end(WSCloseCode.TRY_AGAIN_LATER, "too many connections")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._desk.leave(self)
        for answer in list(self._answers):
            answer.cancel()  # nobody is left to hear it; the message is queued

    def pause_writing(self) -> None:
        self._unread_s = self._loop.time()

    def resume_writing(self) -> None:
        self._unread_s = None

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
            body, self._began_s = bytes(self._parts), None
            self._parts.clear()
            self._take(body)
        elif self._began_s is None:
            self._began_s = self._loop.time()

    def _take(self, body: bytes) -> None:
        try:
            answer = self._desk.take(body)
        except AngariumError as error:
            self._refuse(error)
            return
        self._answers.add(answer)
        answer.add_done_callback(self._taken)

    def _taken(self, future: asyncio.Future[DirectResponse | None]) -> None:
        self._answers.discard(future)
        error = None if future.cancelled() else future.exception()
        if isinstance(error, AngariumError):
            self._refuse(error)
        elif error is not None or future.cancelled():
            self._end(WSCloseCode.INTERNAL_ERROR, "something went wrong; the log says what")
        elif (answer := future.result()) is not None and self._transport is not None:
            text = answer.content_type.startswith("application/json")
            self._transport.send(WSMsgType.TEXT if text else WSMsgType.BINARY, answer.body)

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
            self._parts.clear()
            short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
            self._transport.send_close(code, short)
            self._transport.disconnect(graceful=True)


def listener_of(desk: Desk) -> Callable[[WSUpgradeRequest], WsConnection]:
    return lambda _: WsConnection(desk)
