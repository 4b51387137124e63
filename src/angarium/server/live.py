"""`GET /v1/live`: the overview of `GET /v1/dashboard` every second, as server-sent events.

All clients share one sample, and no sample is taken without a client. If a sample fails because
Redis is unavailable, the stream sends the error as an event and continues, so a page need not
reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError, Overloaded, RedisUnavailable
from angarium.runtime.http_api import HttpApi, Operation, Problem
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.server.dashboard.overview import OverviewSampler

SAMPLE_S = 1.0
# Longer than a sample takes.
SAMPLE_S_MAX = 2.5


class LiveOverview(Service):
    """Samples while clients are connected. Each event is encoded once for all clients."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("live", clock=runtime.clock)
        self._sampler = OverviewSampler(runtime)
        self._clients = 0
        self._clients_max = runtime.options.limits.live_clients_max
        self._event = b""
        self._sampled = asyncio.Condition()

    async def on_start(self) -> None:
        self.loop("sample", self.run_once, SAMPLE_S)

    async def on_quiet(self) -> None:
        async with self._sampled:
            self._sampled.notify_all()

    async def run_once(self) -> bool:
        """Returns whether a sample was taken."""
        if not self._clients:
            return False
        event = await self._sample()
        async with self._sampled:
            self._event = event
            self._sampled.notify_all()
        return True

    async def _sample(self) -> bytes:
        try:
            async with asyncio.timeout(SAMPLE_S_MAX):
                return _event(b"overview", await self._sampler.sample())
        except TimeoutError:
            return _trouble_event(RedisUnavailable(f"no sample within {SAMPLE_S_MAX} s"))
        except AngariumError as error:
            return _trouble_event(error)

    async def follow(self, _: Request) -> Response:
        if self._clients >= self._clients_max:
            raise Overloaded("live_clients_max", self._clients_max)
        headers = {"cache-control": "no-store"}
        return StreamingResponse(self._events(), headers=headers, media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        self._clients += 1
        try:
            # The first sample is sent at once: the page is empty until then.
            yield await self._sample()
            while self.ready:
                async with self._sampled:
                    await self._sampled.wait()
                    event = self._event
                if self.ready:
                    yield event
        finally:
            self._clients -= 1


def _trouble_event(error: AngariumError) -> bytes:
    problem = Problem(type(error).__name__, error.http_status, str(error), error.code)
    return _event(b"trouble", problem)


def _event(name: bytes, value: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(value))


def http_api(runtime: Runtime, app: Application) -> HttpApi:
    live = LiveOverview(runtime)
    operation = Operation(
        "GET",
        "/v1/live",
        "follow_live",
        "The overview of all modules once a second, as server-sent events",
        live.follow,
        answers={200: str},
        content="text/event-stream",
    )
    return HttpApi("live", [operation], live)
