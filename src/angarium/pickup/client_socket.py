"""One client's socket: whole messages in, frames out in one write for each turn of the loop.

It keeps the client's limits: calls in a second, calls not answered, bytes not read, silence. A
client that does not read is no longer read from, gets no live deliveries, and is cut off when its
buffer is full or when it has not read for long; nobody else waits for it. What it has not read is
kept here, not in the transport, and counts in its budget. It knows nothing of JSON or Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from angarium.pickup.budget import UNREAD, Budget

if TYPE_CHECKING:
    from angarium.pickup.sessions import LiveSession

# Beyond this much unread the client gets no more deliveries, and is not read from.
UNREAD_HIGH_BYTES = 1024 * 1024
UNREAD_LOW_BYTES = UNREAD_HIGH_BYTES // 4
# A client that read nothing for this long, though there was something, is gone.
UNREAD_S_MAX = 30.0
# So long a client has to read the goodbye.
GOODBYE_S_MAX = 10.0
# Small frames are joined up to about this size; a larger frame is written alone.
WRITE_BYTES = 64 * 1024
# Calls of one client that take several steps and run at the same time.
STEPS_AT_ONCE = 32
TEXT = (WSMsgType.TEXT, WSMsgType.BINARY)

Written = Callable[[bool], None]
"""Called once with True when the operating system has a whole message, False if it never will."""


class Desk(Protocol):
    """Who takes what clients say."""

    frame_bytes_max: int
    buffer_bytes_max: int
    answer_bytes_max: int
    answers: Budget

    def client_connected(self, client: ClientSocket) -> bool: ...
    def client_said(self, client: ClientSocket, data: bytes) -> None: ...
    def client_writable(self, client: ClientSocket) -> None: ...
    def client_gone(self, client: ClientSocket) -> None: ...


class ClientSocket(WSListener):
    def __init__(self, desk: Desk, socket_id: str, tenant: str | None) -> None:
        super().__init__()
        self.id = socket_id
        self.tenant = tenant or ""
        self.sessions: dict[str, LiveSession] = {}
        self.opening = 0
        self.events: set[str] = set()
        self.open = False
        self.paused = False  # it has much to read
        self.second = 0
        self.calls = 0
        self.asked = 0  # bytes of calls without an answer
        self.steps = asyncio.Semaphore(STEPS_AT_ONCE)
        self.batches = asyncio.Lock()
        self._desk = desk
        self._transport: WSTransport
        self._write: Any = None
        self._loop = asyncio.get_running_loop()
        self.budget = Budget(desk.answer_bytes_max, self._loop.call_soon, desk.answers)
        self._outbox: list[bytes] = []  # head and message of each frame
        self._unread = 0  # bytes in the outbox, and those that the transport still has
        self._passing = 0  # bytes that the transport got and may still have
        self._queued = 0  # bytes that were ever sent
        self._passed = 0  # those of them that the operating system has
        self._marks: list[tuple[int, Written]] = []
        self._blocked = False
        self._flushing = False
        self._holds = 0
        self._pieces = bytearray()
        self._in_pieces = False
        self._stuck: asyncio.TimerHandle | None = None
        self._goodbye: asyncio.TimerHandle | None = None

    # What the socket tells

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        under = transport.underlying_transport
        # The transport keeps one write at the most, and says when it is gone. Over TLS a limit of 0
        # would never be left.
        under.set_write_buffer_limits(high=1 if transport.is_secure else 0, low=0)
        self._write = under.write
        self.open = True
        if not self._desk.client_connected(self):
            self.close(WSCloseCode.POLICY_VIOLATION)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind in TEXT and frame.fin and not self._in_pieces:
            self._desk.client_said(self, frame.get_payload_as_bytes())
        elif kind in TEXT or kind == WSMsgType.CONTINUATION:
            self._collect(frame, first=kind in TEXT)
        elif kind == WSMsgType.CLOSE:
            self.flush(everything=True)
            transport.send_close(frame.get_close_code())
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        for timer in (self._stuck, self._goodbye):
            if timer is not None:
                timer.cancel()
        self._forget()
        self._desk.client_gone(self)

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._count_passed()
        self.flush()

    # What it may do

    def hold(self, reason: int) -> None:
        """Do not read from it, until every reason is gone."""
        if not self._holds and self.open:
            self._transport.underlying_transport.pause_reading()
        self._holds |= reason

    def let_go(self, reason: int) -> None:
        if self._holds & reason:
            self._holds &= ~reason
            if not self._holds and self.open:
                self._transport.underlying_transport.resume_reading()

    def _collect(self, frame: WSFrame, *, first: bool) -> None:
        """A message in several frames; all of it counts against the limit of one."""
        if first == self._in_pieces:
            # A beginning in the middle of another message, or a middle without a beginning.
            self.close(WSCloseCode.PROTOCOL_ERROR)
            return
        self._in_pieces = not frame.fin
        self._pieces += frame.get_payload_as_bytes()
        if len(self._pieces) > self._desk.frame_bytes_max:
            self._pieces.clear()
            self.close(WSCloseCode.MESSAGE_TOO_BIG)
        elif frame.fin:
            whole = bytes(self._pieces)
            self._pieces.clear()
            self._desk.client_said(self, whole)

    # What we tell it

    @property
    def peer_certificate(self) -> Any:
        return self._transport.underlying_transport.get_extra_info("peercert")

    def send(self, message: bytes, written: Written | None = None) -> None:
        """One text message, with all others of this turn of the loop."""
        if not self.open:
            if written is not None:
                written(False)
            return
        size = len(message)
        if size < 126:
            head = bytes((0x81, size))
        elif size < 65_536:
            head = b"\x81\x7e" + size.to_bytes(2, "big")
        else:
            head = b"\x81\x7f" + size.to_bytes(8, "big")
        self._outbox += (head, message)
        size += len(head)
        self._unread += size
        self._queued += size
        self.budget.charge(size)
        if written is not None:
            self._marks.append((self._queued, written))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self, *, everything: bool = False) -> None:
        """Whole frames, for the socket's own pings may come between any two writes."""
        self._flushing = False
        if not self.open:
            return
        if self._unread > self._desk.buffer_bytes_max:
            self.cut_off()
            return
        while self._outbox and (everything or not self._blocked):
            chunk = self._next_chunk()
            self._passing += len(chunk)
            self._write(chunk)
            if not self._blocked:
                self._count_passed()
        self._look_at_unread()

    def _next_chunk(self) -> bytes:
        size = end = 0
        while end < len(self._outbox) and size < WRITE_BYTES:
            size += len(self._outbox[end]) + len(self._outbox[end + 1])
            end += 2
        chunk = b"".join(self._outbox[:end])
        del self._outbox[:end]
        return chunk

    def _count_passed(self) -> None:
        size, self._passing = self._passing, 0
        self._passed += size
        self._unread -= size
        self.budget.release(size)
        while self._marks and self._marks[0][0] <= self._passed:
            self._marks.pop(0)[1](True)

    def _look_at_unread(self) -> None:
        if not self.paused and self._unread > UNREAD_HIGH_BYTES:
            self.paused = True
            self.hold(UNREAD)
            self._watch()
        elif self.paused and self._unread <= UNREAD_LOW_BYTES:
            self.paused = False
            if self._stuck is not None:
                self._stuck.cancel()
            self.let_go(UNREAD)
            self._desk.client_writable(self)

    def _watch(self) -> None:
        place = self._passed, self._transport.underlying_transport.get_write_buffer_size()
        self._stuck = self._loop.call_later(UNREAD_S_MAX, self._end_if_stuck, place)

    def _end_if_stuck(self, before: tuple[int, int]) -> None:
        """Slow is not gone: only a client that read nothing at all meanwhile is cut off."""
        now = self._passed, self._transport.underlying_transport.get_write_buffer_size()
        if now == before:
            self.cut_off()
        elif self.open and self.paused:
            self._watch()

    def close(self, code: WSCloseCode = WSCloseCode.OK) -> None:
        """Say goodbye, and go."""
        if self.open:
            self.flush(everything=True)
            if self.open:
                self._transport.send_close(code)
                self._transport.disconnect()
                if self._goodbye is None:
                    # Whoever does not read the goodbye either is gone without it.
                    self._goodbye = self._loop.call_later(GOODBYE_S_MAX, self.cut_off)

    def cut_off(self) -> None:
        """Close without a reply: the peer has stopped reading."""
        self._forget()
        self._transport.underlying_transport.abort()

    def _forget(self) -> None:
        self.open = False
        self._outbox.clear()
        size, self._unread, self._passing = self._unread, 0, 0
        self.budget.release(size)
        marks, self._marks = self._marks, []
        for _, written in marks:
            written(False)
