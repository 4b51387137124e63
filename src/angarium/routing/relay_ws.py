"""One WebSocket connection of the relay: queues each message, text or binary.

A message that asks for a response gets it on the same connection. A message that is no envelope
closes the connection with code 1007 and the reason; one that can't be queued now, with 1013.
Messages of one connection for one key are queued in their order. The relay stops reading from a
connection with too many unfinished messages, from a peer that does not read its responses, and from
any connection that brings more while the relay is full. A peer that begins a message and does not
end it, or does not read its responses, is disconnected. A connection without a first message, or
without messages for long, is closed with code 1008.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest

from angarium.routing.flow_control import FlowControl
from angarium.routing.items import DirectResponse
from angarium.runtime.errors import AngariumError, InputInvalid, LimitExceeded, Overloaded

# The close frame holds 125 bytes, two of them the code.
REASON_BYTES_MAX = 123
# For the end of a fragmented message, for reading responses, and for the answer to a close frame.
PEER_S_MAX = 30.0
MESSAGE = (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION)


class WsIntake(Protocol):
    """Accepts the messages of connections."""

    body_bytes_max: int
    connection_messages_max: int
    connection_bytes_max: int
    idle_s_max: float
    flow: FlowControl

    def add(self, connection: WsConnection) -> bool:
        """False when there are too many connections."""

    def remove(self, connection: WsConnection) -> None: ...

    def accept(self, body: bytes) -> asyncio.Future[DirectResponse | None]:
        """Done when the message is queued and, if its sender waits, has its response."""


class WsConnection(WSListener):
    def __init__(self, intake: WsIntake) -> None:
        super().__init__()
        self._intake = intake
        self._transport: WSTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._fragments = bytearray()
        self._partial_bytes = 0
        self._began_s: float | None = None  # when a message began that has not ended
        self._unread_s: float | None = None  # when the peer stopped reading responses
        self._ended_s: float | None = None
        # Unfinished messages with their sizes.
        self._unfinished: dict[asyncio.Future[DirectResponse | None], int] = {}
        self._unfinished_bytes = 0
        self._pauses: set[str] = set()  # the reasons why the relay does not read
        self._last_s = self._loop.time()  # when the last message arrived, or the connection
        self._idle_s_max = min(PEER_S_MAX, intake.idle_s_max)  # longer after the first message

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if not self._intake.add(self):
            self._end(WSCloseCode.TRY_AGAIN_LATER, "too many connections")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._intake.remove(self)
        self._intake.flow.remove(self)
        self._drop_fragments()
        for answer in list(self._unfinished):
            answer.cancel()  # the message is queued; nobody reads its response

    def pause_writing(self) -> None:
        # Responses to pings count too: a peer that only pings could fill the memory.
        self._unread_s = self._loop.time()
        self._pause("responses are not read")

    def resume_writing(self) -> None:
        self._unread_s = None
        self._unpause("responses are not read")

    def resume(self) -> None:
        self._unpause("relay is full")

    @property
    def overdue(self) -> bool:
        since = (self._began_s, self._unread_s, self._ended_s)
        oldest_s = min((at_s for at_s in since if at_s is not None), default=None)
        if oldest_s is None:
            return self._is_idle
        return self._loop.time() - oldest_s > PEER_S_MAX

    @property
    def _is_idle(self) -> bool:
        return not self._unfinished and self._loop.time() - self._last_s > self._idle_s_max

    def give_up(self) -> None:
        if self._is_idle and self._ended_s is None and self._began_s is None:
            self._end(WSCloseCode.POLICY_VIOLATION, "no message arrived in time")
        elif self._transport is not None:
            self._transport.disconnect(graceful=False)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._end(WSCloseCode.PROTOCOL_ERROR, "a reserved bit is set")
        elif kind == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code() or WSCloseCode.OK)
            transport.disconnect()
        elif kind in MESSAGE and self._ended_s is None:
            self._add_fragment(frame)

    def quiet(self) -> None:
        self._end(WSCloseCode.GOING_AWAY, "the relay is shutting down")

    def _add_fragment(self, frame: WSFrame) -> None:
        self._fragments += frame.get_payload_as_memoryview()
        if len(self._fragments) > self._intake.body_bytes_max:
            self._end(WSCloseCode.MESSAGE_TOO_BIG, "the message is too long")
        elif frame.fin:
            body = bytes(self._fragments)
            self._drop_fragments()
            self._accept(body)
        else:
            self._count_partial()

    def _count_partial(self) -> None:
        """Count the time and the bytes of a message that has begun."""
        if self._began_s is None:
            self._began_s = self._loop.time()
        grown, self._partial_bytes = (
            len(self._fragments) - self._partial_bytes,
            len(self._fragments),
        )
        try:
            self._intake.flow.partial_grew(grown)
        except Overloaded as error:
            self._refuse(error)

    def _drop_fragments(self) -> None:
        self._intake.flow.partial_grew(-self._partial_bytes)
        self._partial_bytes, self._began_s = 0, None
        self._fragments.clear()

    def _accept(self, body: bytes) -> None:
        try:
            answer = self._intake.accept(body)
        except AngariumError as error:
            self._refuse(error)
            return
        self._last_s, self._idle_s_max = self._loop.time(), self._intake.idle_s_max
        self._unfinished[answer] = len(body)
        self._unfinished_bytes += len(body)
        answer.add_done_callback(self._finished)
        intake = self._intake
        if len(self._unfinished) >= intake.connection_messages_max or (
            self._unfinished_bytes >= intake.connection_bytes_max
        ):
            self._pause("too many unfinished messages")
        if intake.flow.full:
            self._pause("relay is full")
            intake.flow.pause(self)

    def _finished(self, future: asyncio.Future[DirectResponse | None]) -> None:
        self._unfinished_bytes -= self._unfinished.pop(future)
        if self._pauses and (
            len(self._unfinished) <= self._intake.connection_messages_max // 2
            and self._unfinished_bytes <= self._intake.connection_bytes_max // 2
        ):
            self._unpause("too many unfinished messages")
        error = None if future.cancelled() else future.exception()
        if isinstance(error, AngariumError):
            self._refuse(error)
        elif error is not None or future.cancelled():
            self._end(WSCloseCode.INTERNAL_ERROR, "something went wrong; the log says what")
        elif (answer := future.result()) is not None and self._transport is not None:
            text = answer.content_type.startswith("application/json")
            self._transport.send(WSMsgType.TEXT if text else WSMsgType.BINARY, answer.body)

    def _pause(self, why: str) -> None:
        """Bytes that picows has read already still arrive, up to a socket buffer."""
        if not self._pauses and (transport := self._open_transport) is not None:
            transport.pause_reading()
        self._pauses.add(why)

    def _unpause(self, why: str) -> None:
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
            self._drop_fragments()
            short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
            self._transport.send_close(code, short)
            self._transport.disconnect(graceful=True)


def listener_of(intake: WsIntake) -> Callable[[WSUpgradeRequest], WsConnection]:
    return lambda _: WsConnection(intake)
