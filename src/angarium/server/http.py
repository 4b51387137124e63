"""The role `api`: HTTP for people, probes and Prometheus.

Starlette on uvicorn, on a socket of our own, with uvicorn's signal handling off: the host owns
the signals. Every error leaves as problem+json with the code of its class. Health says that the
process lives; readiness also that it takes work and that Redis answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import angarium
from angarium.core.errors import AngariumError, RedisUnavailable
from angarium.core.ground import Ground
from angarium.core.journal_watch import JournalWatch
from angarium.core.service import Service
from angarium.core.settings import Settings
from angarium.server.host import listen

# Probes give up after 1 s by default; the answer «not ready» has to be there before that.
READY_S_MAX = 0.8
# As often as Prometheus usually asks, or a little more.
JOURNAL_LOOK_S = 5.0
# Binding is done by then; what is left to start is memory.
START_S_MAX = 10.0


def check(settings: Settings) -> None:
    """A port that is taken is found before Redis is touched."""
    _listen(settings).close()


def build(ground: Ground) -> Service:
    return Api(ground)


def _listen(settings: Settings) -> socket.socket:
    return listen(
        settings.http.host,
        settings.http.port,
        "ANGARIUM_HTTP__PORT",
        host_setting="ANGARIUM_HTTP__HOST",
    )


class Api(Service):
    def __init__(self, ground: Ground) -> None:
        super().__init__("api")
        self._ground = ground
        self._app = application(self)
        self._up = asyncio.Event()
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        self._socket = _listen(self._ground.settings)
        self.ports = {"http": self._socket.getsockname()[1]}
        self._serving = self.spawn("http", self._serve)
        self.loop("journal", JournalWatch(self._ground).run_once, JOURNAL_LOOK_S)
        async with asyncio.timeout(START_S_MAX):
            await self._up.wait()

    async def on_stop(self) -> None:
        if self._server is not None and self._serving is not None:
            # Ours too, not only uvicorn's copy: the kernel would go on to accept connections
            # for it, which nobody would ever answer.
            self._close_socket()
            self._server.should_exit = True
            await asyncio.wait({self._serving})

    async def on_close(self) -> None:
        self._up.clear()
        self._close_socket()

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def check_ready(self) -> None:
        """Raise unless we take work and Redis answers in time."""
        if not self.ready:
            raise HTTPException(503, "not taking work")
        try:
            async with asyncio.timeout(READY_S_MAX):
                await self._ground.redis.call("PING")
        except TimeoutError:
            raise RedisUnavailable(f"Redis did not answer within {READY_S_MAX} s") from None

    async def _serve(self) -> None:
        assert self._socket is not None
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        self._server = _Server(config, self._up)
        # A copy, because uvicorn closes what it was given, and may have to be started again.
        await self._server.serve(sockets=[self._socket.dup()])


class _Server(uvicorn.Server):
    """uvicorn without signal handlers, which says when it is up and cleans up when cancelled."""

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
            # It would leave its listeners and requests to themselves.
            for server in getattr(self, "servers", []):
                server.close()
            for connection in list(self.server_state.connections):
                connection.shutdown()
            for task in self.server_state.tasks:
                task.cancel()
            raise


def application(api: Api) -> Starlette:
    async def root(_: Request) -> Response:
        links = {"health": "/healthz", "readiness": "/readyz", "metrics": "/metrics"}
        return reply({"name": "angarium", "version": angarium.__version__, "links": links})

    async def healthz(_: Request) -> Response:
        return reply({"status": "ok"})

    async def readyz(_: Request) -> Response:
        await api.check_ready()
        return reply({"status": "ready"})

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})

    return Starlette(
        routes=[
            Route("/", root),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ],
        exception_handlers={
            HTTPException: _refused,
            AngariumError: _failed,
            Exception: _broken,
        },
    )


def reply(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """RFC 9457, with the error's own code beside the standard members."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        headers=headers,
        media_type="application/problem+json",
    )


def _refused(_: Request, error: Any) -> Response:
    code = error.detail.lower().replace(" ", "_")
    return problem(error.status_code, code, error.detail, error.headers)


def _failed(_: Request, error: Any) -> Response:
    return problem(error.http_status, error.code, str(error))


def _broken(_: Request, error: Any) -> Response:
    # What went wrong is in the log; a stranger learns nothing of our inside.
    return problem(500, "internal", "something went wrong; the log says what")
