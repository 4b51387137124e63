"""Connections of the API, and how long one may hold its place without being of use.

uvicorn alone waits for ever for the rest of a request, and for a peer to read its answer: a few
thousand silent connections would take the API from everybody else. Here a request has to be there
in time, an answer has to be read, and connections over the limit are told so and closed. h11 is
named, not chosen by what is installed: it bounds the head of a request, httptools does not.
"""

from __future__ import annotations

import asyncio

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from angarium.core.web import PROBLEM, Problem

# From its first byte, or from the connection, to the end of its body: the largest body comes
# within it at 140 KB in a second.
REQUEST_S_MAX = 60.0
# A peer that has not read for this long, though there is something, is gone.
UNREAD_S_MAX = 30.0
HEAD_BYTES_MAX = 64 * 1024
# What a peer says when it waits for more of a request.
INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


class Connection(H11Protocol):
    """One connection; a class for each API is made by `limited`, with limits of its own."""

    connections_max = 0
    request_s_max = REQUEST_S_MAX
    unread_s_max = UNREAD_S_MAX

    _request: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.write(OVERLOADED)
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
        super().data_received(data)
        self._watch()

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
        body = msgspec.json.encode(Problem("Bad Request", 400, msg, "bad_request"))
        headers = [
            (b"content-type", PROBLEM.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _watch(self) -> None:
        if self.conn.their_state not in INCOMPLETE:
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


def _overloaded() -> bytes:
    told = Problem("Service Unavailable", 503, "too many connections; try again", "overloaded")
    body = msgspec.json.encode(told)
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        f"content-type: {PROBLEM}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


OVERLOADED = _overloaded()
