"""The status endpoints of the relay and the deliverer, on a port of their own.

`/status/ready` and `/status/live` answer `{"ready": …}` and `{"alive": …}`. When an API key is set,
callers send it in the header `access_token`. A role is ready when it accepts work; it is alive when
Redis answers as well.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable

import msgspec

from angarium.routing import http1
from angarium.routing.flow_control import FlowControl
from angarium.routing.items import DirectResponse
from angarium.routing.relay_http import HttpConnection
from angarium.routing.settings import RoutingSettings
from angarium.runtime.errors import AngariumError, NotFound
from angarium.runtime.runtime import Runtime
from angarium.runtime.settings import CommonSettings
from angarium.runtime.sockets import listen

SETTING = "ANGARIUM_ROUTING__STATUS_PORT"
CONNECTIONS_MAX = 100
# Shorter than the 1 s after which probes give up.
PING_S_MAX = 0.8


class RoleStatus:
    """A role's state; the role calls `check` every second, and requests read its last result."""

    def __init__(self, runtime: Runtime, is_ready: Callable[[], bool]) -> None:
        key = runtime.settings.group(RoutingSettings).status_api_key
        self._key = None if key is None else key.get_secret_value().encode()
        self._runtime = runtime
        self._is_ready = is_ready
        self._alive = True

    async def check(self) -> None:
        try:
            async with asyncio.timeout(PING_S_MAX):
                await self._runtime.redis.call("PING")
            self._alive = True
        except (AngariumError, TimeoutError):
            self._alive = False

    def answer(self, path: str, headers: dict[bytes, bytes]) -> bytes | None:
        if path not in ("/status/ready", "/status/live"):
            return None
        shown = headers.get(b"access_token", b"")
        if self._key is not None and not hmac.compare_digest(shown, self._key):
            return _json({"detail": "Could not validate key"}, 403)
        ready = self._is_ready()
        if path == "/status/ready":
            return _json({"ready": ready}, 200 if ready else 503)
        alive = ready and self._alive
        return _json({"alive": alive}, 200 if alive else 503)


class StatusServer:
    """Serves the status endpoints only: it refuses messages."""

    body_bytes_max = 1024

    def __init__(self, status: RoleStatus) -> None:
        self._status = status
        self.flow = FlowControl(CONNECTIONS_MAX * http1.HEAD_BYTES_MAX)
        self._connections: set[HttpConnection] = set()
        self._server: asyncio.Server | None = None

    async def open(self, settings: CommonSettings) -> dict[str, int]:
        """The port under its name in the readiness line; empty when no port is set."""
        listener = _listener(settings)
        if listener is None:
            return {}
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: HttpConnection(self), sock=listener)
        return {"status": int(listener.getsockname()[1])}

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.close()

    def close_overdue(self) -> None:
        for connection in [each for each in self._connections if each.overdue]:
            connection.give_up()

    def add(self, connection: HttpConnection) -> bool:
        self._connections.add(connection)
        return len(self._connections) <= CONNECTIONS_MAX

    def remove(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)

    def accept(self, body: bytes) -> asyncio.Future[DirectResponse | None]:
        raise NotFound("the status endpoints accept no messages")

    def status(self, path: str, headers: dict[bytes, bytes]) -> bytes | None:
        return self._status.answer(path, headers) or http1.response(404)


def check_status_port(settings: CommonSettings) -> None:
    listener = _listener(settings)
    if listener is not None:
        listener.close()


def _listener(settings: CommonSettings) -> socket.socket | None:
    host, port = (
        settings.group(RoutingSettings).status_host,
        settings.group(RoutingSettings).status_port,
    )
    return None if host is None or port is None else listen(host, port, SETTING)


def _json(value: object, status: int) -> bytes:
    return http1.response(status, msgspec.json.encode(value), "application/json")
