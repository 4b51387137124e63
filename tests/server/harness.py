"""Runs the role `api` in the test's process, and calls it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from angarium.client.application import Angarium
from angarium.runtime.runtime import Runtime
from angarium.server.http import build
from tests.kit.sample import sample_settings


class Caller:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def __call__(
        self, method: str, path: str, token: str | None = None, **named: Any
    ) -> tuple[int, Any]:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        url = f"{self.url}{path}"
        async with self._session.request(method, url, headers=headers, **named) as response:
            text = await response.text()
            self.headers = response.headers
            return response.status, json.loads(text) if text.startswith(("{", "[")) else text


@asynccontextmanager
async def running_api(
    redis_url: str, *, prefix: str | None = None, **http: Any
) -> AsyncIterator[tuple[Runtime, Caller]]:
    """`prefix`: that of an installation that exists."""
    settings = sample_settings(redis_url, http={"port": 0, **http})
    if prefix is not None:
        settings = settings.model_copy(update={"prefix": prefix})
    async with Runtime.open(settings) as runtime:
        api = build(runtime, Angarium())
        await api.start()
        try:
            async with aiohttp.ClientSession() as session:
                yield runtime, Caller(session, f"http://127.0.0.1:{api.ports['http']}")
        finally:
            await api.stop(5)
