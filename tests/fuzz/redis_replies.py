"""What a Redis server sends, as a fuzzer sees it: any bytes into a connection with callers waiting.

Nothing may come out of the connection but answers and OutcomeUnknown. A caller that is answered has
been given the replies in its place, and the fence behind them has come in its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis

from angarium.redis.address import Address
from angarium.redis.connection import Connection
from angarium.redis.errors import OutcomeUnknown

FENCE = b"f:"
NOT_NOW = ("BUSY", "LOADING", "MASTERDOWN")
# How many commands each caller of a write sent; behind each write goes a fence.
WRITES = ((1, 3, 1), (2,), (1, 1))
TIMEOUT_S = 60.0
# What the callers above would get if all is well.
RIGHT = (
    b"+OK\r\n:1\r\n$-1\r\n*2\r\n:1\r\n-ERR x\r\n$2\r\nhi\r\n$18\r\nf:0000000000000001\r\n"
    b"$0\r\n\r\n-MOVED 1 a:1\r\n+f:0000000000000002\r\n"
    b"*0\r\n>2\r\n+push\r\n:1\r\n:-1\r\n+f:0000000000000003\r\n"
)


class Wire(asyncio.Transport):
    """Where the connection writes; what it writes is of no interest here."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._closing = False

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: Any) -> None:
        assert not self._closing

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


def redis_replies(data: bytes) -> None:
    asyncio.run(_receive(data))


async def _receive(data: bytes) -> None:
    unmatched = 0

    def count() -> None:
        nonlocal unmatched
        unmatched += 1

    connection = Connection(Address("fuzz", 1), count)
    wire = Wire(connection)
    connection.connection_made(wire)
    connection.fence_with("ECHO", FENCE)
    callers: list[list[asyncio.Future[list[Any]]]] = []
    for write in WRITES:
        callers.append([connection.request([("GET", "a")] * n, TIMEOUT_S) for n in write])
        await asyncio.sleep(0)  # the write leaves
    place = data[0] if data else 0
    for piece in (data[1:place], data[max(1, place) :]):
        connection.data_received(piece)
    given = [[future.result() if future.done() else None for future in each] for each in callers]
    connection.close()
    await connection.closed
    for future in (future for each in callers for future in each):
        assert isinstance(future.exception(), OutcomeUnknown | None)
    expected = _expected(_replies(data[1:]))
    # Compared as text: a reply may hold what equals nothing, not even itself.
    assert repr(given) == repr(expected), (given, expected)
    assert unmatched <= 1


def _replies(data: bytes) -> list[Any]:
    """Read in one piece; a push is none, and behind what can't be read there is nothing."""
    more = object()
    reader = hiredis.Reader(notEnoughData=more)
    found = []
    try:
        reader.feed(data)
        while (reply := reader.gets()) is not more:
            if not isinstance(reply, hiredis.PushNotification):
                found.append(reply)
    except Exception:
        pass
    return found


def _expected(replies: list[Any]) -> list[list[Any]]:
    """What each write's callers are given: all of it once a fence is back, in its place.

    While fences are refused, for the server is busy, only refusals are given.
    """
    expected: list[list[Any]] = []
    waiting: list[tuple[int, int, list[Any]]] = []
    at = 0
    for number, write in enumerate(WRITES):
        expected.append([None] * len(write))
        for caller, count in enumerate(write):
            waiting.append((number, caller, replies[at : at + count]))
            at += count
        fence = replies[at] if at < len(replies) else None
        at += 1
        passed = fence == b"%b%016d" % (FENCE, number + 1)
        if not passed and not _refused(fence):
            break
        for each in [each for each in waiting if passed or all(map(_refused, each[2]))]:
            waiting.remove(each)
            expected[each[0]][each[1]] = each[2]
    return expected + [[None] * len(write) for write in WRITES[len(expected) :]]


def _refused(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).split(" ")[0] in NOT_NOW
