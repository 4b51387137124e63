"""An HTTP server for the tests of outbound requests; each test scripts its connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from angarium.runtime.outbound import (
    Outbound,
)
from tests.kit.eventually import eventually
from tests.kit.ports import free_port

PATIENCE_S = 30.0
# Of a server that never answers, so that the test need not wait long.
SHORT_S = 0.2
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
TURNS = 50  # of the loop, for the other side to read what was written

Talk = Callable[["Peer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """Runs the test's script on each connection and records the requests."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.port = 0
        self.connections = 0
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def take(self, reader: asyncio.StreamReader) -> str:
        """One request; its head in small letters."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = next(
            (line for line in head.split("\r\n") if line.startswith("content-length")), ":0"
        )
        self.bodies.append(await reader.readexactly(int(size.partition(":")[2])))
        self.heads.append(head)
        return head

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # The client's end of a connection is none of the server's faults.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await self._talk(self, reader, writer)
                if not writer.is_closing():
                    await reader.read()
        except asyncio.CancelledError:
            pass  # asyncio would log it; the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def all_left(self) -> bool:
        """Whether the clients have closed all their connections."""
        return not self._tasks

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await eventually(self.all_left, PATIENCE_S)


@asynccontextmanager
async def serving(
    talk: Talk, hosts: tuple[str, ...] = ("127.0.0.1",), tls: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    peer = Peer(talk)
    port = free_port() if len(hosts) > 1 else 0
    server = await asyncio.start_server(peer, list(hosts), port, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        await peer.end()


def patient(*, allow_private: bool = True) -> Outbound:
    return Outbound(allow_private=allow_private, timeout_s=PATIENCE_S)


def impatient() -> Outbound:
    return Outbound(allow_private=True, timeout_s=SHORT_S)


def answering(*parts: bytes, end: bool = False) -> Talk:
    """Answers every request with these parts, one after the other; `end` drops the connection."""

    async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await peer.take(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            if end:
                writer.close()
                return

    return talk
