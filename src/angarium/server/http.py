"""The role `api`: the HTTP server for operations, the dashboard, probes and Prometheus.

It runs Starlette on uvicorn without uvicorn's signal handlers: the host handles signals. Every
error is problem+json with the code of its class. `/healthz` says that the process runs, `/readyz`
also that it accepts work and that Redis answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import angarium
from angarium.lake.filed import transactions_of
from angarium.modules import MODULES
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError, RedisUnavailable, SettingInvalid
from angarium.runtime.http_api import (
    Handle,
    HttpApi,
    Operation,
    openapi,
    problem,
    problem_of,
    reply,
    routes,
)
from angarium.runtime.journal import JournalMetrics
from angarium.runtime.process_report import INTERVAL_S
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import CommonSettings
from angarium.runtime.sockets import is_loopback, listen
from angarium.runtime.tokens import from_settings
from angarium.server.access import TOKEN_READ_INTERVAL_S, Access, Unauthorized
from angarium.server.connections import limited
from angarium.server.dashboard.page import Files, index, wants_page
from angarium.server.fast_routes import ErrorResponse, FastRoutes
from angarium.server.process_metrics import ProcessMetrics
from angarium.server.traced import traced_handle
from angarium.settings import AccessMode, Settings

# Files with operations of the API: each has `http_api(runtime, app)`.
HTTP_APIS: tuple[str, ...] = (
    "angarium.server.processes",
    *(module.http for module in MODULES if module.http),
    "angarium.server.dashboard.http_api",
    "angarium.server.live",
    "angarium.server.search",
)
# Probes time out after 1 s by default; a 503 must arrive before that.
READY_S_MAX = 0.8
# At least as often as Prometheus usually scrapes.
JOURNAL_READ_INTERVAL_S = 5.0
# All requests are answered by then; the services only close their connections.
HTTP_API_STOP_S = 1.0
# The port is bound by then; the rest of the start does no I/O.
START_S_MAX = 10.0


def check(settings: Settings, app: Application) -> None:
    """Refuse a port in use or an invalid token before Redis is used."""
    if settings.access is AccessMode.OPEN and not is_loopback(settings.http.host):
        problem = f"the API would listen on {settings.http.host} for everybody"
        raise SettingInvalid("ANGARIUM_ACCESS", problem, "use auto or tokens")
    from_settings([each.get_secret_value() for each in settings.http.tokens])
    _listen(settings).close()


def build(runtime: Runtime, app: Application) -> Service:
    # A transaction that neither Redis nor the database has may be in the lake.
    options = {"angarium.transactions.http": {"lake_lookup": transactions_of(runtime.settings)}}
    http_apis = [
        importlib.import_module(module).http_api(runtime, app, **options.get(module, {}))
        for module in HTTP_APIS
    ]
    return Api(runtime, http_apis)


def _listen(settings: CommonSettings) -> socket.socket:
    return listen(
        settings.http.host,
        settings.http.port,
        "ANGARIUM_HTTP__PORT",
        host_setting="ANGARIUM_HTTP__HOST",
    )


class Api(Service):
    def __init__(self, runtime: Runtime, http_apis: Sequence[HttpApi] = ()) -> None:
        super().__init__("api")
        self._runtime = runtime
        self._http_apis = http_apis
        self._processes = ProcessMetrics(runtime)
        self.access = Access(runtime)
        # Reports of other processes are kept apart from this process's own metrics.
        self.reported = CollectorRegistry()
        self.reported.register(self._processes)
        self._app = application(self, http_apis)
        self._up = asyncio.Event()
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        self._socket = _listen(self._runtime.settings)
        self.ports = {"http": self._socket.getsockname()[1]}
        await self.access.run_once()  # before the first request
        for service in self._services:
            await service.start()
        self._serving = self.spawn("http", self._serve)
        self.loop("journal", JournalMetrics(self._runtime).run_once, JOURNAL_READ_INTERVAL_S)
        self.loop("processes", self._processes.run_once, INTERVAL_S)
        self.loop("tokens", self.access.run_once, TOKEN_READ_INTERVAL_S)
        async with asyncio.timeout(START_S_MAX):
            await self._up.wait()

    @property
    def _services(self) -> list[Service]:
        return [http_api.service for http_api in self._http_apis if http_api.service is not None]

    async def on_quiet(self) -> None:
        for service in self._services:
            await service.quiet()

    async def on_stop(self) -> None:
        if self._server is not None and self._serving is not None:
            # uvicorn closes only its copy. While this socket is open, the kernel accepts
            # connections that no one answers.
            self._close_socket()
            self._server.should_exit = True
            await asyncio.wait({self._serving})

    async def on_close(self) -> None:
        for service in self._services:
            await service.stop(HTTP_API_STOP_S)
        self._up.clear()
        self._close_socket()

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def guarded(self, operation: Operation) -> Handle:
        """The handler with access control, and with a span if tracing is on."""
        handle, tracing = self.access.guarded(operation), self._runtime.tracing
        return handle if tracing is None else traced_handle(operation, handle, tracing)

    async def check_ready(self) -> None:
        """Raises unless the process accepts work and Redis answers in time."""
        if not self.ready:
            raise HTTPException(503, "not taking work")
        try:
            async with asyncio.timeout(READY_S_MAX):
                await self._runtime.redis.call("PING")
        except TimeoutError:
            raise RedisUnavailable(f"Redis did not answer within {READY_S_MAX} s") from None

    async def _serve(self) -> None:
        assert self._socket is not None
        config = uvicorn.Config(
            self._app,
            http=limited(self._runtime.settings.limits.http_connections_max),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # A browser must not take data of users for a script or a page.
            headers=[("x-content-type-options", "nosniff")],
        )
        self._server = _Server(config, self._up)
        # uvicorn closes the socket it gets; a restart needs the original.
        await self._server.serve(sockets=[self._socket.dup()])


class _Server(uvicorn.Server):
    """uvicorn without signal handlers. Sets `up` when it serves, and cleans up when cancelled."""

    def __init__(self, config: uvicorn.Config, up: asyncio.Event) -> None:
        super().__init__(config)
        self._up = up

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        except asyncio.CancelledError:
            # uvicorn does not close its listeners and requests when it is cancelled.
            for server in getattr(self, "servers", []):
                server.close()
            for connection in list(self.server_state.connections):
                connection.shutdown()
            for task in self.server_state.tasks:
                task.cancel()
            raise


def application(api: Api, http_apis: Sequence[HttpApi]) -> FastRoutes:
    page = msgspec.json.encode(openapi(http_apis, angarium.__version__))

    files = Files()

    async def root(request: Request) -> Response:
        if wants_page(request):
            return index(files, request)
        links = {
            "health": "/healthz",
            "readiness": "/readyz",
            "metrics": "/metrics",
            "openapi": "/openapi.json",
        }
        return reply({"name": "angarium", "version": angarium.__version__, "links": links})

    async def healthz(_: Request) -> Response:
        return reply({"status": "ok"})

    async def readyz(_: Request) -> Response:
        await api.check_ready()
        return reply({"status": "ready"})

    async def metrics(request: Request) -> Response:
        await api.access.check_without_tenant(request, "read")
        page = generate_latest() + generate_latest(api.reported)
        return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})

    async def openapi_page(_: Request) -> Response:
        return Response(page, media_type="application/json")

    fallback = Starlette(
        routes=[
            Route("/", root),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/openapi.json", openapi_page),
            *routes(http_apis, api.guarded),
        ],
        exception_handlers={**ERRORS},
    )
    return FastRoutes(fallback, http_apis, api.guarded, ERRORS)


def _http_error(_: Request, error: Any) -> Response:
    code = error.detail.lower().replace(" ", "_")
    return problem(error.status_code, code, error.detail, error.headers)


def _angarium_error(_: Request, error: Any) -> Response:
    if isinstance(error, Unauthorized):
        headers = {"www-authenticate": "Bearer"}
        return problem(error.http_status, error.code, str(error), headers)
    return problem_of(error)


def _unexpected_error(_: Request, error: Any) -> Response:
    # The log has the error; the response reveals no internals.
    return problem(500, "internal", "an unexpected error occurred; the log has the details")


ERRORS: Mapping[type[Exception], ErrorResponse] = MappingProxyType(
    {HTTPException: _http_error, AngariumError: _angarium_error, Exception: _unexpected_error}
)
