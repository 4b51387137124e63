"""Bytes on a socket, as an attacker would write them: nothing is corrected on the way."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from angarium.client.application import Angarium
from angarium.runtime.runtime import Runtime
from angarium.server.http import build
from tests.kit.sample import sample_runtime

PATIENCE_S = 30.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def api(redis_url: str, **overrides: Any) -> AsyncIterator[tuple[Runtime, int]]:
    """An API in this process, and its port."""
    overrides["http"] = {"port": 0, **overrides.get("http", {})}
    async with sample_runtime(redis_url, **overrides) as runtime:
        service = build(runtime, Angarium())
        await service.start()
        try:
            yield runtime, service.ports["http"]
        finally:
            await service.stop(5)


@asynccontextmanager
async def dialled(port: int, **named: Any) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **named)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def said(port: int, *parts: bytes, **named: Any) -> bytes:
    """All that is answered until the other side closes; nothing when it resets."""
    async with dialled(port, **named) as (reader, writer):
        for part in parts:
            writer.write(part)
        return await heard(reader)


async def heard(reader: asyncio.StreamReader) -> bytes:
    found = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while data := await reader.read(65_536):
                found += data
    except ConnectionError:
        pass
    return found


def request(
    line: str, headers: Mapping[str, str] | None = None, body: bytes = b"", *, close: bool = True
) -> bytes:
    told = {"Host": "127.0.0.1", **(headers or {})}
    if body:
        told["Content-Length"] = str(len(body))
    if close:
        told["Connection"] = "close"
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"{line} HTTP/1.1\r\n{head}\r\n".encode() + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def handshake(headers: Mapping[str, str] | None = None, path: str = "/") -> bytes:
    """The beginning of a WebSocket."""
    told = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **(headers or {}),
    }
    return request(f"GET {path}", told, close=False)


def frame(payload: bytes, first_byte: int = 0x81) -> bytes:
    """A masked frame; 0x81 is a whole text message, 0xC1 one that says it is compressed."""
    mask = b"\x01\x02\x03\x04"
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 65_536:
        length = bytes([0x80 | 126]) + size.to_bytes(2, "big")
    else:
        length = bytes([0x80 | 127]) + size.to_bytes(8, "big")
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return bytes([first_byte]) + length + mask + masked
