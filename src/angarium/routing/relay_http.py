"""One HTTP connection of the relay: reads requests, hands messages to the intake, writes responses.

A connection's requests are answered one after the other, in their order. A message needs no task:
it joins the next batch, and the end of the batch writes the response. A peer that sends too slowly,
too much or on too many connections gets an error response, and the connection is closed. A peer
that does not read its responses is disconnected. While the relay is full, it stops reading requests
that have begun; their bytes are bounded over all connections.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Protocol, cast

import msgspec

from angarium.routing import http1
from angarium.routing.flow_control import FlowControl
from angarium.routing.items import DirectResponse
from angarium.runtime.errors import AngariumError, Overloaded

PROBLEM = "application/problem+json"
# The largest body takes this long on a slow mobile line.
REQUEST_S_MAX = 30.0
# Between two requests: as long as common proxies keep their connections.
IDLE_S_MAX = 75.0
# Unsent response bytes of one connection.
UNREAD_BYTES_MAX = 256 * 1024
# How long a refused peer may go on sending. Closing at once would reset the connection, and the
# peer would lose the response that gives the reason. Also how long a peer that has closed its side
# may wait for a response.
LINGER_S_MAX = 5.0


class HttpIntake(Protocol):
    """Accepts the requests of connections."""

    body_bytes_max: int
    flow: FlowControl

    def add(self, connection: HttpConnection) -> bool:
        """False when there are too many connections."""

    def remove(self, connection: HttpConnection) -> None: ...

    def accept(self, body: bytes) -> asyncio.Future[DirectResponse | None]:
        """Done when the message is queued and, if its sender waits, has its response."""

    def status(self, path: str, headers: dict[bytes, bytes]) -> bytes | None:
        """The HTTP response of a status endpoint; None for any other path."""


class HttpConnection(asyncio.Protocol):
    __slots__ = (
        "_closing",
        "_ended_by_peer",
        "_intake",
        "_lingering",
        "_loop",
        "_partial_bytes",
        "_reader",
        "_transport",
        "_unread",
        "_waiting",
        "since",
    )

    def __init__(self, intake: HttpIntake) -> None:
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._reader = http1.HttpRequestReader(intake.body_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[DirectResponse | None] | None = None
        self._partial_bytes = 0
        self._closing = False
        self._ended_by_peer = False
        self._lingering = False
        self._unread = False
        self.since = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        if not self._intake.add(self):
            self._write_refusal(503, "too many connections; try again later")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._intake.remove(self)
        self._intake.flow.remove(self)
        self._intake.flow.partial_grew(-self._partial_bytes)
        self._partial_bytes = 0
        if self._waiting is not None:
            self._waiting.cancel()  # the message is queued; nobody reads its response

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        was_idle = not self._reader.in_progress
        self._reader.feed(data)
        if self._waiting is None and not self._unread:
            self._handle_requests()
        else:
            # Requests after the current one wait in the kernel, not here.
            self._stop_reading()
        if was_idle and self._reader.in_progress:
            self.since = self._loop.time()
        self._check_limits()

    def _check_limits(self) -> None:
        """Count the bytes of a request that has begun; stop reading when the relay is full."""
        held, flow = self._reader.buffered_bytes, self._intake.flow
        grown, self._partial_bytes = held - self._partial_bytes, held
        try:
            flow.partial_grew(grown)
        except Overloaded as error:
            # During a request at most one more read arrives, and the response goes first.
            if self._waiting is None and not self._closing:
                self._refuse(error.http_status, str(error))
                self._reader = http1.HttpRequestReader(self._intake.body_bytes_max)
                flow.partial_grew(-held)
                self._partial_bytes = 0
        if flow.full and self._reader.in_progress and self._waiting is None and not self._closing:
            self._stop_reading()
            flow.pause(self)

    def _stop_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """The relay has space again."""
        self.since = self._loop.time()
        if self._waiting is None and not self._unread and self._transport is not None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        # A peer that only stopped writing still gets its responses. Most such peers have gone
        # altogether, so the time limit is shorter from now on.
        self._ended_by_peer = True
        self.since = self._loop.time()
        return self._waiting is not None and not self._tls

    def pause_writing(self) -> None:
        self._unread = True
        self.since = self._loop.time()

    def resume_writing(self) -> None:
        self._unread = False
        self.since = self._loop.time()
        if not self._closing and self._waiting is None:
            self._resume()

    @property
    def overdue(self) -> bool:
        """The peer took too long to send, to read or to close, or was idle for too long."""
        if self._waiting is not None and not self._unread and not self._ended_by_peer:
            return False
        if self._intake.flow.is_paused(self) and not self._closing:
            return False  # the relay stopped reading, not the peer sending
        if self._lingering or self._ended_by_peer:
            limit_s = LINGER_S_MAX
        elif self._closing:
            limit_s = REQUEST_S_MAX
        else:
            limit_s = REQUEST_S_MAX if self._reader.in_progress or self._unread else IDLE_S_MAX
        return self._loop.time() - self.since > limit_s

    def give_up(self) -> None:
        if self._closing or self._unread or self._ended_by_peer:
            # `close` would wait until the peer has read everything.
            self._closing = True
            if self._transport is not None:
                self._transport.abort()
        elif self._reader.in_progress:
            self._refuse(408, "the request took too long")
        else:
            self.close()

    def quiet(self) -> None:
        """Accept no further request; close now, or after the current response."""
        if self._waiting is None:
            self.close()
        self._closing = True

    @property
    def _tls(self) -> bool:
        """TLS can't close one direction of a connection."""
        return self._transport is not None and not self._transport.can_write_eof()

    def close(self) -> None:
        if not self._closing:
            self.since = self._loop.time()
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def _handle_requests(self) -> None:
        try:
            while self._waiting is None and not self._closing and not self._unread:
                request = self._reader.next_request()
                if request is None:
                    if self._reader.expects_continue:
                        self._write(http1.CONTINUE)
                    return
                self._answer(request)
        except http1.HttpRequestRefused as refusal:
            self._refuse(refusal.status, str(refusal))

    def _answer(self, request: http1.HttpRequest) -> None:
        if request.method == "POST":
            try:
                future = self._intake.accept(request.body)
            except AngariumError as error:
                self._write(_problem(error, keep_alive=request.keep_alive))
                self._ended(request.keep_alive)
                return
            self._waiting = future
            future.add_done_callback(self._answered if request.keep_alive else self._answered_last)
            return
        if request.method in ("GET", "HEAD"):
            answer = self._intake.status(request.target.partition("?")[0], request.headers)
            if answer is None:
                answer = _greeting(request.target)
            head, end, _ = answer.partition(b"\r\n\r\n")
            self._write(answer if request.method == "GET" else head + end)
        else:
            self._write(http1.response(405, b"", keep_alive=request.keep_alive))
        self._ended(request.keep_alive)

    def _answered(self, future: asyncio.Future[DirectResponse | None]) -> None:
        self._waiting = None
        self._write(_answer_of(future))
        self._ended(not self._closing)
        if not self._closing and not self._unread:
            self._resume()

    def _answered_last(self, future: asyncio.Future[DirectResponse | None]) -> None:
        self._waiting = None
        self._write(_answer_of(future))
        self.close()

    def _resume(self) -> None:
        """Read again, beginning with the bytes that arrived during the last request."""
        if self._transport is None:
            return
        if not self._intake.flow.is_paused(self):
            self._transport.resume_reading()
        if self._reader.in_progress:
            self._handle_requests()
            self._check_limits()
        if self._ended_by_peer and self._waiting is None:
            self.close()

    def _ended(self, keep_alive: bool) -> None:
        self.since = self._loop.time()
        if not keep_alive:
            self.close()

    def _refuse(self, status: int, problem: str) -> None:
        """Send the reason, and give the peer time to read it: it may still be sending."""
        self._write_refusal(status, problem)
        self._closing = self._lingering = True
        self.since = self._loop.time()
        if self._ended_by_peer:
            self.close()
        elif self._transport is not None and not self._tls:
            self._transport.write_eof()

    def _write_refusal(self, status: int, problem: str) -> None:
        detail = {"title": problem, "status": status, "code": "http_refused"}
        self._write(http1.response(status, msgspec.json.encode(detail), PROBLEM, keep_alive=False))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _answer_of(future: asyncio.Future[DirectResponse | None]) -> bytes:
    if future.cancelled():
        return _problem(Overloaded("this relay, which is shutting down,"))
    error = future.exception()
    if error is None:
        answer = future.result()
        return http1.OK if answer is None else http1.response(200, answer.body, answer.content_type)
    if isinstance(error, AngariumError):
        return _problem(error)
    return _problem(AngariumError("something went wrong; the log says what"))


def _problem(error: AngariumError, *, keep_alive: bool = True) -> bytes:
    status = error.http_status
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": str(error),
        "code": error.code,
    }
    return http1.response(status, msgspec.json.encode(body), PROBLEM, keep_alive=keep_alive)


def _greeting(target: str) -> bytes:
    """A person who opens an invitation's URL in a browser learns what it is."""
    if "c_i=" in target or "oob=" in target:
        text = b"This is an invitation to connect. Open it with your agent or wallet.\n"
        return http1.response(200, text, "text/plain; charset=utf-8")
    return http1.OK
