"""Both ends of the routing benchmark: senders that post, a sink that takes, an app that counts.

Written on bare protocols, so that what is measured is the relay and the deliverer and not the
load. `app` is the inbox's application; it counts in Redis, once in a while, what it has handled.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from angarium import Angarium
from angarium.routing.items import InboundMessage

app = Angarium()


@app.inbox()
async def handle(message: InboundMessage) -> None:
    """The least a handler can do."""


def envelope(kid: str, size_bytes: int = 600) -> bytes:
    header = {"typ": "JWM/1.0", "recipients": [{"encrypted_key": "x" * 64, "header": {"kid": kid}}]}
    protected = base64.urlsafe_b64encode(json.dumps(header).encode()).decode()
    outer = {"protected": protected, "iv": "x" * 16, "ciphertext": "y" * size_bytes, "tag": "z"}
    return json.dumps(outer).encode()


def request(body: bytes) -> bytes:
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Sender(asyncio.Protocol):
    """One connection that posts the next message when the last was answered."""

    def __init__(self, requests: Iterator[bytes], done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._done = done
        self._heard = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        self._heard += data
        end = self._heard.find(b"\r\n\r\n")
        if end < 0:
            return
        assert self._heard.startswith(b"HTTP/1.1 200"), self._heard[:300]
        self._heard = b""
        self._next()

    def _next(self) -> None:
        message = next(self._requests, None)
        if message is None:
            self._transport.close()
            if not self._done.done():
                self._done.set_result(None)
        else:
            self._transport.write(message)


async def post_all(port: int, requests: Sequence[bytes], connections: int) -> None:
    """Every request once, over that many connections, each waiting for its answers."""
    loop = asyncio.get_running_loop()
    shared = iter(requests)
    waiting = []
    for _ in range(connections):
        done: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(partial(Sender, shared, done), "127.0.0.1", port)
        waiting.append(done)
    await asyncio.gather(*waiting)


class Sink(asyncio.Protocol):
    """Answers each POST with 200; counts them."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._counter.add()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


class Counter:
    def __init__(self) -> None:
        self._count = 0
        self._wanted = 0
        self._reached: asyncio.Future[None] | None = None

    def add(self) -> None:
        self._count += 1
        if self._reached is not None and self._count >= self._wanted and not self._reached.done():
            self._reached.set_result(None)

    async def more(self, count: int, start: Any) -> None:
        """Wait until so many more have come since `start()` was called."""
        self._wanted = self._count + count
        self._reached = asyncio.get_running_loop().create_future()
        await start()
        await self._reached


async def open_sink(counter: Counter) -> tuple[asyncio.Server, int]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Sink(counter), "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]
