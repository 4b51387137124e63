"""An API in this process with this module's HTTP API, and a client that asks it."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from angarium.runtime.runtime import Runtime
from angarium.server.http import Api
from angarium.transactions.http import http_api
from tests.transactions.app import app


class Asker:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self.url = f"http://127.0.0.1:{port}"

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        headers = {"content-type": "application/json"}
        async with self._session.request(
            method, self.url + path, data=data, headers=headers
        ) as response:
            return response.status, await response.json(content_type=None)

    async def lines(self, path: str) -> AsyncIterator[str]:
        async with self._session.get(self.url + path) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.content:
                yield line.decode().rstrip("\n")


@asynccontextmanager
async def asker(port: int) -> AsyncIterator[Asker]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Asker(session, port)


@asynccontextmanager
async def api(runtime: Runtime) -> AsyncIterator[Asker]:
    """Needs a runtime with `http={"port": 0}`."""
    service = Api(runtime, [http_api(runtime, app)])
    await service.start()
    try:
        async with asker(service.ports["http"]) as found:
            yield found
    finally:
        await service.stop(10)
