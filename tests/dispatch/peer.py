"""A worker of another make: a listening socket that answers only what a test tells it to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from angarium.dispatch.counts import DispatcherCounts
from angarium.dispatch.frames import Command, FrameReader, encode_acknowledgements
from angarium.dispatch.links import Link, LinkOwner, Links, LinkTerms
from angarium.dispatch.protocol import Answer, Greeting, Rejected, WorkerSide, hello
from angarium.runtime.clock import SystemClock
from tests.kit.eventually import eventually

DEADLINE_S = 30.0
FRAME_BYTES_MAX = 4 * 1024 * 1024


class Peer:
    """Use `peer()`. What arrives is kept; a connection that ends leaves the rest as it was."""

    def __init__(self, greeting: Greeting | None, first: bytes, token: str | None) -> None:
        self._first = (b"" if greeting is None or token else hello(greeting)) + first
        self._greeting, self._token = greeting, token
        self._server: asyncio.Server | None = None
        self.connections: list[PeerConnection] = []
        self.messages: list[tuple[bytes, bytes]] = []
        self.frames: list[tuple[int, bytes]] = []
        self.reads = True

    @property
    def address(self) -> str:
        assert self._server is not None
        return "{}:{}".format(*self._server.sockets[0].getsockname())

    @property
    def ids(self) -> list[bytes]:
        return [message_id for message_id, _ in self.messages]

    @property
    def alive(self) -> int:
        return sum(each.transport is not None for each in self.connections)

    async def open(self, port: int = 0) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Small, so that one who does not read is noticed after kilobytes.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        listener.bind(("127.0.0.1", port))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: PeerConnection(self), sock=listener)

    def write(self, data: bytes) -> None:
        for each in self.connections:
            if each.transport is not None:
                each.transport.write(data)

    def acknowledge(self, *ids: bytes) -> None:
        self.write(encode_acknowledgements(ids))

    def hang_up(self) -> None:
        for each in self.connections:
            if each.transport is not None:
                each.transport.abort()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.hang_up()

    def connected(self, connection: PeerConnection) -> None:
        self.connections.append(connection)
        assert connection.transport is not None
        if not self.reads:
            connection.transport.pause_reading()
        if opening := self._first + connection.side.opening() * (self._token is not None):
            connection.transport.write(opening)

    def side(self) -> WorkerSide:
        """Answers the handshake, when the peer has a token."""
        return WorkerSide(FRAME_BYTES_MAX, self._token, self._greeting, dials=False)

    def received(self, command: int, payload: bytes) -> None:
        self.frames.append((command, payload))
        if command == Command.PROCESS_MESSAGE:
            self.messages.append((payload[:36], payload[37:]))


class PeerConnection(asyncio.Protocol):
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self.side = peer.side()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._peer.connected(self)

    def data_received(self, data: bytes) -> None:
        for event in self.side.receive(data):
            if isinstance(event, Answer) and self.transport is not None:
                self.transport.write(event.data)
        for command, payload in self._reader.feed(data):
            self._peer.received(command, payload)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None


@asynccontextmanager
async def peer(
    greeting: Greeting | None = None,
    *,
    first: bytes = b"",
    port: int = 0,
    reads: bool = True,
    token: str | None = None,
) -> AsyncIterator[Peer]:
    """Without a greeting it knows nothing of our additions."""
    found = Peer(greeting, first, token)
    found.reads = reads
    await found.open(port)
    try:
        yield found
    finally:
        found.close()


@dataclass
class Owner(LinkOwner):
    """Keeps what links tell, and does for them what a dispatcher would."""

    acks: list[bytes] = field(default_factory=list)
    foreign: int = 0
    rejections: list[Rejected] = field(default_factory=list)
    losses: list[list[bytes]] = field(default_factory=list)

    def acknowledged(self, link: Link, ids: object) -> None:
        assert isinstance(ids, list)
        self.acks += ids
        self.foreign += link.answered(ids)

    def rejected(self, link: Link, rejected: Rejected) -> None:
        self.rejections.append(rejected)
        link.answered([rejected.message_id])

    def lost(self, link: Link, held: object) -> None:
        assert isinstance(held, list)
        self.losses.append(held)

    def has_space(self) -> None:
        pass


class Wired:
    """Links, what they count and tell, and the tasks that keep them."""

    def __init__(self, group: asyncio.TaskGroup, terms: LinkTerms) -> None:
        self.owner = Owner()
        self.counts = DispatcherCounts()
        self.links = Links(terms, self.owner, self.counts, SystemClock())
        self._group = group

    def keep(self, *addresses: str) -> None:
        self.links.keep(addresses, self._group)

    async def dial(self, *peers: Peer) -> list[Link]:
        """One after another, so that their turns are in this order; their links."""
        addresses = [link.address for link in self.links.links]
        for each in peers:
            addresses.append(each.address)
            self.keep(*addresses)
            await self.open(each)
        return [self.link(each) for each in peers]

    async def open(self, peer: Peer) -> Link:
        """Wait until a peer's link has module for messages."""

        def has_space() -> bool:
            return any(link.space for link in self.links.links if link.address == peer.address)

        await eventually(has_space, DEADLINE_S)
        return self.link(peer)

    def link(self, peer: Peer) -> Link:
        (link,) = [link for link in self.links.links if link.address == peer.address]
        return link


def terms(
    token: str | None = None, window: int = 100, heartbeat_s: float = 30.0, name: str = "d1"
) -> LinkTerms:
    return LinkTerms(token, None, FRAME_BYTES_MAX, window, heartbeat_s, name)


@asynccontextmanager
async def wired(used: LinkTerms | None = None) -> AsyncIterator[Wired]:
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        found = Wired(group, used or terms())
        try:
            yield found
        finally:
            found.links.close()
