"""`GET /v1/live`: the building as it stands, again and again, as server-sent events.

One sample is taken for all who listen, and none while nobody does. What can't be taken, because
Redis is away, is told as an event too, and the stream goes on: a page need not do anything to
recover. The sample is that of `GET /v1/dashboard`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from angarium.runtime.application import Angarium
from angarium.runtime.errors import AngariumError, Overloaded, RedisUnavailable
from angarium.runtime.http_api import HttpApi, Operation, Problem
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.server.dashboard.overview import Sampler

SAMPLE_S = 1.0
# Longer than a sample takes, shorter than anyone looks at an old page without wondering.
SAMPLE_S_MAX = 2.5
LISTENERS_MAX = 1_000


class Live(Service):
    """Samples while somebody listens; each event is encoded once for all of them."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("live", clock=runtime.clock)
        self._sampler = Sampler(runtime)
        self._listeners = 0
        self._event = b""
        self._fresh = asyncio.Condition()

    async def on_start(self) -> None:
        self.loop("sample", self.run_once, SAMPLE_S)

    async def on_quiet(self) -> None:
        async with self._fresh:
            self._fresh.notify_all()

    async def run_once(self) -> bool:
        """Whether anybody wanted a sample."""
        if not self._listeners:
            return False
        event = await self._sample()
        async with self._fresh:
            self._event = event
            self._fresh.notify_all()
        return True

    async def _sample(self) -> bytes:
        try:
            async with asyncio.timeout(SAMPLE_S_MAX):
                return _event(b"overview", await self._sampler.sample())
        except TimeoutError:
            return _trouble(RedisUnavailable(f"no sample within {SAMPLE_S_MAX} s"))
        except AngariumError as error:
            return _trouble(error)

    async def follow(self, _: Request) -> Response:
        if self._listeners >= LISTENERS_MAX:
            raise Overloaded("live listeners", LISTENERS_MAX)
        headers = {"cache-control": "no-store"}
        return StreamingResponse(self._events(), headers=headers, media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        self._listeners += 1
        try:
            # At once, and not when the next sample is due: somebody looks at an empty page.
            yield await self._sample()
            while self.ready:
                async with self._fresh:
                    await self._fresh.wait()
                    event = self._event
                if self.ready:
                    yield event
        finally:
            self._listeners -= 1


def _trouble(error: AngariumError) -> bytes:
    problem = Problem(type(error).__name__, error.http_status, str(error), error.code)
    return _event(b"trouble", problem)


def _event(name: bytes, value: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(value))


def http_api(runtime: Runtime, app: Angarium) -> HttpApi:
    live = Live(runtime)
    operation = Operation(
        "GET",
        "/v1/live",
        "followLive",
        "The whole building once a second, as server-sent events",
        live.follow,
        answers={200: str},
        content="text/event-stream",
    )
    return HttpApi("live", [operation], live)
