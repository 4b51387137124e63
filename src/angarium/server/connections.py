"""Connections of the API, and how long one may hold its place without being of use.

uvicorn alone waits for ever for the rest of a request, and for a peer to read its answer: a few
thousand silent connections would take the API from everybody else. Here a request has to be there
in time, its head has a size, an answer has to be read, and connections over the limit are told so
and closed. httptools is named, not chosen by what is installed: with it a long poll costs the API
half of what it costs with h11 (decision 0019).
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from angarium.runtime.http_api import PROBLEM, Problem

# From its first byte, or from the connection, to the end of its body: the largest body comes
# within it at 140 KB in a second.
REQUEST_S_MAX = 60.0
# A peer that has not read for this long, though there is something, is gone.
UNREAD_S_MAX = 30.0
HEAD_BYTES_MAX = 64 * 1024


class Connection(HttpToolsProtocol):
    """One connection; a class for each API is made by `limited`, with limits of its own."""

    connections_max = 0
    request_s_max = REQUEST_S_MAX
    unread_s_max = UNREAD_S_MAX

    _request: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.write(_problem(503, "too many connections; try again", "overloaded"))
            transport.close()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_is_here()
        self._answer_is_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was told so; the rest of what it says is nobody's
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self.send_400_response(f"the head of a request has at most {HEAD_BYTES_MAX} bytes")
            return
        self._watch()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.unread_s_max, self._give_up)

    def resume_writing(self) -> None:
        self._answer_is_read()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Between requests uvicorn's own timer runs, and it is the shorter one; ours is for a body
        # that nobody wanted and that does not end.
        self._watch()

    def send_400_response(self, msg: str) -> None:
        self.transport.write(_problem(400, msg, "bad_request"))
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: who asks for another protocol gets this one, as HTTP has it."""

    def _watch(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._request_is_here()
        elif self._request is None:
            self._request = self.loop.call_later(self.request_s_max, self._give_up)

    def _request_is_here(self) -> None:
        if self._request is not None:
            self._request.cancel()
            self._request = None

    def _answer_is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        self.transport.abort()


def limited(
    connections_max: int,
    request_s_max: float = REQUEST_S_MAX,
    unread_s_max: float = UNREAD_S_MAX,
) -> type[Connection]:
    limits = {
        "connections_max": connections_max,
        "request_s_max": request_s_max,
        "unread_s_max": unread_s_max,
    }
    return type("LimitedConnection", (Connection,), limits)


def _problem(status: int, detail: str, code: str) -> bytes:
    phrase = HTTPStatus(status).phrase
    body = msgspec.json.encode(Problem(phrase, status, detail, code))
    head = (
        f"HTTP/1.1 {status} {phrase}\r\n"
        f"content-type: {PROBLEM}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
