"""A TCP proxy that injects faults between a client and a server on the loopback.

Faults are set while connections are open and take effect at once. All methods must be called in the
loop's thread; `ThreadedFaultProxy` is for tests without a loop.

`half_open` discards bytes, so `heal` resets the connections that lost some: a TCP stream never has
a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Literal, Self, TypeVar

from tests.kit.ports import ATTEMPTS_MAX, free_port

T = TypeVar("T")
Towards = Literal["server", "client"]
Direction = Literal["both", "to_server", "to_client"]

CHUNK_BYTES = 65_536
QUEUE_CHUNKS_MAX = 256  # what may be under way in one direction of one delayed connection
SLICE_S = 0.02  # a throttled connection gets its bytes in portions of this length
CONNECT_TIMEOUT_S = 5.0


class FaultProxy:
    """Use as `async with FaultProxy("127.0.0.1", server.port) as proxy:`."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.port = 0
        self.connections = 0  # ever accepted
        self.bytes_passed: dict[Towards, int] = {"server": 0, "client": 0}
        self.bytes_swallowed = 0
        self._links: set[_Link] = set()
        self._listener: socket.socket | None = None
        self._tasks = asyncio.TaskGroup()
        self._change = asyncio.Event()
        self._delay_s = 0.0
        self._bytes_per_s: float | None = None
        self._swallowing: frozenset[Towards] = frozenset()
        self._budget: dict[Towards, int | None] = {"server": None, "client": None}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        for _ in range(ATTEMPTS_MAX):
            self.port = free_port()
            with contextlib.suppress(OSError):
                self.accept()
                return self
        raise OSError("no port to listen at")

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        for link in self._links:
            link.task.cancel()
        # The test's own error is not the group's: given to it, it would come back wrapped.
        await self._tasks.__aexit__(None, None, None)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def open_connections(self) -> int:
        return len(self._links)

    def retarget(self, port: int, host: str = "127.0.0.1") -> None:
        """New connections go elsewhere: a failover behind an address that stays."""
        self.target = (host, port)

    # Faults

    def delay(self, seconds: float) -> None:
        """Everything takes this much longer, each way; bytes stay in order."""
        self._delay_s = seconds
        self._changed()

    def throttle(self, bytes_per_s: float | None) -> None:
        """No connection passes more than this, each way."""
        self._bytes_per_s = bytes_per_s
        self._changed()

    def half_open(self, direction: Direction = "both") -> None:
        """Connections stay open, and what is sent in that direction vanishes, also a close."""
        both: frozenset[Towards] = frozenset(("server", "client"))
        one: Towards = "server" if direction == "to_server" else "client"
        self._swallowing = both if direction == "both" else frozenset((one,))
        self._changed()

    def cut(self) -> None:
        """Reset every connection now; new ones are still accepted."""
        for link in list(self._links):
            link.reset()

    def cut_after(self, bytes_count: int, towards: Towards = "client") -> None:
        """Once this many more bytes have passed, the connection that carried them ends there.

        The receiver gets exactly the bytes up to the cut. 0 towards the client: the server
        takes a request, and its answer is lost. It happens once.
        """
        self._budget[towards] = bytes_count

    def refuse(self) -> None:
        """New connections are refused by the kernel; those that are open stay."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def accept(self) -> None:
        """Listen again, at the same port."""
        if self._listener is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(("127.0.0.1", self.port))
            listener.listen(1_024)
            asyncio.get_running_loop().add_reader(listener, self._on_connection, listener)
        except BaseException:
            listener.close()
            raise
        self._listener = listener

    def heal(self) -> None:
        """No more faults. Delayed bytes arrive at once; connections with a hole are reset."""
        self._delay_s, self._bytes_per_s, self._swallowing = 0.0, None, frozenset()
        self._budget = {"server": None, "client": None}
        for link in list(self._links):
            if link.has_hole:
                link.reset()
        self.accept()
        self._changed()

    # The inside

    def _changed(self) -> None:
        """Wake whoever waits for a delay that may have just ended."""
        self._change.set()
        self._change = asyncio.Event()

    def _on_connection(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setblocking(False)
        self.connections += 1
        link = _Link(self, client)
        link.task = self._tasks.create_task(link.run())
        self._links.add(link)
        # By callback and not in the task: one that is cancelled before its first step runs
        # no `finally`.
        link.task.add_done_callback(lambda _: self._end(link))

    def _end(self, link: _Link) -> None:
        link.close()
        self._links.discard(link)

    async def _hold(self, arrived_s: float) -> None:
        """Wait out the delay as it is now, not as it was when the bytes came."""
        loop = asyncio.get_running_loop()
        while (left_s := arrived_s + self._delay_s - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._change.wait(), left_s)

    async def _pace(self, count: int) -> None:
        if self._bytes_per_s is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._change.wait(), count / self._bytes_per_s)

    def _slice_bytes(self) -> int:
        if self._bytes_per_s is None:
            return CHUNK_BYTES
        return max(1, int(self._bytes_per_s * SLICE_S))

    def _allowance(self, towards: Towards, count: int) -> tuple[int, bool]:
        """How many of these bytes may pass, and whether the cut comes after them."""
        budget = self._budget[towards]
        if budget is None:
            return count, False
        if count < budget:
            self._budget[towards] = budget - count
            return count, False
        self._budget[towards] = None
        return budget, True


class _CutHere(Exception):
    """The budget of `cut_after` is used up."""


class _Link:
    """One client connection and its connection to the server."""

    task: asyncio.Task[None]

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._writers: list[asyncio.StreamWriter] = []
        self.has_hole = False

    def reset(self) -> None:
        """RST to both sides."""
        for writer in self._writers:
            _reset(writer)
        self.task.cancel()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        if not self._writers:
            self._client.close()

    async def run(self) -> None:
        client_reader, client = await asyncio.open_connection(sock=self._client)
        self._writers.append(client)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                server_reader, server = await asyncio.open_connection(*self._proxy.target)
        except OSError:  # of which the time-out is one
            _reset(client)
            return
        self._writers.append(server)
        await self._pump_both(client_reader, client, server_reader, server)

    async def _pump_both(
        self,
        client_reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump("server", client_reader, server))
                pumps.create_task(self._pump("client", server_reader, client))
        except* (OSError, _CutHere) as errors:
            if errors.subgroup(OSError) is not None:
                for writer in self._writers:
                    _reset(writer)

    async def _pump(
        self, towards: Towards, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Two halves with a queue between them, so that a delay does not narrow the stream."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUE_CHUNKS_MAX)
        async with asyncio.TaskGroup() as halves:
            halves.create_task(self._unnoticed(self._take(reader, queue)))
            halves.create_task(self._unnoticed(self._give(towards, queue, writer)))

    async def _unnoticed(self, half: Coroutine[None, None, None]) -> None:
        """While bytes vanish, the news that one side is gone vanishes too."""
        try:
            await half
        except OSError:
            if not self._proxy._swallowing:
                raise
            self.has_hole = True
            await asyncio.Future()  # until cut or heal

    async def _take(
        self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await reader.read(CHUNK_BYTES)
            await queue.put((loop.time(), data))
            if not data:
                return

    async def _give(
        self,
        towards: Towards,
        queue: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
    ) -> None:
        proxy = self._proxy
        while True:
            arrived_s, data = await queue.get()
            await proxy._hold(arrived_s)
            if towards in proxy._swallowing:
                self.has_hole = True
                proxy.bytes_swallowed += len(data)
                if not data:
                    await asyncio.Future()  # until cut or heal
            elif data:
                await self._write(towards, data, writer)
            else:
                if not writer.transport.is_closing():
                    writer.write_eof()
                return

    async def _write(self, towards: Towards, data: bytes, writer: asyncio.StreamWriter) -> None:
        proxy = self._proxy
        while data:
            count, cut = proxy._allowance(towards, min(len(data), proxy._slice_bytes()))
            await proxy._pace(count)
            if writer.transport.is_closing():
                raise ConnectionResetError("this side is gone")  # uvloop would say RuntimeError
            writer.write(data[:count])
            proxy.bytes_passed[towards] += count
            if cut:
                raise _CutHere
            await writer.drain()
            data = data[count:]


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST: a linger time of zero throws away what is not sent yet."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError, ValueError):
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


class ThreadedFaultProxy:
    """A FaultProxy on a loop in a thread of its own: `with ThreadedFaultProxy(...) as proxy:`.

    Each method returns when the fault is set.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._ready: Future[tuple[asyncio.AbstractEventLoop, FaultProxy]] = Future()
        self._over: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop, self._proxy = self._ready.result(10.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10.0)

    @property
    def port(self) -> int:
        return self._proxy.port

    @property
    def url(self) -> str:
        return self._proxy.url

    def do(self, action: Callable[[FaultProxy], T]) -> T:
        """Run something on the proxy in its thread: `proxy.do(lambda p: p.cut())`."""
        done: Future[T] = Future()

        def act() -> None:
            try:
                done.set_result(action(self._proxy))
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        return done.result(10.0)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        try:
            async with FaultProxy(*self._target) as proxy:
                self._ready.set_result((asyncio.get_running_loop(), proxy))
                await self._over.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise
