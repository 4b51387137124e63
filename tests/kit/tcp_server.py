"""A TCP server of a test whose connections are gone when its block ends.

A connection that outlives the loop of its test is reported as a fault of whichever test runs next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def tcp_server(
    serve: Serve, host: str | None = "127.0.0.1", port: int = 0, **named: Any
) -> AsyncIterator[int]:
    """The port on which `serve` talks to each connection, which is closed when it returns."""
    tasks: set[asyncio.Task[Any] | None] = set()
    over = False

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.add(task)
        try:
            # asyncio would log the end of the test as an error of this task.
            with suppress(asyncio.CancelledError):
                if not over:
                    await serve(reader, writer)
        finally:
            writer.close()
            if over:
                writer.transport.abort()
            tasks.discard(task)

    server = await asyncio.start_server(connected, host, port, **named)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over = True
        server.close()
        for task in tasks:
            if task is not None:
                task.cancel()
        # A connection that was being accepted gets its task, and aborted transports are closed, in
        # the next turns of the loop.
        for _ in range(5):
            await asyncio.sleep(0)
