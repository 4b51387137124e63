"""The role `api`: requests in flight, and the modules' operations."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from types import ModuleType

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from angarium.runtime.application import Application
from angarium.runtime.http_api import HttpApi, Operation, reply
from angarium.runtime.runtime import Runtime
from angarium.server import http
from angarium.server.http import Api, build
from angarium.settings import load
from tests.kit.eventually import Signal, eventually
from tests.kit.sample import sample_runtime
from tests.runtime.recorder import Recorder


class SlowApi(Api):
    """Has a page that waits for the test, and one that fails."""

    def __init__(self, runtime: Runtime) -> None:
        self.entered, self.cancelled = Signal(), Signal()
        self.release = asyncio.Event()
        routes = [Route("/slow", self.slow), Route("/broken", self.broken)]
        super().__init__(runtime, [HttpApi("slow", routes=routes)])

    async def slow(self, _: Request) -> Response:
        self.entered.fire()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.fire()
            raise
        return PlainTextResponse("done")

    async def broken(self, _: Request) -> Response:
        raise ValueError("an internal detail")


async def ask(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
        )
        return await reader.read()
    finally:
        writer.close()


def settings_for(redis_url: str) -> dict[str, object]:
    return {"redis_url": redis_url, "prefix": "http:", "http": {"port": 0}}


async def test_a_request_in_flight_is_answered_before_the_api_stops(redis_url: str) -> None:
    async with Runtime.open(load(**settings_for(redis_url))) as runtime:
        api = SlowApi(runtime)
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
    async with Runtime.open(load(**settings_for(redis_url))) as runtime:
        api = SlowApi(runtime)
        await api.start()
        asking = asyncio.ensure_future(ask(api.ports["http"], "/slow"))
        await api.entered.wait()
        await api.stop(0.2)
        assert api.stopped
        await api.cancelled.wait()
        assert b"done" not in await asking


async def test_the_api_starts_again_after_it_was_stopped(redis_url: str) -> None:
    async with Runtime.open(load(**settings_for(redis_url))) as runtime:
        api = Api(runtime)
        for _ in range(2):
            await api.start()
            assert b'"ready"' in await ask(api.ports["http"], "/readyz")
            await api.stop(10)


async def test_an_unexpected_error_is_a_problem_without_details(redis_url: str) -> None:
    async with Runtime.open(load(**settings_for(redis_url))) as runtime:
        api = SlowApi(runtime)
        await api.start()
        answer = await ask(api.ports["http"], "/broken")
        assert answer.startswith(b"HTTP/1.1 500")
        assert b"application/problem+json" in answer
        assert b"internal detail" not in answer
        await api.stop(10)


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


# Faces


def json_of(answer: bytes) -> object:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def http_api_of(service: Recorder) -> HttpApi:
    """One operation, which tells what has become of the http_api's service."""

    async def tell(_: Request) -> Response:
        return reply(service.hooks_called)

    path = f"/v1/{service.name}"
    return HttpApi(service.name, [Operation("GET", path, service.name, "", tell)], service)


async def test_a_modules_service_runs_from_the_first_request_to_the_last(
    redis_url: str,
) -> None:
    async with sample_runtime(redis_url, http={"port": 0}) as runtime:
        one, two = Recorder("one"), Recorder("two")
        api = Api(runtime, [http_api_of(one), HttpApi("bare"), http_api_of(two)])
        for _ in range(2):
            await api.start()
            port = api.ports["http"]
            assert one.ready
            assert json_of(await ask(port, "/v1/two")) == ["start"]
            await api.quiet()
            assert json_of(await ask(port, "/v1/one")) == ["start", "quiet"]
            await api.stop(30)
            for service in (one, two):
                assert service.stopped
                assert service.hooks_called == ["start", "quiet", "stop", "close"]
                service.hooks_called.clear()


async def test_services_stop_after_the_requests_in_flight(redis_url: str) -> None:
    async with sample_runtime(redis_url, http={"port": 0}) as runtime:
        service, entered, release = Recorder("one"), Signal(), asyncio.Event()

        async def hold(_: Request) -> Response:
            entered.fire()
            await release.wait()
            return reply(service.hooks_called)

        operation = Operation("GET", "/v1/hold", "hold", "", hold)
        api = Api(runtime, [HttpApi("one", [operation], service)])
        await api.start()
        port = api.ports["http"]
        asking = asyncio.ensure_future(ask(port, "/v1/hold"))
        await entered.wait(deadline_s=30)
        stopping = asyncio.ensure_future(api.stop(60))
        await eventually(lambda: refuses(port), 30)
        release.set()
        assert json_of(await asking) == ["start", "quiet"], "quiet, and not yet stopped"
        await stopping
        assert service.stopped


async def test_a_service_that_fails_to_start_stops_the_started_ones(
    redis_url: str,
) -> None:
    async with sample_runtime(redis_url, http={"port": 0}) as runtime:
        first, second, third = Recorder("one"), Recorder("two"), Recorder("three")

        async def fail() -> None:
            raise ValueError("no luck")

        second.starting = fail
        api = Api(runtime, [http_api_of(each) for each in (first, second, third)])
        with pytest.raises(ValueError, match="no luck"):
            await api.start()
        assert api.stopped
        assert first.hooks_called == ["start", "quiet", "stop", "close"]
        assert second.hooks_called == ["start", "close"]
        assert third.hooks_called == []
        assert all(each.stopped for each in (first, second, third))


async def test_without_operations_the_api_still_has_its_own_pages(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HTTP_APIS", ())
    async with sample_runtime(redis_url, http={"port": 0}) as runtime:
        api = build(runtime, Application())
        await api.start()
        port = api.ports["http"]
        page = json_of(await ask(port, "/openapi.json"))
        assert isinstance(page, dict)
        assert page["paths"] == {}
        for path in ("/", "/healthz", "/readyz", "/metrics"):
            assert (await ask(port, path)).startswith(b"HTTP/1.1 200")
        await api.stop(30)


async def test_each_listed_file_gets_the_runtime_and_the_application(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    module = ModuleType("sample_http_api")

    def http_api(runtime: Runtime, app: Application) -> HttpApi:
        given.extend((runtime, app))
        return http_api_of(Recorder("sample"))

    module.http_api = http_api  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sample_http_api", module)
    monkeypatch.setattr(http, "HTTP_APIS", ("sample_http_api",))
    async with sample_runtime(redis_url, http={"port": 0}) as runtime:
        app = Application()
        api = build(runtime, app)
        assert given == [runtime, app]
        await api.start()
        port = api.ports["http"]
        page = json_of(await ask(port, "/openapi.json"))
        assert isinstance(page, dict)
        assert list(page["paths"]) == ["/v1/sample"]
        assert json_of(await ask(port, "/v1/sample")) == ["start"]
        await api.stop(30)
