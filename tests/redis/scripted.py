"""A server that speaks RESP and answers as a test says: for faults that no real server makes.

By default it answers the handshake and ECHO or PING as a server does, and ECHO-like commands of the
tests. `on_command` may answer anything else: bytes are sent as they are, None is the usual answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import hiredis

Words = Sequence[bytes]
Answer = bytes | None
INFO = b"redis_version:7.4.0\r\nmaxmemory_policy:noeviction\r\n"


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def array(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(parts)


def usual(words: Words) -> bytes:
    """As a server would answer, as far as the tests ask."""
    match words[0].upper():
        case b"ECHO" | b"GET":
            return bulk(words[1])
        case b"PING":
            return bulk(words[1]) if words[1:] else b"+PONG\r\n"
        case b"INFO":
            return bulk(INFO)
        case b"CONFIG":
            return array(bulk(b"appendfsync"), bulk(b"everysec"))
        case _:
            return b"+OK\r\n"


def is_fence(words: Words) -> bool:
    """A fence is 16 hexadecimal digits, a colon and a number; the handshake's has no number."""
    return words[0] in (b"ECHO", b"PING") and len(words) == 2 and words[1][16:17] == b":"


class ScriptedServer:
    """`on_command(number of the connection, words)`; `commands` is everything that came."""

    def __init__(self, on_command: Callable[[int, Words], Answer]) -> None:
        self._on_command = on_command
        self._writers: list[asyncio.StreamWriter] = []
        self.commands: list[tuple[int, Words]] = []
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def push(self, data: bytes) -> None:
        """Send this to the newest connection, unasked."""
        self._writers[-1].write(data)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self._writers.append(writer)
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65_536):
                parser.feed(data)
                while words := parser.gets():
                    self.commands.append((number, words))
                    answer = self._on_command(number, words)
                    writer.write(usual(words) if answer is None else answer)
                    if writer.is_closing():
                        return
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scripted(
    on_command: Callable[[int, Words], Answer] = lambda number, words: None,
) -> AsyncIterator[ScriptedServer]:
    script = ScriptedServer(on_command)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield script
        finally:
            for writer in script._writers:
                writer.close()
