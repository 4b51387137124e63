"""The role `relay`: messages from the outside world into the lists of their recipients.

A message is answered with 200 when it is queued, and not before. It is queued by the batch that
gathers what all connections brought at the same time. A sender that asks for a response over its
own connection gets the answer of the instance that handled the message, or after 15 s an empty
one. Bad input is answered and forgotten; nothing of it reaches Redis.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from picows import ws_create_server
from prometheus_client import Counter

from angarium.routing.callers import Callers
from angarium.routing.envelope import read_envelope
from angarium.routing.errors import ItemInvalid
from angarium.routing.flow import SOCKET_BYTES, Flow
from angarium.routing.items import DirectResponse, decode_response
from angarium.routing.listening import check_layout, rules_of, server_tls
from angarium.routing.relay_http import HttpConnection
from angarium.routing.relay_ws import WsConnection, listener_of
from angarium.routing.status import Status, StatusDesk, status_socket
from angarium.routing.store import RoutingStore
from angarium.runtime.application import Angarium
from angarium.runtime.errors import AngariumError, InputInvalid, LimitExceeded
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import Settings
from angarium.runtime.sockets import listen

SETTING = "ANGARIUM_ROUTING__INBOUND"
# How often answers are looked for when no hint came; only while somebody waits.
ANSWERS_POLL_S = 0.25
SWEEP_S = 1.0
HANDSHAKE_S_MAX = 10
WS_IDLE_S = 30
WS_PONG_S = 20

MESSAGES = Counter(
    "angarium_relay_messages", "Messages that reached the relay.", ["transport", "outcome"]
)


def check(settings: Settings, app: Angarium) -> None:
    """Ports that are taken are found before Redis is touched."""
    check_layout(settings)
    server_tls(settings)
    for _, host, port in settings.routing.inbound:
        listen(host, port, SETTING).close()
    if settings.routing.status_host is not None and settings.routing.status_port is not None:
        status_socket(settings.routing.status_host, settings.routing.status_port).close()


def build(runtime: Runtime, app: Angarium) -> Service:
    return Relay(runtime)


class Desk:
    """Takes messages of one transport."""

    def __init__(self, relay: Relay, transport: str) -> None:
        limits = relay.runtime.settings.limits
        self.body_bytes_max = limits.http_body_bytes_max
        self.connection_messages_max = limits.relay_connection_messages_max
        self.connection_bytes_max = limits.relay_connection_bytes_max
        self.flow = relay.flow
        self.connections: set[HttpConnection | WsConnection] = set()
        self._recip_key_bytes_max = limits.recip_key_bytes_max
        self._connections_max = limits.relay_connections_max
        self._relay = relay
        self._transport = transport
        self.queued = MESSAGES.labels(transport, "queued")
        self.refused = MESSAGES.labels(transport, "refused")
        self.failed = MESSAGES.labels(transport, "failed")

    def enter(self, connection: HttpConnection | WsConnection) -> bool:
        self.connections.add(connection)
        return len(self.connections) <= self._connections_max

    def leave(self, connection: HttpConnection | WsConnection) -> None:
        self.connections.discard(connection)

    def take(self, body: bytes) -> asyncio.Future[DirectResponse | None]:
        try:
            envelope = read_envelope(body, self._recip_key_bytes_max)
        except (InputInvalid, LimitExceeded):
            self.refused.inc()
            raise
        relay = self._relay
        if not envelope.wants_response:
            queued = relay.store.process_payload_recip_key(
                envelope.recip_key, body, self._transport
            )
            answer: asyncio.Future[DirectResponse | None] = relay.loop_.create_future()
        else:
            txn_id, answer = relay.callers.expect()
            try:
                queued = relay.store.process_payload_recip_key(
                    envelope.recip_key, body, self._transport, txn_id
                )
            except AngariumError:
                answer.cancel()  # its place is free again
                raise

        size_bytes = len(body)
        self.flow.took(size_bytes)

        def done(future: asyncio.Future[Any]) -> None:
            self.flow.stored(size_bytes)
            error = None if future.cancelled() else future.exception()
            if error is None and not future.cancelled():
                relay.queued += 1
                self.queued.inc()
                if not envelope.wants_response and not answer.done():
                    answer.set_result(None)
                return
            self.failed.inc()
            if not answer.done():
                answer.set_exception(error or AngariumError("the message was not queued"))

        queued.add_done_callback(done)
        return answer

    def status(self, path: str, headers: dict[bytes, bytes]) -> bytes | None:
        return self._relay.status.answer(path, headers)


class Relay(Service):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("relay", clock=runtime.clock)
        settings = runtime.settings.routing
        self.runtime = runtime
        self.loop_ = asyncio.get_running_loop()
        self.store = RoutingStore(runtime, rules_of(runtime.settings), runtime.settings.limits)
        self.callers = Callers(
            settings.direct_response_timeout_ms / 1000, runtime.settings.limits.relay_callers_max
        )
        self.flow = Flow(runtime.settings.limits.relay_bytes_max)
        self.status = Status(runtime, lambda: self.ready)
        self.queued = 0
        self._reported = 0
        self._tls = server_tls(runtime.settings)
        self._desks: list[Desk] = []
        self._servers: list[asyncio.Server] = []
        self._status_desk = StatusDesk(self.status)
        self._figures = ProcessReporter(runtime, "relay")

    async def on_start(self) -> None:
        settings = self.runtime.settings.routing
        for transport, host, port in settings.inbound:
            await self._open(transport, host, port)
        if settings.status_host is not None and settings.status_port is not None:
            self.ports["status"] = await self._status_desk.open(
                settings.status_host, settings.status_port
            )
        self.spawn("answer_hints", self._follow_hints)
        self._answers = self.loop("answers", self._fetch_answers, ANSWERS_POLL_S, until="stop")
        self.loop("status", self.status.look, SWEEP_S, until="stop")
        self.loop("connections", self._sweep, SWEEP_S, until="stop")
        self.loop("figures", self._report, INTERVAL_S, until="stop")

    async def on_quiet(self) -> None:
        for server in self._servers:
            server.close()
        for desk in self._desks:
            for connection in list(desk.connections):
                connection.quiet()

    async def on_stop(self) -> None:
        # Messages in the batcher are queued before it closes; those who wait need not.
        self.callers.end()
        await self.passes_ended()
        await self._figures.withdraw()

    async def on_close(self) -> None:
        self.callers.end()
        for server in self._servers:
            server.close()
        self._status_desk.close()
        for desk in self._desks:
            for connection in list(desk.connections):
                connection.quiet()
        self._servers, self._desks = [], []

    async def _open(self, transport: str, host: str, port: int) -> None:
        desk = Desk(self, transport)
        listener = listen(host, port, SETTING)
        # Connections inherit it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        tls = self._tls
        handshake_s = None if tls is None else HANDSHAKE_S_MAX
        if transport == "http":
            server = await self.loop_.create_server(
                lambda: HttpConnection(desk),
                sock=listener,
                ssl=tls,
                ssl_handshake_timeout=handshake_s,
            )
        else:
            server = await ws_create_server(
                listener_of(desk),
                sock=listener,
                ssl=tls,
                ssl_handshake_timeout=handshake_s,
                websocket_handshake_timeout=HANDSHAKE_S_MAX,
                enable_auto_ping=True,
                auto_ping_idle_timeout=WS_IDLE_S,
                auto_ping_reply_timeout=WS_PONG_S,
                max_frame_size=desk.body_bytes_max + 1,
            )
        self._desks.append(desk)
        self._servers.append(server)
        name = transport
        while name in self.ports:
            name = f"{transport}{len(self._servers)}"
        self.ports[name] = listener.getsockname()[1]

    async def _follow_hints(self) -> None:
        async with self.store.response_hints(self.callers.relay) as hints:
            while True:
                await hints.receive()
                self._answers.wake()

    async def _fetch_answers(self) -> None:
        if not len(self.callers):
            return
        for item in await self.store.take_responses(self.callers.relay):
            try:
                self.callers.answer(decode_response(item))
            except ItemInvalid as error:
                self.log.warning("answer_unreadable", problem=str(error))

    async def _sweep(self) -> None:
        self._status_desk.sweep()
        for desk in self._desks:
            for connection in list(desk.connections):
                if connection.overdue:
                    connection.give_up()

    async def _report(self) -> None:
        figures: dict[str, float | str] = {
            "connections": sum(len(desk.connections) for desk in self._desks),
            "waiting_callers": len(self.callers),
            "waiting_bytes": self.flow.taken + self.flow.begun,
            "queued": self.queued,
            "queued_per_s": round((self.queued - self._reported) / INTERVAL_S, 1),
        }
        self._reported = self.queued
        await self._figures.report(figures)
        self.log.info("figures", **figures)
