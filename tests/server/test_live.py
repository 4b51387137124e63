"""`/v1/live` sends the overview every second, and an error while Redis is unavailable."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from angarium.client.application import Angarium
from angarium.server.http import build
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    name = ""
    async for line in response.content:
        text = line.decode().strip()
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


async def test_a_stream_continues_after_redis_was_unavailable(
    no_settings: object,
) -> None:
    hasty = {"call_timeout_ms": 500, "unavailable_timeout_ms": 500}
    with ServerProcess(aof=True) as server:
        async with sample_runtime(server.url, http={"port": 0}, redis=hasty) as runtime:
            api = build(runtime, Angarium())
            await api.start()
            try:
                url = f"http://127.0.0.1:{api.ports['http']}/v1/live"
                timeout = aiohttp.ClientTimeout(total=90)
                async with (
                    aiohttp.ClientSession(timeout=timeout) as session,
                    session.get(url) as response,
                ):
                    assert response.content_type == "text/event-stream"
                    stream = events(response)
                    for _ in range(2):
                        name, overview = await anext(stream)
                        assert name == "overview"
                        assert {"modules", "rates", "processes", "journal"} <= set(overview)
                    server.kill()
                    while name == "overview":
                        name, problem = await anext(stream)
                    assert name == "trouble"
                    assert problem["status"] == 503
                    server.restart()
                    while name == "trouble":
                        name, overview = await anext(stream)
                    assert name == "overview"
            finally:
                await api.stop(5)
