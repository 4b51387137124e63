"""The role `gateway`: the WebSocket listener, and the periodic work of every queue.

Any number of gateways run at the same time. Each holds the sessions of its clients under a lease in
every partition. Each sweeps all partitions; the holder of a partition's persister lease also moves
messages to the database. A quiet gateway refuses new clients, messages and sessions, and accepts
acknowledgements. A gateway that stops closes its sessions, so other gateways can deliver at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from angarium.pickup import access
from angarium.pickup.archive import MessageArchive
from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.expiry import Expiry
from angarium.pickup.persister import Persister
from angarium.pickup.push import PushSender, PushWorker, close_sender, make_sender
from angarium.pickup.queues import PickupQueues
from angarium.pickup.rpc_handler import RpcHandler
from angarium.pickup.settings import PickupSettings
from angarium.pickup.store import PickupStore
from angarium.pickup.sweeper import DidSweeper, Sweeper
from angarium.runtime.application import Application
from angarium.runtime.errors import OutcomeUnknown, RedisUnavailable
from angarium.runtime.origin_check import origin_problem
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.setting_group import AccessMode
from angarium.runtime.settings import CommonSettings
from angarium.runtime.sockets import listen
from angarium.runtime.tokens import TokensSeen

BACKLOG = 4096  # after a restart thousands of clients connect at once
READ_BUFFER_BYTES = 4096  # per client; it grows with the first larger frame
SWEEP_S = 0.5
PERSIST_S = 1.0
PUSH_S = 0.5
EXPIRE_S = 10.0
IDLE_S = 1.0
CHECK_SESSIONS_S = 10.0
HANDSHAKE_S_MAX = 10
# Two renewals in a row may fail before the lease runs out.
RENEWALS_PER_LEASE = 3


def check(settings: CommonSettings, app: Application) -> None:
    """Refuse access for everybody by accident, unusable certificates, and a port in use."""
    access.check(settings.group(PickupSettings))
    if settings.group(PickupSettings).push_sender is not None:
        make_sender(settings.group(PickupSettings))
    _listen(settings).close()


def build(runtime: Runtime, app: Application) -> Service:
    return Gateway(runtime)


@dataclass
class _Rates:
    """Counters at the last report; the next one computes rates from them."""

    added: int = 0
    delivered: int = 0
    removed: int = 0
    at_s: float = 0.0


class Gateway(Service):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("gateway", clock=runtime.clock)
        self.runtime = runtime
        self._settings = runtime.settings.group(PickupSettings)
        self._access = access.GatewayAccess(self._settings)
        self._reporter = ProcessReporter(runtime, "gateway")
        self._rates = _Rates()
        self._ids = itertools.count(1)
        # Socket ids of a restarted gateway with the same name must differ from the earlier ones.
        self._start_id = secrets.token_hex(3)
        self._tasks: asyncio.TaskGroup | None = None
        self._archive: MessageArchive | None = None
        self._sender: PushSender | None = None
        self._server: asyncio.Server | None = None
        self._persisters: list[Persister] = []

    async def on_start(self) -> None:
        runtime, settings = self.runtime, self._settings
        await self._require_tokens_if_seen()
        self._archive = await MessageArchive.of(runtime)
        self._sender = make_sender(settings)
        self.store = runtime.store(PickupStore)
        queues = PickupQueues(self.store, self._archive)
        self.pushes = PushWorker(self.store, settings, self._sender)
        self.rpc = RpcHandler(self.store, queues, self.pushes, self._access, self._spawn)
        running = asyncio.Event()
        self.spawn("tasks", lambda: self._run_tasks(running))
        await running.wait()
        await self._renew()
        self._persisters = [
            Persister(self.store, self._archive, partition, settings.lease_ms)
            for partition in self.store.partitions
        ]
        for persister in self._persisters:
            await persister.run_once()
        await self._listen()
        self._begin_loops()

    async def _require_tokens_if_seen(self) -> None:
        """A gateway that once had tokens stays closed when the settings lose them."""
        mode = self.runtime.settings.access
        has_credentials = self._access.has_credentials
        seen = await TokensSeen(self.runtime, "gateway").look(has_tokens=has_credentials)
        needed = mode is AccessMode.TOKENS or (mode is AccessMode.AUTO and seen)
        if needed and not self._settings.anonymous:
            self._access.close()
            if not has_credentials:
                self.log.warning("no_tokens", access=mode, fix=f"set {access.TOKENS}")

    def _begin_loops(self) -> None:
        settings = self._settings
        renewal_s = settings.lease_ms / 1000 / RENEWALS_PER_LEASE
        self.loop("renew", self._renew, renewal_s, until="stop")
        self.spawn("hints", self._receive_hints)
        self.loop("check-sessions", self.rpc.sessions.check_all, CHECK_SESSIONS_S)
        persist_s = min(PERSIST_S, settings.lease_ms / 1000 / RENEWALS_PER_LEASE)
        for partition, persister in enumerate(self._persisters):
            self.loop(f"persist-{partition}", persister.run_once, persist_s)
            self.loop(f"sweep-{partition}", Sweeper(self.store, partition).run_once, SWEEP_S)
        if settings.push_url is not None or settings.push_sender or settings.push_allowed:
            self.loop("push", self.pushes.run_once, PUSH_S)
        if settings.retention_s:
            assert self._archive is not None
            expiry = Expiry(self.store, self._archive, settings.retention_s)
            self.loop("expire", expiry.run_once, EXPIRE_S)
        self.loop("sweep-dids", DidSweeper(self.store).run_once, EXPIRE_S)
        self.loop("idle-clients", self._close_idle_clients, IDLE_S)
        self.loop("metrics", self._report, INTERVAL_S)

    async def on_quiet(self) -> None:
        self.rpc.quiet = True
        if self._server is not None:
            self._server.close()

    async def on_stop(self) -> None:
        await self.passes_ended()
        await self.rpc.sessions.close_all()
        for client in list(self.rpc.clients):
            client.close(WSCloseCode.SERVICE_RESTART)
        for persister in self._persisters:
            await persister.release()
        for partition in self.store.partitions:
            await self.store.sessions.end_gateway(partition)
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        if self._server is not None:
            self._server.close()
        if hasattr(self, "rpc"):
            for client in list(self.rpc.clients):
                client.abort()
        if self._sender is not None:
            await close_sender(self._sender)
        if self._archive is not None:
            await self._archive.close()

    # Listening

    async def _listen(self) -> None:
        settings = self._settings
        listener = _listen(self.runtime.settings)
        ping_s = settings.ping_ms / 1000
        self._server = await ws_create_server(
            self._admit,
            sock=listener,
            ssl=access.tls_context(settings),
            backlog=BACKLOG,
            enable_auto_ping=True,
            auto_ping_idle_timeout=ping_s,
            auto_ping_reply_timeout=ping_s,
            auto_ping_strategy=WSAutoPingStrategy.PING_WHEN_IDLE,
            enable_auto_pong=True,
            max_frame_size=self.rpc.frame_bytes_max,
            read_buffer_init_size=READ_BUFFER_BYTES,
            disconnect_on_exception=False,
            websocket_handshake_timeout=HANDSHAKE_S_MAX,
            logger_name=_quiet_logger(),
        )
        self.ports = {"gateway": listener.getsockname()[1]}

    def _admit(
        self, request: WSUpgradeRequest
    ) -> ClientSocket | WSUpgradeResponseWithListener | None:
        if request.path.partition(b"?")[0] != b"/":
            return None
        if self._access.open and not self._settings.anonymous:
            headers = {name.lower(): value for name, value in request.headers.items()}
            refusal = origin_problem(headers)
            if refusal is not None:
                forbidden = WSUpgradeResponse.create_error_response(403, refusal.encode())
                return WSUpgradeResponseWithListener(forbidden, None)
        tenant = self._access.by_token(request.headers.get("Authorization"))
        if tenant is None and not self._access.certificates:
            reason = "a bearer token is needed"
            if not self._access.has_credentials:
                reason += f", and none is set: {access.TOKENS} takes them as tenant:token"
            unauthorized = WSUpgradeResponse.create_error_response(
                401, reason.encode(), {"WWW-Authenticate": "Bearer"}
            )
            return WSUpgradeResponseWithListener(unauthorized, None)
        return ClientSocket(self.rpc, f"{self._start_id}-{next(self._ids)}", tenant)

    # Tasks

    async def _run_tasks(self, running: asyncio.Event) -> None:
        """One task group for all calls; each call catches its own errors."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def _spawn(self, run: Coroutine[Any, Any, object]) -> None:
        if self._tasks is None:
            run.close()  # the gateway has stopped; other gateways find the remaining work
            return

        async def guarded() -> None:
            try:
                await run
            except Exception as error:
                self.log.error("step_failed", error=repr(error), exc_info=error)

        task = self._tasks.create_task(guarded())
        # A task that is cancelled before it starts never awaits `run`.
        task.add_done_callback(lambda _: run.close())

    async def _renew(self) -> None:
        """All partitions at once: an unavailable server must not end the leases of the others."""
        renewals = map(self._renew_partition, self.store.partitions)
        for result in await asyncio.gather(*renewals, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _renew_partition(self, partition: int) -> None:
        if await self.store.sessions.renew_gateway(partition) and len(self.rpc.sessions):
            self.log.warning("lease_had_run_out", partition=partition)
            await self.rpc.sessions.restore_partition(partition)

    async def _receive_hints(self) -> None:
        channel = self.store.hint_channel + self.store.gateway
        async with self.runtime.subscribe(channel) as subscription:
            while True:
                batch = await subscription.receive()
                for message in batch.messages:
                    self._handle_hint(message.payload)
                if batch.gap:
                    await self.rpc.sessions.check_all()

    def _handle_hint(self, hint: bytes) -> None:
        kind, *lines = hint.decode().split("\n")
        for line in lines:
            if kind == "mail":
                self.rpc.sessions.wake(line)
            elif kind == "did":
                queue, *dids = line.split(" ")
                self.rpc.sessions.by_did.wake(queue, dids)
            elif kind == "replaced":
                term, _, queue = line.partition(" ")
                self.rpc.sessions.ended_elsewhere(queue, term)

    async def _close_idle_clients(self) -> None:
        self.rpc.close_idle(self._settings.first_call_ms / 1000, self._settings.idle_ms / 1000)

    async def _report(self) -> None:
        rpc, last = self.rpc, self._rates
        now_s = self.clock.monotonic()
        now = _Rates(rpc.added, rpc.sessions.delivered, rpc.removed, now_s)
        self._rates = now
        passed_s = max(now_s - last.at_s, 0.001) if last.at_s else INTERVAL_S
        metrics = {
            "clients": len(rpc.clients),
            "sessions": len(rpc.sessions),
            "added_per_s": round((now.added - last.added) / passed_s, 1),
            "delivered_per_s": round((now.delivered - last.delivered) / passed_s, 1),
            "removed_per_s": round((now.removed - last.removed) / passed_s, 1),
            "added": now.added,
            "delivered": now.delivered,
            "removed": now.removed,
            "refused": rpc.refused,
            "answer_bytes": rpc.answer_budget.used,
            "request_bytes": rpc.unanswered.total_bytes,
            "pushes_sent": self.pushes.sent,
            "pushes_failed": self.pushes.failed,
        }
        self.log.debug("metrics", **metrics)
        try:
            await self._reporter.report(metrics)
        except (RedisUnavailable, OutcomeUnknown) as error:
            self.log.warning("metrics_not_reported", error=repr(error))


def _quiet_logger() -> logging.Logger:
    """One logger for all sockets: one for each socket would need more memory than the socket."""
    logger = logging.getLogger("angarium.pickup.sockets")
    logger.setLevel(logging.CRITICAL)
    return logger


def _listen(settings: CommonSettings) -> socket.socket:
    return listen(
        settings.group(PickupSettings).host,
        settings.group(PickupSettings).port,
        "ANGARIUM_PICKUP__PORT",
        host_setting="ANGARIUM_PICKUP__HOST",
    )
