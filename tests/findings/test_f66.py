"""F66: a sender that is faster than Redis waits; the relay's memory does not grow with it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.routing.harness import envelope
from tests.security.wire import handshake

PATIENCE_S = 90.0
SENT_BYTES = 400 * 1024 * 1024
GROWTH_BYTES_MAX = 100 * 1024 * 1024
MESSAGE_BYTES = 64 * 1024
MASK = b"\x00\x00\x00\x00"  # the payload stands in the frame as it is


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def frame(payload: bytes, first_byte: int = 0x82) -> bytes:
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + size.to_bytes(8, "big")
    return bytes([first_byte]) + length + MASK + payload


def message(number: int) -> bytes:
    return envelope("key", text=f"{number}-".ljust(MESSAGE_BYTES, "x"))


def number_of(item: bytes) -> int:
    body = base64.urlsafe_b64decode(json.loads(item)["payload"])
    return int(json.loads(body)["ciphertext"].partition("-")[0])


class Sender:
    """Sends frames as fast as the other side takes them, and reads nothing."""

    def __init__(self, port: int, frames: Iterable[bytes]) -> None:
        self._port = port
        self._frames = frames
        self._socket: socket.socket
        self.sent_bytes = 0
        self.whole_frames = 0
        self.ended = False
        self.stop = False

    def has_sent(self, frames: int) -> bool:
        return self.whole_frames >= frames

    async def send(self) -> None:
        loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        await loop.sock_sendall(self._socket, handshake())
        head = b""
        while b"\r\n\r\n" not in head:
            head += await loop.sock_recv(self._socket, 4096)
        try:
            for each in self._frames:
                if self.stop or self.sent_bytes >= SENT_BYTES:
                    break
                await loop.sock_sendall(self._socket, each)
                self.sent_bytes += len(each)
                self.whole_frames += 1
        except ConnectionError:
            pass
        self.ended = True

    def close(self) -> None:
        self._socket.close()


@asynccontextmanager
async def sending(port: int, frames: Iterable[bytes]) -> AsyncIterator[Sender]:
    sender = Sender(port, frames)
    task = asyncio.create_task(sender.send())
    try:
        yield sender
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        sender.close()


async def stalled_or_ended(sender: Sender) -> None:
    """Until the sender has sent all, or nothing of it was taken for a second."""
    loop = asyncio.get_running_loop()
    seen = (-1, loop.time())

    def condition() -> bool:
        nonlocal seen
        if sender.sent_bytes != seen[0]:
            seen = (sender.sent_bytes, loop.time())
        return sender.ended or (sender.sent_bytes > 0 and loop.time() - seen[1] > 1.0)

    await eventually(condition, PATIENCE_S)


@pytest.fixture
def redis() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@asynccontextmanager
async def relay(redis: ServerProcess) -> AsyncIterator[RoleProcess]:
    settings = {
        "ANGARIUM_REDIS_URL": redis.url,
        # Longer than the test pauses Redis.
        "ANGARIUM_REDIS__CALL_TIMEOUT_MS": "120000",
        "ANGARIUM_ROUTING__INBOUND": '[["http","127.0.0.1","0"],["ws","127.0.0.1","0"]]',
    }
    async with RoleProcess(["serve", "relay"], settings) as role:
        yield role


async def test_one_sender_on_a_websocket_fills_no_memory_and_loses_nothing(
    redis: ServerProcess,
) -> None:
    async with relay(redis) as role:
        frames = (frame(message(number)) for number in itertools.count())
        before = resident_bytes(role.pid)
        redis.pause()
        async with sending(role.port_of("relay", "ws"), frames) as sender:
            for _ in range(2):
                await stalled_or_ended(sender)
                grown = resident_bytes(role.pid) - before
                assert grown < GROWTH_BYTES_MAX, f"{sender.sent_bytes} bytes were taken at once"
                # It goes on when Redis does.
                redis.resume()
                frames_before = sender.whole_frames
                await eventually(partial(sender.has_sent, frames_before + 1), PATIENCE_S)
                redis.pause()
            sender.stop = True
            redis.resume()
            client = redis.client()
            await eventually(lambda: sender.ended, PATIENCE_S)
            sent = sender.whole_frames
            await eventually(lambda: client.llen("acapy_inbound_key") == sent, PATIENCE_S)
        items = client.lrange("acapy_inbound_key", 0, -1)
        assert [number_of(item) for item in items] == list(range(sent))


async def test_pings_whose_answers_nobody_reads_fill_no_memory(redis: ServerProcess) -> None:
    async with relay(redis) as role:
        pings = itertools.repeat(frame(b"p" * 100, 0x89) * 1_000)
        before = resident_bytes(role.pid)
        async with sending(role.port_of("relay", "ws"), pings) as sender:
            await stalled_or_ended(sender)
            assert resident_bytes(role.pid) - before < GROWTH_BYTES_MAX
            assert not sender.ended


async def test_requests_that_begin_and_do_not_end_are_bounded_together(
    redis: ServerProcess,
) -> None:
    """The relay holds 64 MiB of them; these bring 210 MB."""
    begun = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 7_000_000
    loop = asyncio.get_running_loop()
    async with relay(redis) as role, contextlib.AsyncExitStack() as stack:
        before = resident_bytes(role.pid)
        peers = []
        for _ in range(30):
            peer = stack.enter_context(socket.socket())
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", role.port_of("relay", "http")))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(peer, begun)
            peers.append(peer)
        assert resident_bytes(role.pid) - before < GROWTH_BYTES_MAX
        # Those that went over it were told so.
        async with asyncio.timeout(PATIENCE_S):
            assert (await loop.sock_recv(peers[-1], 100)).startswith(b"HTTP/1.1 503 ")
