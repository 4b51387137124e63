"""One client's socket: whole messages in, frames out in one write for each turn of the loop.

It keeps the client's limits: calls in a second, bytes not read, silence. A client that does not
read is no longer read from, gets no live deliveries, and is cut off when its buffer is full or
when it has not read for long; nobody else waits for it. It knows nothing of JSON or Redis.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

if TYPE_CHECKING:
    from angarium.pickup.sessions import LiveSession

# Beyond this much unread the client gets no more deliveries, and is not read from.
UNREAD_HIGH_BYTES = 1024 * 1024
# A client that read nothing for this long, though there was something, is gone.
UNREAD_S_MAX = 30.0
# So long a client has to read the goodbye.
GOODBYE_S_MAX = 10.0
TEXT = (WSMsgType.TEXT, WSMsgType.BINARY)


class Desk(Protocol):
    """Who takes what clients say."""

    frame_bytes_max: int
    buffer_bytes_max: int

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
        self.paused = False
        self.second = 0
        self.calls = 0
        self._desk = desk
        self._transport: WSTransport
        self._write: Any = None
        self._loop = asyncio.get_running_loop()
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._pieces = bytearray()
        self._in_pieces = False
        self._cut: asyncio.TimerHandle | None = None

    # What the socket tells

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        under = transport.underlying_transport
        under.set_write_buffer_limits(high=UNREAD_HIGH_BYTES)
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
            self.flush()
            transport.send_close(frame.get_close_code())
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._cut is not None:
            self._cut.cancel()
        self.open = False
        self._outbox.clear()
        self._desk.client_gone(self)

    def pause_writing(self) -> None:
        self.paused = True
        self._transport.underlying_transport.pause_reading()
        self._cut = self._loop.call_later(UNREAD_S_MAX, self.cut_off)

    def resume_writing(self) -> None:
        self.paused = False
        if self._cut is not None:
            self._cut.cancel()
        self._transport.underlying_transport.resume_reading()
        self._desk.client_writable(self)

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

    def send(self, message: bytes) -> None:
        """One text message, with all others of this turn of the loop."""
        if not self.open:
            return
        size = len(message)
        if size < 126:
            head = bytes((0x81, size))
        elif size < 65_536:
            head = b"\x81\x7e" + size.to_bytes(2, "big")
        else:
            head = b"\x81\x7f" + size.to_bytes(8, "big")
        if not self._outbox:
            self._loop.call_soon(self.flush)
        self._outbox += (head, message)
        self._outbox_bytes += size

    def flush(self) -> None:
        if not self._outbox or not self.open:
            return
        unread = self._transport.underlying_transport.get_write_buffer_size()
        if unread + self._outbox_bytes > self._desk.buffer_bytes_max:
            self.cut_off()
            return
        data = b"".join(self._outbox)
        self._outbox.clear()
        self._outbox_bytes = 0
        self._write(data)

    def close(self, code: WSCloseCode = WSCloseCode.OK) -> None:
        """Say goodbye, and go."""
        if self.open:
            self.flush()
            if self.open:
                self._transport.send_close(code)
                self._transport.disconnect()
                if self._cut is None:
                    # Whoever does not read the goodbye either is gone without it.
                    self._cut = self._loop.call_later(GOODBYE_S_MAX, self.cut_off)

    def cut_off(self) -> None:
        """Go without a word: nobody reads it."""
        self.open = False
        self._outbox.clear()
        self._transport.underlying_transport.abort()
