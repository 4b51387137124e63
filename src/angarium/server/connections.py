"""Limits on the API's connections: number, request time, header size, unread responses.

uvicorn alone waits without limit for the rest of a request and for a peer to read its response, so
a few thousand idle connections could block the API. A connection over the limit gets a 503 and is
closed. The parser is always httptools: a long poll costs half as much as with h11 (decision 0019).
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from angarium.runtime.http_api import PROBLEM, Problem

# From the connection or the first byte to the end of the body. Enough for the largest body at
# 140 KB per second.
REQUEST_S_MAX = 60.0
# The connection is closed if the peer has not read its response for this long.
UNREAD_S_MAX = 30.0
HEAD_BYTES_MAX = 64 * 1024
# A peer may send requests before it has the answers to earlier ones. So many bytes of them are
# parsed at a time: a chunk from the socket may hold thousands of requests, each of them an object
# in memory, and the requests of other connections would wait until all are parsed.
HEADS_PART_BYTES = 2 * 1024
BODY_PART_BYTES = 64 * 1024


class ApiConnection(HttpToolsProtocol):
    """`limited` makes a subclass with the limits of one API."""

    connections_max = 0
    request_s_max = REQUEST_S_MAX
    unread_s_max = UNREAD_S_MAX

    _request_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0
    _unparsed = b""  # behind requests that wait for the answers to earlier ones

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.write(_problem(503, "too many connections; try again", "overloaded"))
            transport.close()
            return
        self._update_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_request_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # the connection was refused; ignore the rest of its data
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        """Parse until a request must wait for an earlier one. The rest is parsed after its answer,
        and nothing more is read until then."""
        while self._unparsed and not self.pipeline and not self.transport.is_closing():
            size = HEADS_PART_BYTES if self._in_head else BODY_PART_BYTES
            part, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._parse_part(part)
        if self._unparsed:
            self.flow.pause_reading()

    def _parse_part(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self.send_400_response(f"the head of a request has at most {HEAD_BYTES_MAX} bytes")
            return
        self._update_request_timer()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self._unread_timer or self.loop.call_later(
            self.unread_s_max, self._abort
        )

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()
        elif self._unparsed:
            self._parse()
        # Between requests uvicorn's keep-alive timer is shorter. This timer ends a body that no
        # handler reads and that does not end.
        self._update_request_timer()

    def send_400_response(self, msg: str) -> None:
        self.transport.write(_problem(400, msg, "bad_request"))
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """No warning: a request for another protocol is answered over HTTP."""

    def _update_request_timer(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._stop_request_timer()
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self.request_s_max, self._abort)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _abort(self) -> None:
        self.transport.abort()


def limited(
    connections_max: int,
    request_s_max: float = REQUEST_S_MAX,
    unread_s_max: float = UNREAD_S_MAX,
) -> type[ApiConnection]:
    limits = {
        "connections_max": connections_max,
        "request_s_max": request_s_max,
        "unread_s_max": unread_s_max,
    }
    return type("LimitedConnection", (ApiConnection,), limits)


def _problem(status: int, detail: str, code: str) -> bytes:
    phrase = HTTPStatus(status).phrase
    body = msgspec.json.encode(Problem(phrase, status, detail, code))
    head = (
        f"HTTP/1.1 {status} {phrase}\r\n"
        f"content-type: {PROBLEM}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
