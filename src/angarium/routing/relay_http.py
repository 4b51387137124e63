"""HTTP at the relay: one connection, from bytes to a queued message and an answer.

Requests of a connection are answered one after the other, in the order they came. No task is
made for a message: it joins the next batch, and the batch's end writes the answer. A peer that
sends slowly, says too much or connects too often is told so and let go; one that does not read
its answers gets no further ones, and is cut off. While the relay holds too much, a request that has
begun is not read further; what has begun is bounded over all connections.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Protocol, cast

import msgspec

from angarium.routing import http1
from angarium.routing.flow import Flow
from angarium.routing.items import DirectResponse
from angarium.runtime.errors import AngariumError, Overloaded

PROBLEM = "application/problem+json"
# A body of the largest size takes this long on a slow mobile line; a message takes a moment.
REQUEST_S_MAX = 30.0
# Between two requests: as common proxies hold their connections.
IDLE_S_MAX = 75.0
# Unsent bytes of answers; a peer that does not read them is not worth more memory.
UNREAD_BYTES_MAX = 256 * 1024
# How long a refused peer may go on sending: closing at once would reset the connection, and the
# peer would lose the answer that says why. And how long one that has ended its side is answered.
LINGER_S_MAX = 5.0


class Desk(Protocol):
    """Who takes what a connection brings."""

    body_bytes_max: int
    flow: Flow

    def enter(self, connection: HttpConnection) -> bool:
        """Whether there is space for one more."""

    def leave(self, connection: HttpConnection) -> None: ...

    def take(self, body: bytes) -> asyncio.Future[DirectResponse | None]:
        """A message came: done when it is queued and, if its sender waits, answered."""

    def status(self, path: str, headers: dict[bytes, bytes]) -> bytes | None:
        """The answer to a question after the relay's state, if it is one."""


class HttpConnection(asyncio.Protocol):
    __slots__ = (
        "_begun_bytes",
        "_closing",
        "_desk",
        "_ended_by_peer",
        "_lingering",
        "_loop",
        "_reader",
        "_transport",
        "_unread",
        "_waiting",
        "since",
    )

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._reader = http1.RequestReader(desk.body_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[DirectResponse | None] | None = None
        self._begun_bytes = 0
        self._closing = False
        self._ended_by_peer = False
        self._lingering = False
        self._unread = False
        self.since = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        if not self._desk.enter(self):
            self._say_refused(503, "too many connections; try again later")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._desk.leave(self)
        self._desk.flow.leave(self)
        self._desk.flow.grew(-self._begun_bytes)
        self._begun_bytes = 0
        if self._waiting is not None:
            self._waiting.cancel()  # nobody is left to hear the answer; the message is queued

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        was_idle = not self._reader.midway
        self._reader.feed(data)
        if self._waiting is None and not self._unread:
            self._go_on()
        else:
            # Requests behind the one in work wait in the kernel, not here.
            self._stop_reading()
        if was_idle and self._reader.midway:
            self.since = self._loop.time()
        self._bound()

    def _bound(self) -> None:
        """Count what is here of a request that has begun, and stop to read it at the limit."""
        held, flow = self._reader.held_bytes, self._desk.flow
        grown, self._begun_bytes = held - self._begun_bytes, held
        try:
            flow.grew(grown)
        except Overloaded as error:
            # Behind a request in work there is one read at most, and its answer comes first.
            if self._waiting is None and not self._closing:
                self._refuse(error.http_status, str(error))
                self._reader = http1.RequestReader(self._desk.body_bytes_max)
                flow.grew(-held)
                self._begun_bytes = 0
        if flow.full and self._reader.midway and self._waiting is None and not self._closing:
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
        # A peer that only stopped writing still gets its answers, and then the end. Most have
        # gone altogether, so this is not waited for as long as by others.
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
        """It took too long to ask, to read its answer or to go, or has been idle for too long."""
        if self._waiting is not None and not self._unread and not self._ended_by_peer:
            return False
        if self._desk.flow.pauses(self) and not self._closing:
            return False  # the peer is not to blame
        if self._lingering or self._ended_by_peer:
            limit_s = LINGER_S_MAX
        elif self._closing:
            limit_s = REQUEST_S_MAX
        else:
            limit_s = REQUEST_S_MAX if self._reader.midway or self._unread else IDLE_S_MAX
        return self._loop.time() - self.since > limit_s

    def give_up(self) -> None:
        if self._closing or self._unread or self._ended_by_peer:
            # Closing would wait until the peer has read everything.
            self._closing = True
            if self._transport is not None:
                self._transport.abort()
        elif self._reader.midway:
            self._refuse(408, "the request took too long")
        else:
            self.close()

    def quiet(self) -> None:
        """No further request: close now, or after the answer that is due."""
        if self._waiting is None:
            self.close()
        self._closing = True

    @property
    def _tls(self) -> bool:
        """Where half a connection can't be closed."""
        return self._transport is not None and not self._transport.can_write_eof()

    def close(self) -> None:
        if not self._closing:
            self.since = self._loop.time()
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def _go_on(self) -> None:
        try:
            while self._waiting is None and not self._closing and not self._unread:
                request = self._reader.next_request()
                if request is None:
                    if self._reader.waits_for_leave:
                        self._write(http1.CONTINUE)
                    return
                self._answer(request)
        except http1.Refused as refusal:
            self._refuse(refusal.status, str(refusal))

    def _answer(self, request: http1.Request) -> None:
        if request.method == "POST":
            try:
                future = self._desk.take(request.body)
            except AngariumError as error:
                self._write(_problem(error, keep_alive=request.keep_alive))
                self._ended(request.keep_alive)
                return
            self._waiting = future
            future.add_done_callback(self._answered if request.keep_alive else self._answered_last)
            return
        if request.method in ("GET", "HEAD"):
            answer = self._desk.status(request.target.partition("?")[0], request.headers)
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
        """What the peer sent meanwhile."""
        if self._transport is None:
            return
        if not self._desk.flow.pauses(self):
            self._transport.resume_reading()
        if self._reader.midway:
            self._go_on()
            self._bound()
        if self._ended_by_peer and self._waiting is None:
            self.close()

    def _ended(self, keep_alive: bool) -> None:
        self.since = self._loop.time()
        if not keep_alive:
            self.close()

    def _refuse(self, status: int, problem: str) -> None:
        """Say why, and wait for the peer to have read it: it may still be sending."""
        self._say_refused(status, problem)
        self._closing = self._lingering = True
        self.since = self._loop.time()
        if self._ended_by_peer:
            self.close()
        elif self._transport is not None and not self._tls:
            self._transport.write_eof()

    def _say_refused(self, status: int, problem: str) -> None:
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
    """People paste an invitation's URL into a browser and should learn what it is."""
    if "c_i=" in target or "oob=" in target:
        text = b"This is an invitation to connect. Open it with your agent or wallet.\n"
        return http1.response(200, text, "text/plain; charset=utf-8")
    return http1.OK
