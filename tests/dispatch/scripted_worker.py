"""Workers that send only what a test writes, and a harness for the pool that connects to them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from angarium.dispatch.frames import (
    Command,
    DispatchedMessage,
    FrameReader,
    encode_acknowledgements,
)
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.protocol import (
    Hello,
    RejectionReceived,
    SendBytes,
    WorkerProtocol,
    encode_hello,
)
from angarium.dispatch.worker_connection import (
    WorkerConnection,
    WorkerConnectionEvents,
    WorkerConnectionOptions,
)
from angarium.dispatch.worker_pool import WorkerPool
from angarium.runtime.clock import SystemClock
from tests.kit.eventually import eventually

DEADLINE_S = 30.0
FRAME_BYTES_MAX = 4 * 1024 * 1024


class ScriptedWorker:
    """Use `scripted_worker()`. Records everything that it receives."""

    def __init__(self, hello: Hello | None, first: bytes, token: str | None) -> None:
        self._first = (b"" if hello is None or token else encode_hello(hello)) + first
        self._hello, self._token = hello, token
        self._server: asyncio.Server | None = None
        self.connections: list[ScriptedConnection] = []
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
        # Small, so that a worker that does not read is noticed after kilobytes.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        listener.bind(("127.0.0.1", port))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ScriptedConnection(self), sock=listener)

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

    def connected(self, connection: ScriptedConnection) -> None:
        self.connections.append(connection)
        assert connection.transport is not None
        if not self.reads:
            connection.transport.pause_reading()
        if opening := self._first + connection.protocol.opening() * (self._token is not None):
            connection.transport.write(opening)

    def protocol(self) -> WorkerProtocol:
        """Completes the handshake if the worker has a token."""
        return WorkerProtocol(FRAME_BYTES_MAX, self._token, self._hello, dials=False)

    def received(self, command: int, payload: bytes) -> None:
        self.frames.append((command, payload))
        if command == Command.PROCESS_MESSAGE:
            self.messages.append((payload[:36], payload[37:]))


class ScriptedConnection(asyncio.Protocol):
    def __init__(self, worker: ScriptedWorker) -> None:
        self._worker = worker
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self.protocol = worker.protocol()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._worker.connected(self)

    def data_received(self, data: bytes) -> None:
        for event in self.protocol.receive(data):
            if isinstance(event, SendBytes) and self.transport is not None:
                self.transport.write(event.data)
        for command, payload in self._reader.feed(data):
            self._worker.received(command, payload)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None


@asynccontextmanager
async def scripted_worker(
    hello: Hello | None = None,
    *,
    first: bytes = b"",
    port: int = 0,
    reads: bool = True,
    token: str | None = None,
) -> AsyncIterator[ScriptedWorker]:
    """Without `hello` it knows only PROCESS_MESSAGE and ACK_MESSAGE."""
    found = ScriptedWorker(hello, first, token)
    found.reads = reads
    await found.open(port)
    try:
        yield found
    finally:
        found.close()


class RawWorker:
    """A third-party worker on plain sockets. It sends only what the test writes."""

    def __init__(self, *, reads: bool = True) -> None:
        self.received = bytearray()
        self.connections = 0
        self._reads = reads
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> RawWorker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            self._server.close()

    def send(self, data: bytes) -> None:
        self._writers[-1].write(data)

    def hang_up(self) -> None:
        self._writers[-1].close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        while self._reads:
            data = await reader.read(65536)
            if not data:
                return
            self.received += data
        await asyncio.Event().wait()


@dataclass
class RecordedEvents(WorkerConnectionEvents):
    """Records the callbacks and settles messages as a dispatcher would."""

    acks: list[bytes] = field(default_factory=list)
    foreign: int = 0
    rejections: list[RejectionReceived] = field(default_factory=list)
    losses: list[list[bytes]] = field(default_factory=list)

    def on_acknowledged(self, connection: WorkerConnection, ids: object) -> None:
        assert isinstance(ids, list)
        self.acks += ids
        self.foreign += connection.settle(ids)

    def on_rejected(self, connection: WorkerConnection, rejection: RejectionReceived) -> None:
        self.rejections.append(rejection)
        connection.settle([rejection.message_id])

    def on_lost(self, connection: WorkerConnection, unacknowledged: object) -> None:
        assert isinstance(unacknowledged, list)
        self.losses.append(unacknowledged)

    def on_free_slots(self) -> None:
        pass


class PoolHarness:
    """A worker pool with its metrics, its recorded events and its tasks."""

    def __init__(self, group: asyncio.TaskGroup, options: WorkerConnectionOptions) -> None:
        self.events = RecordedEvents()
        self.metrics = DispatcherMetrics()
        self.pool = WorkerPool(options, self.events, self.metrics, SystemClock())
        self._group = group

    def connect_to(self, *addresses: str) -> None:
        self.pool.connect_to(addresses, self._group)

    async def connect(self, *workers: ScriptedWorker) -> list[WorkerConnection]:
        """Connect to one worker after another, so that round robin follows this order."""
        addresses = [connection.address for connection in self.pool.connections]
        for worker in workers:
            addresses.append(worker.address)
            self.connect_to(*addresses)
            await self.wait_open(worker)
        return [self.connection(worker) for worker in workers]

    async def wait_open(self, worker: ScriptedWorker) -> WorkerConnection:
        """Wait until the connection to a worker has free slots."""

        def is_open() -> bool:
            return any(
                connection.free_slots
                for connection in self.pool.connections
                if connection.address == worker.address
            )

        await eventually(is_open, DEADLINE_S)
        return self.connection(worker)

    def connection(self, worker: ScriptedWorker) -> WorkerConnection:
        (found,) = [each for each in self.pool.connections if each.address == worker.address]
        return found


def connection_options(
    token: str | None = None, window: int = 100, heartbeat_s: float = 30.0, name: str = "d1"
) -> WorkerConnectionOptions:
    return WorkerConnectionOptions(token, None, FRAME_BYTES_MAX, window, heartbeat_s, name)


@asynccontextmanager
async def pool_harness(
    options: WorkerConnectionOptions | None = None,
) -> AsyncIterator[PoolHarness]:
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        found = PoolHarness(group, options or connection_options())
        try:
            yield found
        finally:
            found.pool.close()


def messages_of(count: int, payload: bytes = b"{}") -> list[DispatchedMessage]:
    return [(message_id, payload) for message_id in new_ids(count)]


async def arrived(peers: list[ScriptedWorker], count: int) -> None:
    await eventually(lambda: sum(len(each.messages) for each in peers) >= count, DEADLINE_S)


async def has_free_slots(connection: WorkerConnection, count: int) -> None:
    await eventually(lambda: connection.free_slots == count, DEADLINE_S)


async def one_more_beat(peer: ScriptedWorker) -> None:
    beats = len(peer.frames)
    await eventually(lambda: len(peer.frames) > beats, DEADLINE_S)


def worker(window: int = 100, name: str = "") -> Hello:
    return Hello(consumer_id=name, window=window, completes=True)
