"""The role `api` inside one process: what happens to requests that are under way."""

from __future__ import annotations

import asyncio
import socket

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from angarium.core.ground import Ground
from angarium.core.settings import load
from angarium.server.http import Api
from tests.kit.eventually import Signal, eventually


class SlowApi(Api):
    """With one page more, which answers when the test lets it."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.entered, self.cancelled = Signal(), Signal()
        self.release = asyncio.Event()
        self._app.router.routes.append(Route("/slow", self.slow))
        self._app.router.routes.append(Route("/broken", self.broken))

    async def slow(self, _: Request) -> Response:
        self.entered.fire()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.fire()
            raise
        return PlainTextResponse("done")

    async def broken(self, _: Request) -> Response:
        raise ValueError("an inside story")


async def ask(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()


def settings_for(redis_url: str) -> dict[str, object]:
    return {"redis_url": redis_url, "prefix": "http:", "http": {"port": 0}}


async def test_a_request_under_way_is_answered_before_the_api_stops(redis_url: str) -> None:
    async with Ground.open(load(**settings_for(redis_url))) as ground:
        api = SlowApi(ground)
        await api.start()
        port = api.ports["http"]
        asking = asyncio.ensure_future(ask(port, "/slow"))
        await api.entered.wait()
        await api.quiet()
        assert b'"detail":"not taking work"' in await ask(port, "/readyz")
        stopping = asyncio.ensure_future(api.stop(30))
        await eventually(lambda: refuses(port))
        assert not stopping.done()
        api.release.set()
        assert (await asking).endswith(b"done")
        await stopping
        assert api.stopped


async def test_a_request_that_outlasts_the_deadline_is_cancelled_with_its_connection(
    redis_url: str,
) -> None:
    async with Ground.open(load(**settings_for(redis_url))) as ground:
        api = SlowApi(ground)
        await api.start()
        asking = asyncio.ensure_future(ask(api.ports["http"], "/slow"))
        await api.entered.wait()
        await api.stop(0.2)
        assert api.stopped
        await api.cancelled.wait()
        assert b"done" not in await asking


async def test_the_api_starts_again_after_it_was_stopped(redis_url: str) -> None:
    async with Ground.open(load(**settings_for(redis_url))) as ground:
        api = Api(ground)
        for _ in range(2):
            await api.start()
            assert b'"ready"' in await ask(api.ports["http"], "/readyz")
            await api.stop(10)


async def test_an_error_nobody_expected_is_a_problem_that_tells_nothing(redis_url: str) -> None:
    async with Ground.open(load(**settings_for(redis_url))) as ground:
        api = SlowApi(ground)
        await api.start()
        answer = await ask(api.ports["http"], "/broken")
        assert answer.startswith(b"HTTP/1.1 500")
        assert b"application/problem+json" in answer
        assert b"inside story" not in answer
        await api.stop(10)


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False
