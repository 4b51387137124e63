"""One connection to one Redis server: commands out, replies in, in the order they were sent.

Any number of tasks share a connection; their commands leave in one write per turn of the event
loop, and each caller gets its own replies. Behind every write goes an ECHO with a value that is
used once (the fence), and no reply of that write is handed out before the fence has come back in
its place: if a reply was added, dropped or misread on the way, nobody is given another caller's
data. The connection closes instead, and everything in flight fails with `OutcomeUnknown`.

A connection that failed is never used again: reconnecting is its owner's task. It knows nothing
of retries, clusters or scripts.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import hiredis

from angarium.redis.address import Address
from angarium.redis.errors import (
    CommandInvalid,
    OutcomeUnknown,
    RedisUnavailable,
    SettingInvalid,
)
from angarium.redis.options import NAMES, OptionNames

Argument = str | bytes | int | float
Command = Sequence[Argument]
ReplyError = hiredis.ReplyError
# The stub of hiredis knows only one-word commands.
pack = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)
log = logging.getLogger("angarium.redis")

# A handshake is a handful of small commands; a server that can't answer them in this time is
# as good as down, and another address should be tried.
CONNECT_TIMEOUT_S = 5.0
# Small commands of one turn of the loop leave in one write. A batch is worth a write of its
# own, and waiting for the turn to end would only keep Redis waiting.
FLUSH_BYTES = 2_048
# The server closes the connection, and so fails every other caller, when one argument is larger
# than proto-max-bulk-len or a command larger than client-query-buffer-limit; this is the smaller
# of the two defaults.
COMMAND_BYTES_MAX = 512 * 1024 * 1024
# A server in one of these states refuses the fence too; it says nothing about the order then.
NOT_NOW = ("BUSY ", "LOADING", "MASTERDOWN")
FENCE_AGAIN_S = 0.05
FENCE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Credentials:
    """How to introduce ourselves on a new connection, the same for every node."""

    username: str | None = None
    password: str | None = None
    database: int = 0
    tls: ssl.SSLContext | None = None
    client_name: str = "angarium"
    names: OptionNames = NAMES

    def handshake(self, address: Address) -> list[Command]:
        """What must succeed on a new connection."""
        commands: list[Command] = []
        password = address.password or self.password
        if password is not None:
            user = [self.username] if self.username else []
            commands.append(("AUTH", *user, password))
        if self.database:
            commands.append(("SELECT", self.database))
        return commands


class _Request:
    """Some commands sent together; resolved when the last of their replies is in."""

    __slots__ = ("deadline", "future", "missing", "replies")

    def __init__(
        self, future: asyncio.Future[list[Any]] | None, count: int, deadline: float
    ) -> None:
        self.future = future
        """None for a fence."""
        self.missing = count
        self.replies: list[Any] = []
        self.deadline = deadline


def pack_commands(commands: Sequence[Command]) -> list[bytes]:
    """All of them as bytes, or CommandInvalid."""
    try:
        packed = [pack(tuple(command)) for command in commands]
    except (TypeError, ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError
        raise CommandInvalid(_unpackable(commands, error)) from error
    if not packed or not all(commands):
        # Redis answers nothing to an empty command, and the replies would no longer match.
        raise CommandInvalid("an empty command can't be sent to Redis")
    for command, data in zip(commands, packed, strict=True):
        if len(data) > COMMAND_BYTES_MAX:
            problem = f"{len(data)} bytes, and Redis takes at most {COMMAND_BYTES_MAX}"
            raise CommandInvalid(f"the command {command[0]!r} is too large: {problem}")
    return packed


def _unpackable(commands: Sequence[Command], error: Exception) -> str:
    """Names the argument; its value is not shown, for it may be anybody's data."""
    for command in commands:
        for place, argument in enumerate(command):
            try:
                pack((argument,))
            except (TypeError, ValueError, OverflowError) as found:
                name = command[0] if place and isinstance(command[0], str) else "a command"
                kind = type(argument).__name__
                return f"argument {place} of {name} ({kind}) can't be sent to Redis: {found}"
    return f"a command can't be sent to Redis: {error}"


class Connection(asyncio.Protocol):
    """Use `open_connection`; the constructor only prepares."""

    def __init__(self, address: Address, on_unmatched: Callable[[], None]) -> None:
        self.address = address
        self.on_push: Callable[[Any], None] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._on_unmatched = on_unmatched
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._in_flight: deque[_Request] = deque()
        self._unverified: list[_Request] = []
        self._fence = b""
        self._fences = 0
        self._passed = 0
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
        # A closing connection takes nothing more: a command given to it was surely not sent.
        return self._transport is not None and not self._transport.is_closing()

    def request(self, commands: Sequence[Command], timeout_s: float) -> asyncio.Future[list[Any]]:
        """Send `commands` together; the future gives one reply each, errors as values.

        CommandInvalid if one of them can't be packed; nothing is sent then. Cancelling the future
        leaves the connection intact: the replies are read and dropped.
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
        """Send without expecting replies: for a connection whose replies go to `on_push`."""
        self._write(pack_commands(commands))

    def fence_with(self, value: bytes) -> None:
        """From now on hand out replies only after a fence made from `value` came back."""
        self._fence = value

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
        if not self.usable:
            return  # closing: what still arrives belongs to nobody
        self.last_heard = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _MORE:
                if not self._take(reply):
                    return
        except hiredis.ProtocolError as error:
            self._unmatched(f"bytes came that are not RESP ({error})")

    def connection_lost(self, error: Exception | None) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        why = self._why or error or "closed by the server"
        for request in (*self._unverified, *self._in_flight):
            if request.future is not None and not request.future.done():
                request.future.set_exception(
                    OutcomeUnknown(f"connection to {self.address} lost before the reply: {why}")
                )
        self._unverified.clear()
        self._in_flight.clear()
        self._writable.set()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Sending ------------------------------------------------------------------------------

    def _write(self, packed: list[bytes]) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += packed
        if sum(map(len, packed)) >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._outgoing:
            self._write_out()

    def _write_out(self) -> None:
        if self._fence:
            self._add_fence()
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _add_fence(self) -> None:
        self._fences += 1
        # As patient as the requests in front of it: a blocking read may take its time.
        last = self._in_flight[-1].deadline if self._in_flight else self._loop.time()
        deadline = max(last, self._loop.time() + FENCE_TIMEOUT_S)
        self._in_flight.append(_Request(None, 1, deadline))
        self._outgoing.append(pack(("ECHO", b"%b%d" % (self._fence, self._fences))))

    # Receiving ----------------------------------------------------------------------------

    def _take(self, reply: Any) -> bool:
        """False when the connection is of no more use."""
        if self.on_push is not None:
            self.on_push(reply)
            return True
        if type(reply) is hiredis.PushNotification:
            return True  # out of band, and we asked for none
        if not self._in_flight:
            return self._unmatched("a reply came that nobody asked for")
        request = self._in_flight[0]
        if request.future is None:
            self._in_flight.popleft()
            return self._verify(reply)
        request.replies.append(reply)
        request.missing -= 1
        if request.missing == 0:
            self._in_flight.popleft()
            self._unverified.append(request)
            if not self._fence:
                self._hand_out()
        return True

    def _verify(self, reply: Any) -> bool:
        """A fence is due: hand out what it guards if this is it, and close otherwise."""
        self._passed += 1
        if reply == b"%b%d" % (self._fence, self._passed):
            self._hand_out()
            return True
        if isinstance(reply, ReplyError) and str(reply).startswith(NOT_NOW):
            # Refusals can be handed out, for they hold nobody's data; the rest waits.
            waiting = [each for each in self._unverified if not _refused(each)]
            self._unverified = [each for each in self._unverified if _refused(each)]
            self._hand_out()
            self._unverified = waiting
            if waiting:
                self._loop.call_later(FENCE_AGAIN_S, self._fence_again)
            return True
        return self._unmatched("the replies no longer match the commands")

    def _fence_again(self) -> None:
        if self._unverified and self.usable:
            self._write_out()

    def _hand_out(self) -> None:
        for request in self._unverified:
            future = request.future
            if future is not None and not future.done():
                future.set_result(request.replies)
        self._unverified.clear()

    def _unmatched(self, problem: str) -> bool:
        """Wrong data is never handed out: whoever waits is told that the outcome is unknown."""
        waiting = sum(each.future is not None for each in (*self._in_flight, *self._unverified))
        log.error(
            "unmatched_reply",
            extra={"problem": problem, "server": str(self.address), "in_flight": waiting},
        )
        self._on_unmatched()
        self.close(problem)
        return False

    # Deadlines ----------------------------------------------------------------------------

    def _watch_until(self, deadline: float) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watchdog = self._loop.call_at(deadline, self._watch)
        self._watch_at = deadline

    def _watch(self) -> None:
        """One timer per connection: it looks at the oldest request, for replies come in order."""
        self._watch_at = float("inf")
        oldest = self._unverified[0] if self._unverified else None
        oldest = oldest or (self._in_flight[0] if self._in_flight else None)
        if oldest is None:
            return
        if self._loop.time() >= oldest.deadline:
            self.close("no reply in time")
        else:
            self._watch_until(oldest.deadline)


_MORE = object()


def _refused(request: _Request) -> bool:
    return all(isinstance(reply, ReplyError) for reply in request.replies)


async def open_connection(
    address: Address,
    credentials: Credentials,
    on_push: Callable[[Any], None] | None = None,
    on_unmatched: Callable[[], None] = lambda: None,
) -> Connection:
    """Connect and introduce ourselves. `RedisUnavailable` when that can't be done now."""
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: Connection(address, on_unmatched),
                address.host,
                address.port,
                ssl=credentials.tls,
            )
            fence = await _introduce(connection, credentials)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, OSError | TimeoutError | OutcomeUnknown):
            why = str(error) or "timed out"
            raise RedisUnavailable(f"no connection to Redis at {address}: {why}") from error
        raise
    if on_push is None:
        connection.fence_with(fence)
    connection.on_push = on_push
    return connection


async def _introduce(connection: Connection, credentials: Credentials) -> bytes:
    """The value that fences are made from; empty where the server does not echo."""
    address = connection.address
    required = credentials.handshake(address)
    fence = secrets.token_hex(8).encode() + b":"
    # A user or a sentinel that lacks the last two loses a name in CLIENT LIST and the fence.
    optional = (("CLIENT", "SETNAME", credentials.client_name), ("ECHO", fence))
    replies = await connection.request([*required, *optional], CONNECT_TIMEOUT_S)
    for reply in replies[: len(required)]:
        if not isinstance(reply, ReplyError):
            continue
        text = str(reply)
        if text.startswith(NOT_NOW):
            raise RedisUnavailable(f"Redis at {address} is not ready: {text}")
        raise SettingInvalid(
            credentials.names.url,
            f"Redis at {address} refused the connection ({text})",
            "check user, password and database number in the URL",
        )
    return fence if replies[-1] == fence else b""
