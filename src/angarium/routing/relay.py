"""The role `relay`: accepts messages over HTTP and WebSocket and queues them for their recipients.

The relay answers 200 when a message is queued, not before. Messages that arrive at the same time on
any connection are queued in one batch. A sender that asks for a response on its own connection gets
the response of the instance that handled the message, or an empty one after 15 s. The relay
answers bad input with an error and writes none of it to Redis.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from picows import ws_create_server
from prometheus_client import Counter

from angarium.routing.envelope import read_envelope
from angarium.routing.errors import ItemInvalid
from angarium.routing.flow_control import SOCKET_BYTES, FlowControl
from angarium.routing.items import DirectResponse, decode_response
from angarium.routing.limits import RoutingLimits
from angarium.routing.pending_calls import PendingCalls
from angarium.routing.recorded_rules import record_stale_after
from angarium.routing.relay_http import HttpConnection
from angarium.routing.relay_ws import WsConnection, listener_of
from angarium.routing.role_settings import check_layout, routing_store, server_tls
from angarium.routing.settings import RoutingSettings
from angarium.routing.status import RoleStatus, StatusServer, check_status_port
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError, InputInvalid, LimitExceeded
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import CommonSettings
from angarium.runtime.sockets import listen

SETTING = "ANGARIUM_ROUTING__INBOUND"
# Poll interval for direct responses, without hints; only while a caller waits.
RESPONSES_POLL_S = 0.25
SWEEP_S = 1.0
HANDSHAKE_S_MAX = 10
WS_IDLE_S = 30
WS_PONG_S = 20

MESSAGES = Counter(
    "angarium_relay_messages", "Messages that reached the relay.", ["transport", "outcome"]
)


def check(settings: CommonSettings, app: Application) -> None:
    """Fails on a port in use before anything connects to Redis."""
    check_layout(settings)
    server_tls(settings)
    for _, host, port in settings.group(RoutingSettings).inbound:
        listen(host, port, SETTING).close()
    check_status_port(settings)


def build(runtime: Runtime, app: Application) -> Service:
    return Relay(runtime)


class RelayIntake:
    """Accepts the messages of one listener and queues them."""

    def __init__(self, relay: Relay, transport: str) -> None:
        limits = relay.runtime.settings.limits_of(RoutingLimits)
        self.body_bytes_max = limits.http_body_bytes_max
        self.idle_s_max = float(
            limits.relay_idle_s_max if transport == "http" else limits.relay_ws_idle_s_max
        )
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

    def add(self, connection: HttpConnection | WsConnection) -> bool:
        self.connections.add(connection)
        return len(self.connections) <= self._connections_max

    def remove(self, connection: HttpConnection | WsConnection) -> None:
        self.connections.discard(connection)

    def accept(self, body: bytes) -> asyncio.Future[DirectResponse | None]:
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
            txn_id, answer = relay.calls.open()
            try:
                queued = relay.store.process_payload_recip_key(
                    envelope.recip_key, body, self._transport, txn_id
                )
            except AngariumError:
                answer.cancel()  # frees its slot among the waiting calls
                raise

        size_bytes = len(body)
        self.flow.message_received(size_bytes)

        def done(future: asyncio.Future[Any]) -> None:
            self.flow.message_released(size_bytes)
            error = None if future.cancelled() else future.exception()
            if error is None and not future.cancelled() and future.result() == "full":
                error = relay.store.queue_full()
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
        settings = runtime.settings.group(RoutingSettings)
        self.runtime = runtime
        self.loop_ = asyncio.get_running_loop()
        limits = runtime.settings.limits_of(RoutingLimits)
        self.store = runtime.store(routing_store)
        self.calls = PendingCalls(
            settings.direct_response_timeout_ms / 1000, limits.relay_callers_max
        )
        self.flow = FlowControl(limits.relay_bytes_max)
        self.status = RoleStatus(runtime, lambda: self.ready)
        self.queued = 0
        self._reported = 0
        self._tls = server_tls(runtime.settings)
        self.intakes: list[RelayIntake] = []
        self._servers: list[asyncio.Server] = []
        self._status_server = StatusServer(self.status)
        self._reporter = ProcessReporter(runtime, "relay")

    async def on_start(self) -> None:
        settings = self.runtime.settings
        routing = settings.group(RoutingSettings)
        await record_stale_after(self.runtime, routing.stale_after_ms)
        for transport, host, port in settings.group(RoutingSettings).inbound:
            await self._open(transport, host, port)
        self.ports |= await self._status_server.open(settings)
        self.spawn("answer_hints", self._follow_hints)
        self._fetching = self.loop("answers", self._fetch_responses, RESPONSES_POLL_S, until="stop")
        self.loop("status", self.status.check, SWEEP_S, until="stop")
        self.loop("connections", self._close_overdue, SWEEP_S, until="stop")
        self.loop("report", self._report, INTERVAL_S, until="stop")

    async def on_quiet(self) -> None:
        for server in self._servers:
            server.close()
        for intake in self.intakes:
            for connection in list(intake.connections):
                connection.quiet()

    async def on_stop(self) -> None:
        # The batcher queues its messages before it closes. Waiting callers get no response.
        self.calls.end_all()
        await self.passes_ended()
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        self.calls.end_all()
        for server in self._servers:
            server.close()
        self._status_server.close()
        for intake in self.intakes:
            for connection in list(intake.connections):
                connection.quiet()
        self._servers, self.intakes = [], []

    async def _open(self, transport: str, host: str, port: int) -> None:
        intake = RelayIntake(self, transport)
        listener = listen(host, port, SETTING)
        # Accepted connections inherit the buffer size.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        tls = self._tls
        handshake_s = None if tls is None else HANDSHAKE_S_MAX
        if transport == "http":
            server = await self.loop_.create_server(
                lambda: HttpConnection(intake),
                sock=listener,
                ssl=tls,
                ssl_handshake_timeout=handshake_s,
            )
        else:
            server = await ws_create_server(
                listener_of(intake),
                sock=listener,
                ssl=tls,
                ssl_handshake_timeout=handshake_s,
                websocket_handshake_timeout=HANDSHAKE_S_MAX,
                enable_auto_ping=True,
                auto_ping_idle_timeout=WS_IDLE_S,
                auto_ping_reply_timeout=WS_PONG_S,
                max_frame_size=intake.body_bytes_max + 1,
            )
        self.intakes.append(intake)
        self._servers.append(server)
        name = transport
        while name in self.ports:
            name = f"{transport}{len(self._servers)}"
        self.ports[name] = listener.getsockname()[1]

    async def _follow_hints(self) -> None:
        async with self.store.response_hints(self.calls.relay_id) as hints:
            while True:
                await hints.receive()
                self._fetching.wake()

    async def _fetch_responses(self) -> None:
        if not len(self.calls):
            return
        for item in await self.store.take_responses(self.calls.relay_id):
            try:
                self.calls.resolve(decode_response(item))
            except ItemInvalid as error:
                self.log.warning("answer_unreadable", problem=str(error))

    async def _close_overdue(self) -> None:
        self._status_server.close_overdue()
        for intake in self.intakes:
            for connection in list(intake.connections):
                if connection.overdue:
                    connection.give_up()

    async def _report(self) -> None:
        metrics: dict[str, float | str] = {
            "connections": sum(len(intake.connections) for intake in self.intakes),
            "waiting_callers": len(self.calls),
            "waiting_bytes": self.flow.complete_bytes + self.flow.partial_bytes,
            "queued": self.queued,
            "queued_per_s": round((self.queued - self._reported) / INTERVAL_S, 1),
        }
        self._reported = self.queued
        await self._reporter.report(metrics)
        self.log.debug("metrics", **metrics)
