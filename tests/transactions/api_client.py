"""An API server in this process with this module's HTTP API, and a client that calls it."""

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


class ApiClient:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}"

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the JSON body of the response."""
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        headers = {"content-type": "application/json"}
        async with self._session.request(
            method, self._url + path, data=data, headers=headers
        ) as response:
            return response.status, await response.json(content_type=None)

    async def metrics(self) -> str:
        async with self._session.get(f"{self._url}/metrics") as response:
            return await response.text()

    async def head(self, path: str) -> int:
        async with self._session.head(self._url + path) as response:
            return response.status

    async def lines(self, path: str) -> AsyncIterator[str]:
        """The lines of an event stream."""
        async with self._session.get(self._url + path) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.content:
                yield line.decode().rstrip("\n")


@asynccontextmanager
async def api_client(port: int) -> AsyncIterator[ApiClient]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield ApiClient(session, port)


@asynccontextmanager
async def api(runtime: Runtime) -> AsyncIterator[ApiClient]:
    """The runtime needs the setting `http={"port": 0}`."""
    service = Api(runtime, [http_api(runtime, app)])
    await service.start()
    try:
        async with api_client(service.ports["http"]) as client:
            yield client
    finally:
        await service.stop(10)
