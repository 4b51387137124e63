"""The role `gateway`: the WebSocket listener, and the housekeeping of every queue.

Any number of gateways run side by side. Each holds the sessions of its own clients under one
lease; each sweeps what is due, and those that hold a partition's lease move messages to the
database. On quiet it takes no new clients, messages or sessions but still takes acknowledgements;
on stop it gives its sessions back, so that other gateways deliver at once.
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
from angarium.pickup.archive import Archive
from angarium.pickup.client_socket import ClientSocket
from angarium.pickup.desk import Desk
from angarium.pickup.mailbox import Mailbox
from angarium.pickup.persister import Persister
from angarium.pickup.push import Pushes, Sender, close_sender, make_sender
from angarium.pickup.store import PickupStore
from angarium.pickup.sweeper import Sweeper
from angarium.runtime.application import Angarium
from angarium.runtime.errors import OutcomeUnknown, RedisUnavailable
from angarium.runtime.origin_check import origin_problem
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import AccessMode, Durability, Settings
from angarium.runtime.sockets import listen
from angarium.runtime.tokens_seen import TokensSeen

BACKLOG = 4096  # thousands of clients come back at once after a restart
READ_BUFFER_BYTES = 4096  # per client; it grows with the first larger frame
SWEEP_S = 0.5
PERSIST_S = 1.0
PUSH_S = 0.5
LOOK_S = 10.0
HANDSHAKE_S_MAX = 10  # a socket that has not said what it wants by then is closed
# Renewals per lease: two may be lost on the way before the third would come too late.
RENEWALS_PER_LEASE = 3


def check(settings: Settings, app: Angarium) -> None:
    """Refuse an open door, unusable certificates and a port that is taken."""
    access.check(settings.pickup)
    if settings.pickup.push_sender is not None:
        make_sender(settings.pickup)
    _listen(settings).close()


def build(runtime: Runtime, app: Angarium) -> Service:
    return Gateway(runtime)


@dataclass
class _Rates:
    """Counters at the last report, to tell how fast they grow."""

    added: int = 0
    delivered: int = 0
    removed: int = 0
    at_s: float = 0.0


class Gateway(Service):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("gateway", clock=runtime.clock)
        self._runtime = runtime
        self._settings = runtime.settings.pickup
        self._access = access.Access(self._settings)
        self._figures = ProcessReporter(runtime, "gateway")
        self._rates = _Rates()
        self._ids = itertools.count(1)
        # Two lives of one process are two holders of sockets.
        self._stamp = secrets.token_hex(3)
        self._tasks: asyncio.TaskGroup | None = None
        self._archive: Archive | None = None
        self._sender: Sender | None = None
        self._server: asyncio.Server | None = None
        self._persisters: list[Persister] = []

    async def on_start(self) -> None:
        runtime, settings = self._runtime, self._settings
        await self._close_if_tokens_are_needed()
        self._archive = await Archive.open(runtime.settings.database_url, runtime.settings.prefix)
        self._sender = make_sender(settings)
        # Answers come in order on one connection; those that wait for the disk or a replica come
        # on several, and then only a fetch can tell what came first.
        in_order = runtime.settings.durability is Durability.MEMORY
        self.store = PickupStore(runtime, direct=in_order)
        mailbox = Mailbox(self.store, self._archive)
        self._pushes = Pushes(self.store, settings, self._sender)
        self.desk = Desk(self.store, mailbox, self._pushes, self._access, self._spawn)
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

    async def _close_if_tokens_are_needed(self) -> None:
        """Tokens that are no longer in the settings do not open the gateway."""
        mode = self._runtime.settings.access
        known = not self._access.nobody_known
        seen = await TokensSeen(self._runtime, "gateway").look(has_tokens=known)
        needed = mode is AccessMode.TOKENS or (mode is AccessMode.AUTO and seen)
        if needed and not self._settings.anonymous:
            self._access.close()
            if not known:
                self.log.warning("no_tokens", access=mode, fix=f"set {access.TOKENS}")

    def _begin_loops(self) -> None:
        settings = self._settings
        renewal_s = settings.lease_ms / 1000 / RENEWALS_PER_LEASE
        self.loop("renew", self._renew, renewal_s, until="stop")
        self.spawn("hints", self._hear_hints)
        self.loop("look", self.desk.sessions.look_at_all, LOOK_S)
        persist_s = min(PERSIST_S, settings.lease_ms / 1000 / RENEWALS_PER_LEASE)
        for partition, persister in enumerate(self._persisters):
            self.loop(f"persist-{partition}", persister.run_once, persist_s)
            self.loop(f"sweep-{partition}", Sweeper(self.store, partition).run_once, SWEEP_S)
        if settings.push_url is not None or settings.push_sender or settings.push_allowed:
            self.loop("push", self._pushes.run_once, PUSH_S)
        self.loop("figures", self._report, INTERVAL_S)

    async def on_quiet(self) -> None:
        self.desk.quiet = True
        if self._server is not None:
            self._server.close()

    async def on_stop(self) -> None:
        await self.passes_ended()
        await self.desk.sessions.close_everything()
        for client in list(self.desk.clients):
            client.close(WSCloseCode.SERVICE_RESTART)
        for persister in self._persisters:
            await persister.release()
        for partition in self.store.partitions:
            await self.store.renew_gateway(partition, end=True)
        await self._figures.withdraw()

    async def on_close(self) -> None:
        if self._server is not None:
            self._server.close()
        if hasattr(self, "desk"):
            for client in list(self.desk.clients):
                client.cut_off()
        if self._sender is not None:
            await close_sender(self._sender)
        if self._archive is not None:
            await self._archive.close()

    # Listening

    async def _listen(self) -> None:
        settings = self._settings
        listener = _listen(self._runtime.settings)
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
            max_frame_size=self.desk.frame_bytes_max,
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
            refusal = origin_problem(request.headers.get("Host"), request.headers.get("Origin"))
            if refusal is not None:
                forbidden = WSUpgradeResponse.create_error_response(403, refusal.encode())
                return WSUpgradeResponseWithListener(forbidden, None)
        tenant = self._access.by_token(request.headers.get("Authorization"))
        if tenant is None and not self._access.certificates:
            reason = "a bearer token is needed"
            if self._access.nobody_known:
                reason += f", and none is set: {access.TOKENS} takes them as tenant:token"
            unauthorized = WSUpgradeResponse.create_error_response(
                401, reason.encode(), {"WWW-Authenticate": "Bearer"}
            )
            return WSUpgradeResponseWithListener(unauthorized, None)
        return ClientSocket(self.desk, f"{self._stamp}-{next(self._ids)}", tenant)

    # Tasks

    async def _run_tasks(self, running: asyncio.Event) -> None:
        """One group for the steps of calls; each of them catches its own errors."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def _spawn(self, run: Coroutine[Any, Any, object]) -> None:
        if self._tasks is None:
            run.close()  # the gateway has stopped; what is left is found by others in time
            return

        async def guarded() -> None:
            try:
                await run
            except Exception as error:
                self.log.error("step_failed", error=repr(error), exc_info=error)

        task = self._tasks.create_task(guarded())
        # One that was cancelled before it began has never looked at `run`.
        task.add_done_callback(lambda _: run.close())

    async def _renew(self) -> None:
        """In all partitions at once: one whose server is away must not cost the others' leases."""
        renewals = map(self._renew_in, self.store.partitions)
        for result in await asyncio.gather(*renewals, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _renew_in(self, partition: int) -> None:
        if await self.store.renew_gateway(partition) == "revived" and len(self.desk.sessions):
            self.log.warning("lease_had_run_out", partition=partition)
            await self.desk.sessions.restore(partition)

    async def _hear_hints(self) -> None:
        channel = self.store.hints + self.store.gateway
        async with self._runtime.redis.subscribe(channel) as subscription:
            while True:
                batch = await subscription.receive()
                for message in batch.messages:
                    self._heard(message.payload)
                if batch.gap:
                    await self.desk.sessions.look_at_all()

    def _heard(self, hint: bytes) -> None:
        kind, *lines = hint.decode().split("\n")
        for line in lines:
            if kind == "mail":
                self.desk.sessions.wake(line)
            elif kind == "replaced":
                term, _, queue = line.partition(" ")
                self.desk.sessions.ended_elsewhere(queue, term)

    async def _report(self) -> None:
        desk, last = self.desk, self._rates
        now_s = self.clock.monotonic()
        now = _Rates(desk.added, desk.sessions.delivered, desk.removed, now_s)
        self._rates = now
        passed_s = max(now_s - last.at_s, 0.001) if last.at_s else INTERVAL_S
        figures = {
            "clients": len(desk.clients),
            "sessions": len(desk.sessions),
            "added_per_s": round((now.added - last.added) / passed_s, 1),
            "delivered_per_s": round((now.delivered - last.delivered) / passed_s, 1),
            "removed_per_s": round((now.removed - last.removed) / passed_s, 1),
            "added": now.added,
            "delivered": now.delivered,
            "removed": now.removed,
            "refused": desk.refused,
            "answer_bytes": desk.answers.held,
            "request_bytes": desk.requests.held,
            "pushes_sent": self._pushes.sent,
            "pushes_failed": self._pushes.failed,
        }
        self.log.info("figures", **figures)
        try:
            await self._figures.report(figures)
        except (RedisUnavailable, OutcomeUnknown) as error:
            self.log.warning("figures_not_reported", error=repr(error))


def _quiet_logger() -> logging.Logger:
    """One for all sockets: a logger for each, and two lines, would cost more than the socket."""
    logger = logging.getLogger("angarium.pickup.sockets")
    logger.setLevel(logging.CRITICAL)
    return logger


def _listen(settings: Settings) -> socket.socket:
    return listen(
        settings.pickup.host,
        settings.pickup.port,
        "ANGARIUM_PICKUP__PORT",
        host_setting="ANGARIUM_PICKUP__HOST",
    )
