"""One connection to one Redis server: commands out, replies in, in the order they were sent.

Any number of tasks share a wire; their commands leave in one write per turn of the event loop
and each gets its own replies. A wire that fails fails everything in flight with
`OutcomeUnknown` and is never used again: reconnecting is its owner's business. It knows
nothing of retries, clusters or scripts.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import hiredis

from angarium.runtime.address import Address
from angarium.runtime.errors import (
    CommandInvalid,
    OutcomeUnknown,
    RedisUnavailable,
    SettingInvalid,
)

Argument = str | bytes | int | float
Command = Sequence[Argument]
ReplyError = hiredis.ReplyError
# Its stub knows only one-word commands.
pack = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)

# A handshake is a handful of small commands; a server that can't answer them in this time is
# as good as down, and another address should be tried.
CONNECT_TIMEOUT_S = 5.0
# Small commands of one turn of the loop leave in one write. A batch is worth a write of its
# own, and waiting for the turn to end would only keep Redis waiting.
FLUSH_BYTES = 2_048


@dataclass(frozen=True)
class Credentials:
    """How to introduce ourselves on a new connection, the same for every node."""

    username: str | None = None
    password: str | None = None
    database: int = 0
    tls: ssl.SSLContext | None = None
    client_name: str = "angarium"

    def handshake(self, address: Address) -> list[Command]:
        commands: list[Command] = []
        password = address.password or self.password
        if password is not None:
            user = [self.username] if self.username else []
            commands.append(("AUTH", *user, password))
        if self.database:
            commands.append(("SELECT", self.database))
        commands.append(("CLIENT", "SETNAME", self.client_name))
        return commands


class _Request:
    """Some commands sent together; resolved when the last of their replies is in."""

    __slots__ = ("deadline", "future", "missing", "replies")

    def __init__(self, future: asyncio.Future[list[Any]], count: int, deadline: float) -> None:
        self.future = future
        self.missing = count
        self.replies: list[Any] = []
        self.deadline = deadline


def pack_commands(commands: Sequence[Command]) -> list[bytes]:
    """All of them as bytes, or CommandInvalid."""
    try:
        packed = [pack(tuple(command)) for command in commands]
    except (TypeError, ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError
        raise CommandInvalid(f"an argument can't be sent to Redis: {error}") from error
    if not packed or not all(commands):
        # Redis answers nothing to an empty command, and the replies would no longer match.
        raise CommandInvalid("an empty command can't be sent to Redis")
    return packed


class Wire(asyncio.Protocol):
    """Use `open_wire`; the constructor only prepares."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.on_push: Callable[[Any], None] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._in_flight: deque[_Request] = deque()
        self._outgoing: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._watch_at = float("inf")
        self._writable = asyncio.Event()
        self._writable.set()
        self._why: BaseException | str | None = None
        self.last_heard = self._loop.time()

    # What callers use ---------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        # One that is closing takes nothing more: what is asked of it was surely not sent.
        return self._transport is not None and not self._transport.is_closing()

    def request(self, commands: Sequence[Command], timeout_s: float) -> asyncio.Future[list[Any]]:
        """Send `commands` together; the future gives one reply each, errors as values.

        CommandInvalid if one of them can't be packed; nothing is sent then. Cancelling the future
        leaves the wire intact: the replies are read and dropped.
        """
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if not self.usable:
            future.set_exception(RedisUnavailable(f"connection to {self.address} is closed"))
            return future
        # Packed before it is registered: a request that fails here must leave no trace, or every
        # later reply would go to the wrong caller.
        packed = pack_commands(commands)
        deadline = self._loop.time() + timeout_s
        self._in_flight.append(_Request(future, len(commands), deadline))
        self._write(packed)
        if deadline < self._watch_at:
            self._watch_until(deadline)
        return future

    def send(self, commands: Sequence[Command]) -> None:
        """Send without expecting replies: for a wire whose answers go to `on_push`."""
        self._write(pack_commands(commands))

    @property
    def writable(self) -> bool:
        return self._writable.is_set()

    async def drained(self) -> None:
        """Wait until the kernel takes more bytes: back-pressure for whoever sends much."""
        await self._writable.wait()

    @property
    def reading(self) -> bool:
        return self._transport is not None and self._transport.is_reading()

    def pause_reading(self) -> None:
        if self._transport is not None and self.reading:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.usable and self._transport is not None and not self.reading:
            self.last_heard = self._loop.time()
            self._transport.resume_reading()

    def close(self, why: str = "closed by us") -> None:
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.last_heard = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _MORE:
                self._take(reply)
        except hiredis.ProtocolError as error:
            self.close(f"{self.address} sent what is not RESP ({error})")

    def connection_lost(self, error: Exception | None) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        why = self._why or error or "closed by the server"
        while self._in_flight:
            future = self._in_flight.popleft().future
            if not future.done():
                future.set_exception(
                    OutcomeUnknown(f"connection to {self.address} lost before the reply: {why}")
                )
        self._writable.set()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Inside -------------------------------------------------------------------------------

    def _write(self, packed: list[bytes]) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += packed
        if sum(map(len, packed)) >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _take(self, reply: Any) -> None:
        if self.on_push is not None:
            self.on_push(reply)
            return
        if not self._in_flight:
            self.close("a reply came that nobody asked for")
            return
        request = self._in_flight[0]
        request.replies.append(reply)
        request.missing -= 1
        if request.missing == 0:
            self._in_flight.popleft()
            if not request.future.done():
                request.future.set_result(request.replies)

    def _watch_until(self, deadline: float) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watchdog = self._loop.call_at(deadline, self._watch)
        self._watch_at = deadline

    def _watch(self) -> None:
        """One timer per wire: it looks at the oldest request, for replies come in order."""
        self._watch_at = float("inf")
        if not self._in_flight:
            return
        deadline = self._in_flight[0].deadline
        if self._loop.time() >= deadline:
            self.close("no reply in time")
        else:
            self._watch_until(deadline)


_MORE = object()


async def open_wire(
    address: Address, credentials: Credentials, on_push: Callable[[Any], None] | None = None
) -> Wire:
    """Connect and introduce ourselves. `RedisUnavailable` when that can't be done now."""
    loop = asyncio.get_running_loop()
    wire: Wire | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, wire = await loop.create_connection(
                lambda: Wire(address), address.host, address.port, ssl=credentials.tls
            )
            replies = await wire.request(credentials.handshake(address), CONNECT_TIMEOUT_S)
            _check_handshake(address, replies)
    except BaseException as error:
        if wire is not None:
            wire.close()
        if isinstance(error, OSError | TimeoutError | OutcomeUnknown):
            why = str(error) or "timed out"
            raise RedisUnavailable(f"no connection to Redis at {address}: {why}") from error
        raise
    wire.on_push = on_push
    return wire


def _check_handshake(address: Address, replies: list[Any]) -> None:
    # The last command only names the connection: an ACL that forbids it does no harm.
    for reply in replies[:-1]:
        if not isinstance(reply, ReplyError):
            continue
        text = str(reply)
        if text.startswith(("LOADING", "MASTERDOWN", "BUSY")):
            raise RedisUnavailable(f"Redis at {address} is not ready: {text}")
        raise SettingInvalid(
            "ANGARIUM_REDIS_URL",
            f"Redis at {address} refused the connection ({text})",
            "check user, password and database number in the URL",
        )
