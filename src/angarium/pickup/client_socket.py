"""The socket of one client: receives whole messages, and writes frames once per loop iteration.

A client that does not read its messages is not read from and gets no live deliveries. The gateway
aborts its connection when its buffer is full or when it reads nothing for long; other clients do
not wait for it. Unread bytes stay here, not in the transport, and count in the client's budget.
This file knows nothing of JSON or Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from angarium.pickup.budget import UNREAD, ByteBudget

if TYPE_CHECKING:
    from angarium.pickup.live_session import LiveSession

# Beyond this many unread bytes the client gets no deliveries and is not read from.
UNREAD_HIGH_BYTES = 1024 * 1024
UNREAD_LOW_BYTES = UNREAD_HIGH_BYTES // 4
# The connection is aborted when a client with unread bytes reads nothing for this long.
UNREAD_S_MAX = 30.0
# The time that a client has to read the close frame.
CLOSE_S_MAX = 10.0
# Small frames are joined up to about this size; a larger frame is written alone.
WRITE_BYTES = 64 * 1024
# Concurrent calls of one client that need several steps.
CONCURRENT_CALLS_MAX = 32
TEXT = (WSMsgType.TEXT, WSMsgType.BINARY)

Written = Callable[[bool], None]
"""Called once: True if the operating system has the whole message, False if it never will."""


class SocketHandler(Protocol):
    frame_bytes_max: int
    buffer_bytes_max: int
    client_answer_bytes_max: int
    answer_budget: ByteBudget

    def client_connected(self, client: ClientSocket) -> bool: ...
    def message_received(self, client: ClientSocket, data: bytes) -> None: ...
    def client_writable(self, client: ClientSocket) -> None: ...
    def client_disconnected(self, client: ClientSocket) -> None: ...


class ClientSocket(WSListener):
    def __init__(self, handler: SocketHandler, socket_id: str, tenant: str | None) -> None:
        super().__init__()
        self.id = socket_id
        self.tenant = tenant or ""
        self.sessions: dict[str, LiveSession] = {}
        self.sessions_opening = 0
        self.events: set[str] = set()
        self.open = False
        self.slow = False  # it has more than UNREAD_HIGH_BYTES to read
        self.connected_s = asyncio.get_running_loop().time()
        self.second = 0  # of the last call
        self.calls = 0  # in that second
        self.turn = -1  # the pass of the event loop in which it last called
        self.turn_calls = 0  # in that pass
        self.unanswered_bytes = 0
        self.concurrent_calls = asyncio.Semaphore(CONCURRENT_CALLS_MAX)
        self.batch_lock = asyncio.Lock()
        self._handler = handler
        self._transport: WSTransport
        self._write: Any = None
        self._loop = asyncio.get_running_loop()
        self.budget = ByteBudget(
            handler.client_answer_bytes_max, self._loop.call_soon, handler.answer_budget
        )
        self._outbox: list[bytes] = []  # header and payload of each frame
        self._unread_bytes = 0  # in the outbox and in the transport
        self._transport_bytes = 0  # given to the transport, which may still have them
        self._sent_bytes = 0  # total of `send`
        self._written_bytes = 0  # those of them that the operating system has
        self._callbacks: list[tuple[int, Written]] = []  # by the value of `_sent_bytes`
        self._transport_full = False
        self._flush_scheduled = False
        self._pause_reasons = 0
        self._fragments = bytearray()
        self._in_fragments = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    # Callbacks of the transport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        under = transport.underlying_transport
        # The transport buffers one write at most, and reports when the operating system has it.
        # Over TLS it would never report with a limit of 0.
        under.set_write_buffer_limits(high=1 if transport.is_secure else 0, low=0)
        self._write = under.write
        self.open = True
        if not self._handler.client_connected(self):
            self.close(WSCloseCode.POLICY_VIOLATION)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self.close(WSCloseCode.PROTOCOL_ERROR)  # of an extension that was not agreed on
        elif kind in TEXT and frame.fin and not self._in_fragments:
            self._handler.message_received(self, frame.get_payload_as_bytes())
        elif kind in TEXT or kind == WSMsgType.CONTINUATION:
            self._collect(frame, first=kind in TEXT)
        elif kind == WSMsgType.CLOSE:
            self.flush(everything=True)
            transport.send_close(frame.get_close_code())
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        for timer in (self._stall_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self._discard_output()
        self._handler.client_disconnected(self)

    def pause_writing(self) -> None:
        self._transport_full = True

    def resume_writing(self) -> None:
        self._transport_full = False
        self._count_written()
        self.flush()

    # Reading

    def pause_reading(self, reason: int) -> None:
        """Reading resumes when every reason is gone."""
        if not self._pause_reasons and self.open:
            self._transport.underlying_transport.pause_reading()
        self._pause_reasons |= reason

    def resume_reading(self, reason: int) -> None:
        if self._pause_reasons & reason:
            self._pause_reasons &= ~reason
            if not self._pause_reasons and self.open:
                self._transport.underlying_transport.resume_reading()

    def _collect(self, frame: WSFrame, *, first: bool) -> None:
        """Join a message of several frames; the limit of a frame holds for all of them."""
        if first == self._in_fragments:
            # A message begins inside another one, or a continuation has no beginning.
            self.close(WSCloseCode.PROTOCOL_ERROR)
            return
        self._in_fragments = not frame.fin
        self._fragments += frame.get_payload_as_bytes()
        if len(self._fragments) > self._handler.frame_bytes_max:
            self._fragments.clear()
            self.close(WSCloseCode.MESSAGE_TOO_BIG)
        elif frame.fin:
            message = bytes(self._fragments)
            self._fragments.clear()
            self._handler.message_received(self, message)

    # Writing

    @property
    def peer_certificate(self) -> Any:
        return self._transport.underlying_transport.get_extra_info("peercert")

    def send(self, message: bytes, written: Written | None = None) -> None:
        """Write one text message, together with all others of this loop iteration."""
        if not self.open:
            if written is not None:
                written(False)
            return
        size = len(message)
        if size < 126:
            header = bytes((0x81, size))
        elif size < 65_536:
            header = b"\x81\x7e" + size.to_bytes(2, "big")
        else:
            header = b"\x81\x7f" + size.to_bytes(8, "big")
        self._outbox += (header, message)
        size += len(header)
        self._unread_bytes += size
        self._sent_bytes += size
        self.budget.charge(size)
        if written is not None:
            self._callbacks.append((self._sent_bytes, written))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self, *, everything: bool = False) -> None:
        """Write whole frames: the transport may write a ping between any two writes."""
        self._flush_scheduled = False
        if not self.open:
            return
        if self._unread_bytes > self._handler.buffer_bytes_max:
            self.abort()
            return
        while self._outbox and (everything or not self._transport_full):
            chunk = self._next_chunk()
            self._transport_bytes += len(chunk)
            self._write(chunk)
            if not self._transport_full:
                self._count_written()
        self._update_slow()

    def _next_chunk(self) -> bytes:
        size = end = 0
        while end < len(self._outbox) and size < WRITE_BYTES:
            size += len(self._outbox[end]) + len(self._outbox[end + 1])
            end += 2
        chunk = b"".join(self._outbox[:end])
        del self._outbox[:end]
        return chunk

    def _count_written(self) -> None:
        size, self._transport_bytes = self._transport_bytes, 0
        self._written_bytes += size
        self._unread_bytes -= size
        self.budget.release(size)
        while self._callbacks and self._callbacks[0][0] <= self._written_bytes:
            self._callbacks.pop(0)[1](True)

    def _update_slow(self) -> None:
        if not self.slow and self._unread_bytes > UNREAD_HIGH_BYTES:
            self.slow = True
            self.pause_reading(UNREAD)
            self._start_stall_timer()
        elif self.slow and self._unread_bytes <= UNREAD_LOW_BYTES:
            self.slow = False
            if self._stall_timer is not None:
                self._stall_timer.cancel()
            self.resume_reading(UNREAD)
            self._handler.client_writable(self)

    def _start_stall_timer(self) -> None:
        self._stall_timer = self._loop.call_later(
            UNREAD_S_MAX, self._abort_if_stalled, self._progress()
        )

    def _progress(self) -> tuple[int, int]:
        transport = self._transport.underlying_transport
        return self._written_bytes, transport.get_write_buffer_size()

    def _abort_if_stalled(self, before: tuple[int, int]) -> None:
        """A slow client stays connected; one that read nothing since `before` does not."""
        if self._progress() == before:
            self.abort()
        elif self.open and self.slow:
            self._start_stall_timer()

    def close(self, code: WSCloseCode = WSCloseCode.OK) -> None:
        """Write everything and a close frame, then disconnect."""
        if self.open:
            self.flush(everything=True)
            if self.open:
                self._transport.send_close(code)
                self._transport.disconnect()
                if self._close_timer is None:
                    # A client that does not read the close frame is aborted.
                    self._close_timer = self._loop.call_later(CLOSE_S_MAX, self.abort)

    def abort(self) -> None:
        """Close without a close frame: the peer has stopped reading."""
        self._discard_output()
        self._transport.underlying_transport.abort()

    def _discard_output(self) -> None:
        self.open = False
        self._outbox.clear()
        size, self._unread_bytes, self._transport_bytes = self._unread_bytes, 0, 0
        self.budget.release(size)
        callbacks, self._callbacks = self._callbacks, []
        for _, written in callbacks:
            written(False)
