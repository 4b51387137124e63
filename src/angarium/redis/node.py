"""One server as we reach it: a connection that ordinary calls share, and pools for the others.

A call that holds its connection (a write that waits for the disk, a blocking read) takes one from
a pool. Nothing here retries: that is `client.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from angarium.redis.address import Address
from angarium.redis.connection import Connection, Credentials, open_connection
from angarium.redis.errors import RedisUnavailable

Locate = Callable[[], Awaitable[Address]]

GIVEN_UP = "the server is no longer the right one"
# Blocking readers are a handful per process; this only stops a leak from eating all sockets.
BLOCKING_MAX = 1000


class ServerUse:
    """What every node of a client shares: how to introduce ourselves, and what is counted."""

    def __init__(self, credentials: Credentials, connections_max: int) -> None:
        self.credentials = credentials
        self.connections_max = connections_max
        self.unmatched = 0
        """Connections that were closed because their replies did not match."""

    def count_unmatched(self) -> None:
        self.unmatched += 1


class ConnectionPool:
    """Connections that one caller at a time holds; kept for the next when it is done."""

    def __init__(self, open_one: Callable[[], Awaitable[Connection]], connections_max: int) -> None:
        self._open_one = open_one
        self._permits = asyncio.Semaphore(connections_max)
        self._idle: list[Connection] = []
        self.held: set[Connection] = set()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Connection]:
        async with self._permits:
            while self._idle:
                connection = self._idle.pop()
                if connection.usable:
                    break
            else:
                connection = await self._open_one()
            self.held.add(connection)
            try:
                yield connection
            except BaseException:
                # Its replies may still be on the way; the next caller must not wait for them.
                connection.close()
                raise
            finally:
                self.held.discard(connection)
                if connection.usable:
                    self._idle.append(connection)

    def retire(self) -> list[Connection]:
        """Each ends with its call; all of them are returned."""
        retired = [*self._idle, *self.held]
        self._idle.clear()
        for connection in retired:
            connection.retire(GIVEN_UP)
        return retired


class Node:
    """One server. `locate` is asked at each new connection, so the address may change."""

    def __init__(self, locate: Locate, use: ServerUse) -> None:
        self._locate = locate
        self._use = use
        self._shared: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._retired: set[Connection] = set()
        self._closed = False
        self.durable = ConnectionPool(self.open, use.connections_max)
        self.blocking = ConnectionPool(self.open, BLOCKING_MAX)

    @property
    def ready(self) -> Connection | None:
        """The shared connection, if it can be written to at once."""
        shared = self._shared
        return shared if shared is not None and shared.ready else None

    async def connection(self) -> Connection:
        """The shared connection, opened on first use and after a loss; one attempt at a time."""
        if self._closed:
            raise RedisUnavailable(GIVEN_UP)
        if self._shared is not None and self._shared.usable:
            return self._shared
        if self._opening is None:
            self._opening = asyncio.create_task(self.open())
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        try:
            # Shielded: a caller that gives up must not cancel the attempt others wait for.
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                # The node was given up, not the caller: it must not take this for its own end.
                raise RedisUnavailable(GIVEN_UP) from None
            raise

    async def open(self, on_push: Callable[[Any], None] | None = None) -> Connection:
        """A new connection of the caller's own, who closes it."""
        use = self._use
        connection = await open_connection(
            await self._locate(), use.credentials, on_push, use.count_unmatched
        )
        if self._closed:  # meanwhile: nobody would close this one
            connection.close(GIVEN_UP)
            raise RedisUnavailable(GIVEN_UP)
        return connection

    def retire(self) -> None:
        """The server behind the address is no longer the right one.

        What it was asked, it still answers: closing at once would leave callers without a reply
        that is on its way. Blocking reads may take long, and are asked again elsewhere.
        """
        retired = [*self.durable.retire(), *self.blocking.retire()]
        if self._shared is not None:
            self._shared.retire(GIVEN_UP)
            retired.append(self._shared)
            self._shared = None
        for connection in self.blocking.held:
            connection.close(GIVEN_UP)
        self._retired = {each for each in (*self._retired, *retired) if not each.closed.done()}

    @property
    def idle(self) -> bool:
        """Everything that it was asked has been answered."""
        return all(each.closed.done() for each in self._retired) and self._shared is None

    async def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self.retire()
        for connection in self._retired:
            connection.close(GIVEN_UP)
        await asyncio.gather(*(connection.closed for connection in self._retired))

    def _opened(self, task: asyncio.Task[Connection]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._shared = task.result()
