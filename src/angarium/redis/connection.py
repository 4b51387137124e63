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
from itertools import islice
from typing import Any, cast

import hiredis

from angarium.redis.address import Address
from angarium.redis.commands import Argument as Argument
from angarium.redis.commands import Command as Command
from angarium.redis.commands import pack, pack_commands
from angarium.redis.errors import OutcomeUnknown, RedisUnavailable, SettingInvalid
from angarium.redis.options import NAMES, OptionNames

ReplyError = hiredis.ReplyError
log = logging.getLogger("angarium.redis")

# A handshake is a handful of small commands; a server that can't answer them in this time is
# as good as down, and another address should be tried.
CONNECT_TIMEOUT_S = 5.0
# Small commands of one turn of the loop leave in one write. A batch is worth a write of its
# own, and waiting for the turn to end would only keep Redis waiting.
FLUSH_BYTES = 2_048
# Commands that answer with their argument, the better first: ECHO is answered while a server
# loads. Users and sentinels that lack it often have PING.
FENCES = ("ECHO", "PING")
# A server in one of these states refuses the fence too; it says nothing about the order then.
NOT_NOW = frozenset(("BUSY", "LOADING", "MASTERDOWN"))
FENCE_AGAIN_S = 0.05
# A fence is so many random digits, a colon, and a number of so many digits: no connection lives
# long enough to need more.
FENCE_DIGITS = 16


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

    def __init__(self, future: asyncio.Future[list[Any]], count: int, deadline: float) -> None:
        self.future = future
        self.missing = count
        self.replies: list[Any] = []
        self.deadline = deadline

    @property
    def refused(self) -> bool:
        """Nothing of it was done, and the replies hold nobody's data."""
        return all(isinstance(each, ReplyError) and _not_now(each) for each in self.replies)


class Connection(asyncio.Protocol):
    """Use `open_connection`; the constructor only prepares."""

    def __init__(self, address: Address, on_unmatched: Callable[[], None]) -> None:
        self.address = address
        self.on_push: Callable[[Any], None] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._on_unmatched = on_unmatched
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        # A fence is in its place among the requests as the value that has to come back.
        self._in_flight: deque[_Request | bytes] = deque()
        self._unverified: list[_Request] = []
        self._fence = ""
        self._fence_value = b""
        self._fence_packed = b""
        self._fence_place = slice(0)
        self._fences = 0
        self._fence_due = False
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
        transport = self._transport
        return self._why is None and transport is not None and not transport.is_closing()

    def request(self, commands: Sequence[Command], timeout_s: float) -> asyncio.Future[list[Any]]:
        """Send `commands` together; the future gives one reply each, errors as values.

        CommandInvalid if one of them can't be packed; nothing is sent then. Cancelling the future
        leaves the connection intact: the replies are read and dropped.
        """
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if self._why is not None or self._transport is None or self._transport.is_closing():
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

    def fence_with(self, command: str, value: bytes) -> None:
        """From now on hand out replies only after a fence made from `value` came back."""
        self._fence, self._fence_value = command, value
        # The number is as long each time, so that all but it can be packed beforehand.
        packed = pack((command, value + bytes(FENCE_DIGITS)))
        self._fence_packed = packed[: -FENCE_DIGITS - 2] + b"%%0%dd\r\n" % FENCE_DIGITS
        self._fence_place = slice(-len(value) - FENCE_DIGITS - 2, -2)

    @property
    def ready(self) -> bool:
        """It can be written to at once."""
        return self.usable and self._writable.is_set()

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

    def retire(self, why: str) -> None:
        """Take nothing more, and close when everything in flight has been answered."""
        self._why = self._why or why
        self._close_if_done()

    def close(self, why: str = "closed by us") -> None:
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    # What the event loop calls ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None and self._transport.is_closing():
            return  # what still arrives belongs to nobody
        self.last_heard = self._loop.time()
        try:
            self._reader.feed(data)
            gets, take, push = self._reader.gets, self._take, self.on_push
            if push is not None:
                while (reply := gets()) is not _MORE:
                    push(reply)
                return
            while (reply := gets()) is not _MORE:
                if not take(reply):
                    return
        except Exception as error:  # the parser knows a protocol error, and has others
            self.unmatched(f"bytes came that can't be read ({error!r})")

    def connection_lost(self, error: Exception | None) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        why = self._why or error or "closed by the server"
        for request in (*self._unverified, *self._in_flight):
            if isinstance(request, _Request) and not request.future.done():
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

    def _write(self, packed: bytes) -> None:
        outgoing = self._outgoing
        if not outgoing and len(packed) < FLUSH_BYTES:
            self._loop.call_soon(self._flush)
        outgoing.append(packed)
        if len(packed) >= FLUSH_BYTES:
            self._write_out()

    def _flush(self) -> None:
        if self._outgoing:
            self._write_out()

    def _write_out(self) -> None:
        if self._fence:
            self._fences += 1
            packed = self._fence_packed % self._fences
            self._outgoing.append(packed)
            self._in_flight.append(packed[self._fence_place])
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # Receiving ----------------------------------------------------------------------------

    def _take(self, reply: Any) -> bool:
        """False when the connection is of no more use."""
        if type(reply) is hiredis.PushNotification:
            return True  # out of band, and we asked for none
        if not self._in_flight:
            return self.unmatched("a reply came that nobody asked for")
        request = self._in_flight[0]
        if isinstance(request, bytes):
            self._in_flight.popleft()
            return self._verify(request, reply)
        request.replies.append(reply)
        request.missing -= 1
        if request.missing == 0:
            self._in_flight.popleft()
            self._unverified.append(request)
            if not self._fence:
                self._hand_out()
        return True

    def _verify(self, fence: bytes, reply: Any) -> bool:
        """A fence is due: hand out what it guards if this is it, and close otherwise."""
        if reply == fence:
            self._hand_out()
            return True
        if isinstance(reply, ReplyError) and _not_now(reply):
            # Refusals can be handed out, for they hold nobody's data; the rest waits.
            waiting = [each for each in self._unverified if not each.refused]
            self._unverified = [each for each in self._unverified if each.refused]
            self._hand_out()
            self._unverified = waiting
            if waiting and not self._fence_due:
                self._fence_due = True
                self._loop.call_later(FENCE_AGAIN_S, self._fence_again)
            return True
        return self.unmatched("the replies no longer match the commands")

    def _fence_again(self) -> None:
        self._fence_due = False
        if self._unverified and not self._closing():
            self._write_out()

    def _hand_out(self) -> None:
        for request in self._unverified:
            if not request.future.done():
                request.future.set_result(request.replies)
        self._unverified.clear()
        if self._why is not None:
            self._close_if_done()

    def _close_if_done(self) -> None:
        if not (self._in_flight or self._unverified or self._outgoing):
            self.close()

    def _closing(self) -> bool:
        return self._transport is not None and self._transport.is_closing()

    def unmatched(self, problem: str) -> bool:
        """Close the connection: every waiting caller gets `OutcomeUnknown`, never wrong data."""
        if self._closing():
            return False  # reported already
        waiting = sum(not isinstance(each, bytes) for each in self._in_flight)
        waiting += len(self._unverified)
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
        waiting = (each for each in self._in_flight if isinstance(each, _Request))
        oldest = self._unverified[0] if self._unverified else next(waiting, None)
        if oldest is None:
            return
        if self._loop.time() < oldest.deadline:
            self._watch_until(oldest.deadline)
        elif self._fence_misplaced():
            self.unmatched("a reply is missing")
        else:
            self.close("no reply in time")

    def _fence_misplaced(self) -> bool:
        """A fence came where a caller's reply was due: what is missing will never come."""
        taken = [*self._unverified, *islice(self._in_flight, 1)]
        return bool(self._fence) and any(
            isinstance(reply, bytes) and reply.startswith(self._fence_value)
            for request in taken
            if isinstance(request, _Request)
            for reply in request.replies
        )


_MORE = object()


def _not_now(reply: Exception) -> bool:
    return str(reply).partition(" ")[0] in NOT_NOW


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
            await _introduce(connection, credentials, guarded=on_push is None)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, OSError | TimeoutError | OutcomeUnknown):
            why = str(error) or "timed out"
            raise RedisUnavailable(f"no connection to Redis at {address}: {why}") from error
        raise
    connection.on_push = on_push
    return connection


async def _introduce(connection: Connection, credentials: Credentials, *, guarded: bool) -> None:
    address = connection.address
    value = secrets.token_hex(FENCE_DIGITS // 2).encode() + b":"
    required = credentials.handshake(address)
    # A user that may not do this only lacks a name in CLIENT LIST.
    named = ("CLIENT", "SETNAME", credentials.client_name)
    echoes = [(fence, value) for fence in FENCES]
    replies = await connection.request([*required, named, *echoes], CONNECT_TIMEOUT_S)
    for reply in replies:
        if isinstance(reply, ReplyError) and _not_now(reply):
            raise RedisUnavailable(f"Redis at {address} is not ready: {reply}")
    for reply in replies[: len(required)]:
        if isinstance(reply, ReplyError):
            raise SettingInvalid(
                credentials.names.url,
                f"Redis at {address} refused the connection ({reply})",
                "check user, password and database number in the URL",
            )
    if guarded:
        _choose_fence(connection, value, replies[-len(FENCES) :])


def _choose_fence(connection: Connection, value: bytes, replies: list[Any]) -> None:
    for fence, reply in zip(FENCES, replies, strict=True):
        if reply == value:
            connection.fence_with(fence, value)
            return
        if not isinstance(reply, ReplyError):
            connection.unmatched("the replies of the handshake do not match it")
            raise RedisUnavailable(f"Redis at {connection.address} answered out of order")
    if str(reply).startswith("NOAUTH"):
        return  # every command is refused, and the first one says why
    log.warning("replies_unguarded", extra={"server": str(connection.address), "why": str(reply)})
