"""One client that floods a port: `python -m tests.faults.flood_client KIND PORT SECONDS`.

It opens CONNECTIONS connections, writes on each as fast as the peer reads, reads nothing, and dials
again when it is cut off. It ends after SECONDS and prints how much it wrote.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import sys
import time
from uuid import uuid4

from angarium.dispatch.frames import encode_acknowledgements

CONNECTIONS = 200
WRITE_BYTES = 64 * 1024
STUCK_S = 1.0


def http(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def websocket() -> bytes:
    """A handshake; behind it masked frames with a call each."""
    key = base64.b64encode(os.urandom(16))
    return (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n"
    )


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
PING_FRAME = bytes([0x81, 0x80 | len(PING), 0, 0, 0, 0]) + PING
FLOODS = {
    "api": (b"", http("/v1/dispatch")),
    "metrics": (b"", http("/metrics")),
    "gateway": (websocket(), PING_FRAME),
    "ack": (b"", encode_acknowledgements([str(uuid4()).encode() for _ in range(100)])),
    "worker": (b"", b""),
}


async def flood(kind: str, port: int, until_s: float) -> tuple[int, int]:
    """Bytes written and connections opened."""
    opening, repeated = FLOODS[kind]
    chunk = repeated * max(1, WRITE_BYTES // max(1, len(repeated)))
    written = opened = 0
    while time.monotonic() < until_s:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        opened += 1
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(opening)
            while time.monotonic() < until_s and not writer.is_closing():
                writer.write(chunk)
                written += len(chunk)
                async with asyncio.timeout(STUCK_S):
                    await writer.drain()
                await asyncio.sleep(0 if chunk else 0.2)
        writer.transport.abort()
    return written, opened


async def main(kind: str, port: int, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    done = await asyncio.gather(*[flood(kind, port, until_s) for _ in range(CONNECTIONS)])
    print(
        f"{sum(each for each, _ in done) >> 20} MiB on {sum(each for _, each in done)} connections"
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
