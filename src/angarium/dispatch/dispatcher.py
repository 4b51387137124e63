"""The role `dispatcher`: hears the channel, leads its share of the partitions, deals to workers.

Every dispatcher hears every message and dials every worker, whether it leads or not, so that one
that takes over can go on at once. Leadership is per partition and shared out among the dispatchers
that live. Acknowledgements come on the links or at the ACK port of any dispatcher; taking one is a
write to Redis and needs no leader.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Sequence
from functools import partial

from angarium.dispatch import security
from angarium.dispatch.acknowledgements import AckListener, Answers
from angarium.dispatch.counts import DispatcherCounts
from angarium.dispatch.epochs import Ring, digest
from angarium.dispatch.links import Link, LinkOwner, Links, LinkTerms
from angarium.dispatch.partition import Heard, Partition, partition_of_digest
from angarium.dispatch.protocol import Rejected
from angarium.dispatch.store import DispatchStore
from angarium.runtime.application import Angarium
from angarium.runtime.errors import AngariumError
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import Settings
from angarium.runtime.sockets import listen

# Half a second of messages is compared at a takeover, and remembered in Redis until then.
MARK_S = 0.5
# How often the list of workers and dispatchers is read, and our own place in it confirmed.
MEMBERS_S = 1.0
# Messages that Redis has sent and we have not looked at; beyond them it buffers for us.
HEARD_MAX = 200_000
# From subscribing to hearing our own mark; Redis answered a moment ago.
HEAR_S_MAX = 10.0
# Redelivery looks this often within a time-out. Refused messages are due much sooner, so it also
# looks several times a second; more often than every 20 ms would only be a load.
CLAIMS_PER_TIMEOUT = 10
CLAIM_S_MIN = 0.02
CLAIM_S_MAX = 0.2
# Time-outs after which a message that is still held by a link was finished without our knowing;
# one that is still pending has been handed out anew long before.
FORGET_TIMEOUTS = 3
# A dispatcher that missed messages lets one that did not take over its partitions.
RESIGN_PAUSE_S = 1.0


def check(settings: Settings, app: Angarium) -> None:
    security.client_tls(settings)
    security.server_tls(settings)
    _listen(settings).close()


def build(runtime: Runtime, app: Angarium) -> Service:
    return Dispatcher(runtime)


def _unheard(_: bytes) -> None:
    pass


def _listen(settings: Settings) -> socket.socket:
    dispatch = settings.dispatch
    return listen(
        dispatch.ack_host,
        dispatch.ack_port,
        "ANGARIUM_DISPATCH__ACK_PORT",
        host_setting="ANGARIUM_DISPATCH__ACK_HOST",
    )


class Dispatcher(Service, LinkOwner):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("dispatcher", clock=runtime.clock)
        settings, limits = runtime.settings, runtime.settings.limits
        self._runtime = runtime
        self._dispatch = settings.dispatch
        self._store = DispatchStore(runtime)
        self.counts = DispatcherCounts()
        self._ring = Ring(limits.ring_messages_max, limits.ring_bytes_max)
        terms = LinkTerms(
            token=security.token(settings),
            tls=security.client_tls(settings),
            frame_bytes_max=limits.frame_bytes_max,
            window=self._dispatch.worker_window,
            heartbeat_s=self._dispatch.heartbeat_ms / 1000,
            name=runtime.actor,
            tracing=runtime.tracing,
        )
        self.links = Links(terms, self, self.counts, self.clock)
        self._answers = Answers(self._store, self._is_due, self.counts)
        self._acks = AckListener(self._answers, settings, self.counts, self._brought, self.clock)
        self.partitions = [
            Partition(number, runtime, self._store, self._ring, self.links, self.counts)
            for number in range(self._store.partitions)
        ]
        self._dispatchers = 1
        self._covered: dict[int, int] = {}
        self._hearing = asyncio.Event()
        self._willing = False  # to lead
        self._figures = ProcessReporter(runtime, "dispatcher")
        self._last_processed = 0
        self._last_figures_s = 0.0

    async def on_start(self) -> None:
        self.ports = {"ack": await self._acks.open(_listen(self._runtime.settings))}
        self._dispatchers = len(await self._store.join_dispatchers(self._runtime.actor))
        self._last_figures_s = self.clock.monotonic()
        self.spawn("links", self._keep_links)
        self.spawn("hear", self._hear)
        self.spawn("answers", self._answers.pump)
        self.loop("members", self._join_once, MEMBERS_S, until="stop")
        self.loop("marks", self._mark_once, MARK_S)
        self.loop("figures", self._figures_once, INTERVAL_S, until="stop")
        claim_s = self._dispatch.ack_timeout_ms / 1000 / CLAIMS_PER_TIMEOUT
        claim_s = min(max(claim_s, CLAIM_S_MIN), CLAIM_S_MAX)
        for each in self.partitions:
            self.spawn(f"lead-{each.number}", partial(each.lead, self))
            self.spawn(f"accept-{each.number}", each.pump)
            claims = self.loop(f"claim-{each.number}", each.claim_once, claim_s)
            each.on_backlog = claims.wake
            self.loop(f"inbox-{each.number}", each.take_inbox_once, 0.2)
        # Ready means: from here on nothing is missed, so one that waits for us may be stopped.
        async with asyncio.timeout(HEAR_S_MAX):
            await self._hearing.wait()
        self._willing = True
        for each in self.partitions:
            each.wake()

    async def on_quiet(self) -> None:
        self._willing = False
        for each in self.partitions:
            await each.hand_over()

    async def on_stop(self) -> None:
        await self._answers.drained()
        await self._store.leave_dispatchers(self._runtime.actor)
        await self._figures.withdraw()

    async def on_close(self) -> None:
        self.links.close()
        self._acks.close()

    # Hearing ----------------------------------------------------------------------------------

    async def _hear(self) -> None:
        store = self._store
        async with self._runtime.redis.subscribe(
            store.channel, store.marks, messages_max=HEARD_MAX, key=store.subscription_key
        ) as subscription:
            marks = store.marks.encode()
            while True:
                batch = await subscription.receive()
                run: list[bytes] = []
                for i, (channel, payload) in enumerate(batch.messages):
                    if batch.gap and i == batch.before_gap:
                        self._heard(run)
                        run = []
                        self._missed_some()
                    if channel == marks:
                        self._heard(run)
                        run = []
                        self._marked(payload)
                    else:
                        run.append(payload)
                self._heard(run)
                if batch.gap and batch.before_gap >= len(batch.messages):
                    self._missed_some()
                if batch.gap:
                    await store.mark_epoch()

    def _heard(self, payloads: list[bytes]) -> None:
        if not payloads:
            return
        self.counts.received += len(payloads)
        self._ring.add(payloads)
        if self._ring.current is not None:
            self._offer(self._ring.current, payloads)

    def _offer(self, epoch: int, payloads: Sequence[bytes]) -> None:
        listening = [each for each in self.partitions if each.listening]
        if not listening:
            return
        heard: list[Heard] = [(payload, digest(payload)) for payload in payloads]
        if len(self.partitions) == 1:
            listening[0].offer(epoch, heard)
            return
        parts: dict[int, list[Heard]] = {each.number: [] for each in listening}
        count = len(self.partitions)
        for each in heard:
            part = parts.get(partition_of_digest(each[1], count))
            if part is not None:
                part.append(each)
        for number, part in parts.items():
            if part:
                self.partitions[number].offer(epoch, part)

    def _marked(self, payload: bytes) -> None:
        try:
            self._take_mark(payload)
        except (ValueError, IndexError):
            # Anybody can publish here; what is not ours must not cost us the subscription.
            self.counts.protocol_errors += 1
            self.log.warning("mark_unreadable", mark=payload[:100].decode(errors="replace"))

    def _take_mark(self, payload: bytes) -> None:
        word, _, rest = payload.partition(b" ")
        if word == b"epoch":
            epoch = int(rest)
            self._hearing.set()
            if before := self._ring.mark(epoch):
                self._offer(epoch - 1, before)
        elif word == b"covered":
            number, _, epoch_text = rest.partition(b" ")
            self._covered[int(number)] = int(epoch_text)
            if len(self._covered) == len(self.partitions):
                self._ring.cover(min(self._covered.values()))
        elif word == b"done":
            self.links.answered_elsewhere(rest.split(b" "))
            self.has_space()
        elif word == b"free":
            self.partitions[int(rest)].wake()

    def _missed_some(self) -> None:
        """Our connection was away. Another dispatcher may have heard what we did not."""
        self._ring.forget_all()
        self._covered.clear()
        if self._dispatchers > 1:
            for each in self.partitions:
                if each.leading:
                    each.resign(RESIGN_PAUSE_S)

    # Leading ----------------------------------------------------------------------------------

    @property
    def willing(self) -> bool:
        return self._willing

    @property
    def alone(self) -> bool:
        return self._dispatchers <= 1

    @property
    def below_share(self) -> bool:
        return self._led < self._share

    @property
    def over_share(self) -> bool:
        return self._led > self._share

    @property
    def _share(self) -> int:
        return math.ceil(len(self.partitions) / max(1, self._dispatchers))

    @property
    def _led(self) -> int:
        return sum(each.leading for each in self.partitions)

    async def _join_once(self) -> None:
        members = len(await self._store.join_dispatchers(self._runtime.actor))
        if members != self._dispatchers:
            self._dispatchers = members
            for each in self.partitions:
                each.wake()

    async def _mark_once(self) -> None:
        if self.links.forget(FORGET_TIMEOUTS * self._dispatch.ack_timeout_ms / 1000):
            self.has_space()
        if not any(each.leading for each in self.partitions):
            return
        await self._store.mark_epoch()
        for each in self.partitions:
            for message_id in each.overstayed():
                self._answers.reject(message_id, "", 0)
            await each.cover_once()

    # Workers ----------------------------------------------------------------------------------

    async def _keep_links(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    found = await self._store.consumers()
                except AngariumError as error:
                    self.log.warning("consumers_unknown", error=str(error))
                else:
                    self.links.keep((*self._dispatch.consumers, *found), group)
                await self.clock.sleep(MEMBERS_S)

    def acknowledged(self, link: Link, ids: Sequence[bytes]) -> None:
        foreign = link.answered(ids)
        self.counts.acks_foreign += foreign
        if link.completes:
            self.counts.processed += len(ids) - foreign
        else:
            # One that never greeted may not know what an answer is.
            answer = link.answer if link.greeted else _unheard
            for message_id in ids:
                self._answers.acknowledge(message_id, link.consumer, answer)
        self.has_space()

    def rejected(self, link: Link, rejected: Rejected) -> None:
        if rejected.message_id not in link.held:
            # Too late: it was given to another already, who will answer for it.
            self.counts.acks_foreign += 1
            return
        link.answered([rejected.message_id])
        link.leaving = link.leaving or not rejected.reason
        reason = rejected.reason and f"{link.consumer}: {rejected.reason}"
        self._answers.reject(rejected.message_id, reason, self._dispatch.retry_delay_ms)
        self.has_space()

    def _brought(self, ids: Sequence[bytes]) -> None:
        """Acknowledged at our ACK port: by one of our own links, or by another dispatcher's,
        which has to hear of it, or its window would stay full."""
        self._answers.tell_others(self.links.answered_elsewhere(ids))
        self.has_space()

    def lost(self, link: Link, held: Sequence[bytes]) -> None:
        # A worker of another make may still store what it has and acknowledge elsewhere; it has
        # the whole time-out for that. One of ours can't do harm: its result counts once.
        if link.completes:
            for message_id in held:
                self._answers.reject(message_id, f"{link.consumer}: connection lost", 0)

    def _is_due(self, partition: int) -> None:
        if self.partitions[partition].leading:
            self.partitions[partition].look_for_due()

    def has_space(self) -> None:
        for each in self.partitions:
            if each.leading:
                each.flush()

    # Figures ----------------------------------------------------------------------------------

    async def _figures_once(self) -> None:
        led = [each for each in self.partitions if each.leading]
        pending = sum([await self._store.pending_count(each.number) for each in led])
        now_s = self.clock.monotonic()
        rate = (self.counts.processed - self._last_processed) / (now_s - self._last_figures_s)
        self._last_processed, self._last_figures_s = self.counts.processed, now_s
        figures = {
            **self.counts.table(),
            "pending": pending,
            "messages_per_s": round(rate, 1),
            "partitions_led": len(led),
            "workers": len(self.links.links),
            "queued": sum(each.queued for each in led),
            "ring_messages": self._ring.messages,
            "ring_dropped": self._ring.dropped,
        }
        await self._figures.report(figures)
        self._acks.warnings.flush()
        self.links.warnings.flush()
        shown = ("accepted", "processed", "redelivered", "pending", "messages_per_s")
        self.log.info("figures", **{name: figures[name] for name in shown}, leads=len(led))
