"""The role `dispatcher`: receives the channel, leads its share of partitions, sends to workers.

Every dispatcher receives every message and connects to every worker, whether it leads or not, so
a dispatcher that takes over can continue at once. Each partition has one leader; the partitions
are shared among the live dispatchers. Acknowledgements arrive on worker connections or at the ACK
port of any dispatcher. An acknowledgement is a write to Redis and needs no leader.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from angarium.dispatch import security
from angarium.dispatch.ack_listener import AckListener
from angarium.dispatch.acknowledgements import AcknowledgementWriter
from angarium.dispatch.deliveries import PassResult
from angarium.dispatch.epochs import EpochRing, PublishedMessage, digest
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.message_ids import partition_of_id
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.partition_leader import PartitionLeader, partition_of_digest
from angarium.dispatch.protocol import RejectionReceived
from angarium.dispatch.queues import UNNAMED, pack
from angarium.dispatch.renewals import RenewalWriter
from angarium.dispatch.settings import DispatchSettings
from angarium.dispatch.store import MEMBER_TTL_MS, DispatchStore
from angarium.dispatch.worker_connection import (
    WorkerConnection,
    WorkerConnectionEvents,
    WorkerConnectionOptions,
)
from angarium.dispatch.worker_pool import WorkerPool
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import CommonSettings
from angarium.runtime.sockets import listen

# The length of an epoch: a takeover compares at least this much with the digests in Redis.
EPOCH_S = 0.5
# How often the lists of workers and dispatchers are read, and our own entry is renewed.
MEMBERS_S = 1.0
# From subscribing to receiving our own first marker. Redis has just answered, so this is ample.
FIRST_MARKER_S_MAX = 10.0
# Due messages are claimed this often within a time-out. Rejected messages are due much sooner, so
# a claim follows at the latest after CLAIM_S_MAX; more often than CLAIM_S_MIN is only load.
CLAIMS_PER_TIMEOUT = 10
CLAIM_S_MIN = 0.02
CLAIM_S_MAX = 0.2
# After this many time-outs an unacknowledged message was finished without our knowledge: a
# message that is still pending was sent again long before.
FORGET_TIMEOUTS = 3
# How often old results are removed, and how many of a partition at most: a millisecond of Redis.
TRIM_S = 60.0
TRIM_ENTRIES_MAX = 100_000
# A dispatcher that missed messages lets another one take over its partitions for this long.
RESIGN_PAUSE_S = 1.0


def check(settings: CommonSettings, app: Application) -> None:
    security.client_tls(settings)
    security.server_tls(settings)
    host = settings.group(DispatchSettings).ack_host
    security.check_exposure(settings, host, "ANGARIUM_DISPATCH__ACK_HOST")
    _listen(settings).close()


def build(runtime: Runtime, app: Application) -> Service:
    return Dispatcher(runtime)


def _discard(_: bytes) -> None:
    pass


def _listen(settings: CommonSettings) -> socket.socket:
    dispatch = settings.group(DispatchSettings)
    return listen(
        dispatch.ack_host,
        dispatch.ack_port,
        "ANGARIUM_DISPATCH__ACK_PORT",
        host_setting="ANGARIUM_DISPATCH__ACK_HOST",
    )


class Dispatcher(Service, WorkerConnectionEvents):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("dispatcher", clock=runtime.clock)
        settings, limits = runtime.settings, runtime.settings.limits_of(DispatchLimits)
        self._runtime = runtime
        self._dispatch = settings.group(DispatchSettings)
        self._store = runtime.store(DispatchStore)
        self.metrics = DispatcherMetrics()
        self._ring = EpochRing(limits.ring_messages_max, limits.ring_bytes_max)
        options = WorkerConnectionOptions(
            token=security.token(settings),
            tls=security.client_tls(settings),
            frame_bytes_max=limits.frame_bytes_max,
            window=self._dispatch.worker_window,
            heartbeat_s=self._dispatch.heartbeat_ms / 1000,
            name=runtime.actor,
            lease_ms=self._dispatch.ack_timeout_ms,
            tracing=runtime.tracing,
        )
        self.workers = WorkerPool(options, self, self.metrics, self.clock)
        self._acknowledgements = AcknowledgementWriter(
            self._store, self._on_due, self.metrics, limits.ack_waiting_max
        )
        self._renewals = RenewalWriter(
            self._store,
            self.workers,
            self.metrics,
            self._postpone_time_outs,
            self._acknowledgements,
            limits.ack_waiting_max,
        )
        self._ack_listener = AckListener(
            self._acknowledgements, settings, self.metrics, self._on_ack_port, self.clock
        )
        self.partitions = [
            PartitionLeader(number, runtime, self._store, self._ring, self.workers, self.metrics)
            for number in range(self._store.partitions)
        ]
        self._members: Sequence[str] = ()
        self._suspects: dict[str, float] = {}  # dispatcher → until when it does not count
        self._covered: dict[int, int] = {}
        self._first_marker = asyncio.Event()
        self._may_lead = False
        self._reporter = ProcessReporter(runtime, "dispatcher")
        self._last_processed = 0
        self._last_report_s = 0.0

    async def on_start(self) -> None:
        self.ports = {"ack": await self._ack_listener.open(_listen(self._runtime.settings))}
        self._members = await self._store.join_dispatchers(self._runtime.actor)
        self._last_report_s = self.clock.monotonic()
        self.spawn("workers", self._follow_consumers)
        self.spawn("receive", self._receive)
        self.spawn("acknowledgements", self._acknowledgements.run)
        self.spawn("renewals", self._renewals.run)
        self.loop("members", self._join_once, MEMBERS_S, until="stop")
        self.loop("epochs", self._end_epoch_once, EPOCH_S)
        self.loop("results", self._trim_results_once, TRIM_S)
        self.loop("metrics", self._report_once, INTERVAL_S, until="stop")
        claim_s = self._dispatch.ack_timeout_ms / 1000 / CLAIMS_PER_TIMEOUT
        claim_s = min(max(claim_s, CLAIM_S_MIN), CLAIM_S_MAX)
        for each in self.partitions:
            self.spawn(f"lead-{each.number}", partial(each.lead, self))
            self.spawn(f"accept-{each.number}", each.run_accepts)
            claims = self.loop(f"claim-{each.number}", each.deliveries.claim_once, claim_s)
            each.deliveries.on_backlog = claims.wake
            self.loop(f"inbox-{each.number}", each.accept_inbox_once, 0.2)
        # Ready means that this dispatcher misses no message from now on: in a rolling restart the
        # next dispatcher may be stopped.
        async with asyncio.timeout(FIRST_MARKER_S_MAX):
            await self._first_marker.wait()
        self._may_lead = True
        for each in self.partitions:
            each.wake()

    async def on_quiet(self) -> None:
        self._may_lead = False
        for each in self.partitions:
            await each.hand_over()

    async def on_stop(self) -> None:
        await self._acknowledgements.drained()
        await self._store.leave_dispatchers(self._runtime.actor)
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        self.workers.close()
        self._ack_listener.close()

    # Receiving --------------------------------------------------------------------------------

    async def _receive(self) -> None:
        store, limits = self._store, self._runtime.settings.limits_of(DispatchLimits)
        queues = (UNNAMED, *self._dispatch.queues)
        by_channel = {store.channel_of(each).encode(): each.encode() for each in queues}
        async with self._runtime.redis.subscribe(
            *map(store.channel_of, queues),
            store.marker_channel,
            messages_max=limits.received_messages_max,
            bytes_max=limits.received_bytes_max,
            key=store.subscription_key,
        ) as subscription:
            marker_channel = store.marker_channel.encode()
            while True:
                batch = await subscription.receive()
                run: list[bytes] = []
                for i, (channel, payload) in enumerate(batch.messages):
                    if batch.gap and i == batch.before_gap:
                        self._handle_messages(run)
                        run = []
                        self._on_gap()
                    if channel == marker_channel:
                        self._handle_messages(run)
                        run = []
                        self._handle_marker(payload)
                    else:
                        run.append(pack(by_channel[channel], payload))
                self._handle_messages(run)
                if batch.gap and batch.before_gap >= len(batch.messages):
                    self._on_gap()
                if batch.gap:
                    await store.publish_epoch_marker()

    def _handle_messages(self, payloads: list[bytes]) -> None:
        if not payloads:
            return
        self.metrics.received += len(payloads)
        self._ring.add(payloads)
        if self._ring.current is not None:
            self._offer(self._ring.current, payloads)

    def _offer(self, epoch: int, payloads: Sequence[bytes]) -> None:
        accepting = [each for each in self.partitions if each.accepting]
        if not accepting:
            return
        messages: list[PublishedMessage] = [(payload, digest(payload)) for payload in payloads]
        if len(self.partitions) == 1:
            accepting[0].offer(epoch, messages)
            return
        parts: dict[int, list[PublishedMessage]] = {each.number: [] for each in accepting}
        count = len(self.partitions)
        for message in messages:
            part = parts.get(partition_of_digest(message[1], count))
            if part is not None:
                part.append(message)
        for number, part in parts.items():
            if part:
                self.partitions[number].offer(epoch, part)

    def _handle_marker(self, payload: bytes) -> None:
        try:
            self._apply_marker(payload)
        except (ValueError, IndexError):
            # Anybody can publish on this channel; an invalid text must not end the subscription.
            self.metrics.protocol_errors += 1
            self.log.warning("marker_unreadable", marker=payload[:100].decode(errors="replace"))

    def _apply_marker(self, payload: bytes) -> None:
        word, _, rest = payload.partition(b" ")
        if word == b"epoch":
            epoch = int(rest)
            self._first_marker.set()
            if before := self._ring.begin_epoch(epoch):
                self._offer(epoch - 1, before)
        elif word == b"covered":
            number, _, epoch_text = rest.partition(b" ")
            self._covered[int(number)] = int(epoch_text)
            if len(self._covered) == len(self.partitions):
                self._ring.drop_covered(min(self._covered.values()))
        elif word == b"done":
            self.workers.settle(rest.split(b" "))
            self.on_free_slots()
        elif word == b"free":
            self.partitions[int(rest)].announced_free()

    def _on_gap(self) -> None:
        """The subscription had a gap. Another dispatcher may have received the missed messages."""
        self._ring.clear()
        self._covered.clear()
        if not self.is_only_dispatcher:
            for each in self.partitions:
                if each.leading:
                    each.resign(RESIGN_PAUSE_S)

    # Leading ----------------------------------------------------------------------------------

    @property
    def may_lead(self) -> bool:
        return self._may_lead

    @property
    def is_only_dispatcher(self) -> bool:
        return len(self._members) <= 1

    @property
    def below_share(self) -> bool:
        return self._led < self._share

    @property
    def over_share(self) -> bool:
        return self._led > self._share

    @property
    def _share(self) -> int:
        live = sum(each not in self._suspects for each in self._members)
        return math.ceil(len(self.partitions) / max(1, live))

    @property
    def _led(self) -> int:
        return sum(each.leading for each in self.partitions)

    async def _join_once(self) -> None:
        share, now_s = self._share, self.clock.monotonic()
        self._members = await self._store.join_dispatchers(self._runtime.actor)
        self._suspects = {each: end_s for each, end_s in self._suspects.items() if end_s > now_s}
        if self._share != share:
            self._wake_leaders()

    def suspect(self, dispatcher: str) -> None:
        """Its lock expired. It does not count until the list of dispatchers has lost it; a
        dispatcher that lives gets its share afterwards."""
        if dispatcher != self._runtime.actor and dispatcher not in self._suspects:
            self._suspects[dispatcher] = self.clock.monotonic() + MEMBER_TTL_MS / 1000
            self._wake_leaders()

    def _wake_leaders(self) -> None:
        for each in self.partitions:
            each.wake()

    def _postpone_time_outs(self) -> None:
        for each in self.partitions:
            each.deliveries.postpone_time_outs()

    async def _end_epoch_once(self) -> None:
        if self.workers.forget_older_than(FORGET_TIMEOUTS * self._dispatch.ack_timeout_ms / 1000):
            self.on_free_slots()
        if not any(each.leading for each in self.partitions):
            return
        await self._store.publish_epoch_marker()
        for each in self.partitions:
            await each.deliveries.return_expired()
            await each.cover_once()

    async def _trim_results_once(self) -> PassResult:
        """Remove some old results; the next pass follows at once while there are more."""
        keep_ms, total, most = self._dispatch.results_keep_s * 1000, 0, 0
        for each in self.partitions:
            if keep_ms and each.leading:
                trimmed = await self._store.trim_results(each.number, keep_ms, TRIM_ENTRIES_MAX)
                total += trimmed
                most = max(most, trimmed)
        # Redis removes whole nodes of the stream, so a full pass may remove a few fewer.
        return PassResult(total, again=most > TRIM_ENTRIES_MAX // 2)

    # Workers ----------------------------------------------------------------------------------

    async def _follow_consumers(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    registered = await self._store.consumers()
                    named = [address for _, address in await self._store.named_consumers()]
                except AngariumError as error:
                    self.log.warning("consumers_unknown", error=str(error))
                else:
                    found = (*self._dispatch.consumers, *registered, *named)
                    self.workers.connect_to(found, group)
                await self.clock.sleep(MEMBERS_S)

    def on_acknowledged(self, connection: WorkerConnection, ids: Sequence[bytes]) -> None:
        foreign = connection.settle(ids)
        self.metrics.acks_foreign += foreign
        if connection.completes:
            self.metrics.processed += len(ids) - foreign
        else:
            # A worker without HELLO may not know NACK_MESSAGE, the reply to an unknown id.
            send_reply = connection.write if connection.said_hello else _discard
            self._acknowledgements.acknowledge(ids, connection.consumer, send_reply)
            connection.push_back(self._acknowledgements)
        self.on_free_slots()

    def on_rejected(self, connection: WorkerConnection, rejection: RejectionReceived) -> None:
        if rejection.message_id not in connection.unacknowledged:
            # Too late: the message timed out and went to another worker.
            self.metrics.acks_foreign += 1
            return
        delivery = connection.delivery_of(rejection.message_id)
        connection.settle([rejection.message_id])
        connection.draining = connection.draining or not rejection.reason
        self._acknowledgements.reject(rejection, connection.consumer, delivery)
        connection.push_back(self._acknowledgements)
        self.on_free_slots()

    def on_renewed(self, connection: WorkerConnection, ids: Sequence[bytes]) -> None:
        self._renewals.add(connection, ids)

    def on_released(self, connection: WorkerConnection, ids: Sequence[bytes]) -> None:
        """The worker stored why it no longer holds these messages: most of them failed."""
        self.metrics.rejected += len(ids) - connection.settle(ids)
        for partition in {partition_of_id(each, self._store.partitions) for each in ids}:
            self._on_due(partition)
        self.on_free_slots()

    def on_lost(self, connection: WorkerConnection, unacknowledged: Sequence[bytes]) -> None:
        # A worker that renews may live: it renews on another connection, or loses its messages
        # with the lease. A third-party worker may still store its results and acknowledge at an
        # ACK port. For a worker of release 0.1 a result counts once anyway.
        if connection.completes and not connection.renews:
            for message_id in unacknowledged:
                lost = RejectionReceived(message_id, "connection lost")
                self._acknowledgements.reject(lost, connection.consumer, 0)

    def on_free_slots(self) -> None:
        for each in self.partitions:
            if each.leading:
                each.deliveries.send_queued()

    def _on_ack_port(self, ids: Sequence[bytes]) -> None:
        """Free the slots of messages that were acknowledged at our ACK port. Those that another
        dispatcher sent are announced to it, or its window would stay full."""
        self._acknowledgements.announce_finished(self.workers.settle(ids))
        self.on_free_slots()

    def _on_due(self, partition: int) -> None:
        if self.partitions[partition].leading:
            self.partitions[partition].deliveries.expect_due_messages()

    # Metrics ----------------------------------------------------------------------------------

    async def _report_once(self) -> None:
        led = [each for each in self.partitions if each.leading]
        pending = sum([await self._store.pending_count(each.number) for each in led])
        now_s = self.clock.monotonic()
        rate = (self.metrics.processed - self._last_processed) / (now_s - self._last_report_s)
        self._last_processed, self._last_report_s = self.metrics.processed, now_s
        reported = {
            **asdict(self.metrics),
            "pending": pending,
            "messages_per_s": round(rate, 1),
            "partitions_led": len(led),
            "workers": len(self.workers.connections),
            "queued": sum(each.queued for each in led),
            "ring_messages": self._ring.messages,
            "ring_dropped": self._ring.dropped,
        }
        await self._reporter.report(reported)
        self._ack_listener.warnings.flush()
        self.workers.warnings.flush()
        shown = ("accepted", "processed", "redelivered", "pending", "messages_per_s")
        self.log.debug("metrics", **{name: reported[name] for name in shown}, leads=len(led))
