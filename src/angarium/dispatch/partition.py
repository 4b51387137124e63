"""Leading one partition: its lease, what it accepts from the channel and the inbox, redelivery.

While it leads, everything heard for its partition is queued, accepted in batches and dealt to the
workers. When it takes over, it first accepts what it heard and no leader before it recorded. Every
write carries the term; the first one that Redis calls stale ends this leadership, and what was
queued is dropped, for the next leader heard it too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from angarium.dispatch.counts import DispatcherCounts
from angarium.dispatch.epochs import Ring
from angarium.dispatch.frames import message_bytes
from angarium.dispatch.identity import new_ids
from angarium.dispatch.links import Link, Links
from angarium.dispatch.ready import Ready
from angarium.dispatch.store import Claimed, DispatchStore, MessageBytes
from angarium.runtime import log
from angarium.runtime.errors import AngariumError
from angarium.runtime.lease import Lease, Turn
from angarium.runtime.runtime import Runtime

# One that Redis works on, one that is prepared meanwhile.
IN_FLIGHT_MAX = 2
# Who has just given a partition back lets the others try first.
SHARE_PAUSE_S = 0.2
# Looks, a third of a lock's expiry apart, at which a partition was free.
FREE_LOOKS_WHOLE = 2
FREE_LOOKS_PARTIAL = 4
# Long enough not to be a load, short enough to notice at once that we no longer lead.
INBOX_BLOCK_MS = 1_000

Heard = tuple[bytes, bytes]
"""Payload and its digest."""


@dataclass(frozen=True)
class Batch:
    """What goes into one call. Its ids stay the same however often it is tried."""

    epoch: int
    messages: Sequence[MessageBytes]
    digests: bytes
    leadership: int  # which of ours it was heard in


@dataclass(frozen=True)
class Pass:
    """What one pass of claiming or of the inbox did; `again` asks for the next one at once."""

    messages: int = 0
    again: bool = False


class Shares(Protocol):
    """How many of the partitions this dispatcher should lead, as things stand now."""

    @property
    def willing(self) -> bool: ...
    @property
    def alone(self) -> bool: ...
    @property
    def below_share(self) -> bool: ...
    @property
    def over_share(self) -> bool: ...


class Partition:
    def __init__(
        self,
        number: int,
        runtime: Runtime,
        store: DispatchStore,
        ring: Ring,
        links: Links,
        counts: DispatcherCounts,
    ) -> None:
        self.number = number
        self.leading = False
        self._closing = False
        self._closing_epoch: int | None = None  # the one in which we stopped to listen
        self._leadership = 0
        self._runtime = runtime
        self._clock = runtime.clock
        self._store = store
        self._ring = ring
        self._links = links
        self._counts = counts
        self._limits = runtime.settings.limits
        self._payload_bytes_max = self._limits.frame_bytes_max - message_bytes(b"")
        self._lease = Lease(runtime, store.lease_keys(number), runtime.settings.dispatch.lock_ms)
        self._queue: deque[tuple[int, deque[Heard]]] = deque()
        self._retries: deque[Batch] = deque()
        self._unfinished: Counter[int] = Counter()  # messages of an epoch not accepted yet
        self._recorded: set[int] = set()  # epochs that may have digests in Redis
        self._in_flight = 0
        self._ready = Ready(links, self._clock, runtime.settings.dispatch.ack_timeout_ms / 1000)
        self._backlog = True  # messages may be due in Redis; those come before newer ones
        self._covered = 0
        self._pump_wake = asyncio.Event()
        self._lead_wake = asyncio.Event()
        self._resigning = False
        self._free_looks = 0
        self._not_before_s = float("-inf")
        self.on_backlog: Callable[[], None] = lambda: None
        self._log = log.logger("angarium.dispatch", partition=number)

    @property
    def term(self) -> int | None:
        return self._lease.term if self._lease.trusted else None

    @property
    def listening(self) -> bool:
        """What is heard for this partition is ours to accept."""
        return self.leading and not self._closing

    @property
    def queued(self) -> int:
        return sum(self._unfinished.values())

    @property
    def backlog(self) -> bool:
        return self._backlog

    def flush(self) -> None:
        """Workers have space. A leader that was paused finds its trust gone and sends nothing:
        what it held is due in Redis before long."""
        if self._ready and self._lease.trusted:
            self._counts.sent += self._ready.deal()
        if not self._ready and self._backlog:
            self.on_backlog()

    def look_for_due(self) -> None:
        """Messages were given back: they come before newer ones."""
        self._backlog = True
        if not self._ready:
            self.on_backlog()

    def overstayed(self) -> list[bytes]:
        """Messages that waited for a worker for too long, to be given back to Redis."""
        return self._ready.overstayed()

    # Hearing ----------------------------------------------------------------------------------

    def offer(self, epoch: int, heard: Sequence[Heard]) -> None:
        """Messages of ours, in the order in which they were published."""
        if self._queue and self._queue[-1][0] == epoch:
            self._queue[-1][1].extend(heard)
        else:
            self._queue.append((epoch, deque(heard)))
        self._unfinished[epoch] += len(heard)
        self._pump_wake.set()

    def wake(self) -> None:
        """Somebody gave a partition back, or the shares have changed."""
        self._lead_wake.set()

    def resign(self, pause_s: float) -> None:
        """Hand over as soon as what is queued is accepted, and let others try first."""
        self._resigning = True
        self._not_before_s = self._clock.monotonic() + pause_s
        self._lead_wake.set()

    # Leading ----------------------------------------------------------------------------------

    async def lead(self, shares: Shares) -> None:
        """Keep the lease, or wait for it; for ever."""
        while True:
            await self._turn(shares)
            self._lead_wake.clear()
            try:
                async with asyncio.timeout(self._lease.pause_s):
                    await self._lead_wake.wait()
            except TimeoutError:
                continue

    async def _turn(self, shares: Shares) -> None:
        if self.leading:
            if self._resigning or shares.over_share:
                await self.hand_over()
            elif await self._lease.run_once() is Turn.LOST:
                self._lose("its lock expired")
        elif (
            shares.willing
            and self._ring.current is not None
            and await self._may_try(shares)
            # RestartingTask without leading: the last takeover failed half-way.
            and await self._lease.run_once() in (Turn.GAINED, Turn.KEPT)
        ):
            await self._take_over()
            if self.leading and not shares.willing:
                await self.hand_over()  # told to stop meanwhile

    async def _may_try(self, shares: Shares) -> bool:
        """Whether the partition is ours to take, if it is free.

        One who heard everything since the last leader's record goes first: it alone can close
        the gap. One who did not, or who leads its share already, takes only what it finds free
        again and again.
        """
        self._resigning = False
        if self._clock.monotonic() < self._not_before_s:
            return False
        covered = await self._store.covered(self.number)
        whole = covered == 0 or self._ring.whole_since(covered) or shares.alone
        if shares.below_share and whole:
            self._free_looks = 0
            return True
        self._free_looks = 0 if await self._store.is_led(self.number) else self._free_looks + 1
        return self._free_looks >= (FREE_LOOKS_WHOLE if whole else FREE_LOOKS_PARTIAL)

    async def _take_over(self) -> None:
        if not await self._catch_up():
            return
        covered = await self._store.covered(self.number)
        epochs = self._ring.epochs_from(covered)
        accepted = await self._store.accepted_digests(self.number, epochs)
        # No await from here on: what is heard next must find us leading.
        self._queue.clear()
        self._retries.clear()
        self._unfinished.clear()
        self._recorded = set(epochs)
        self._covered = covered
        self._backlog = True
        self._free_looks = 0
        self._leadership += 1
        self._closing = False
        self.leading = True
        missed = 0
        for epoch, heard in self._ring.missing(accepted, covered, self.is_ours):
            self.offer(epoch, heard)
            missed += len(heard)
        self._counts.takeovers += 1
        self._counts.gap_accepted += missed
        whole = covered == 0 or self._ring.whole_since(covered)
        self._log.info("leading", term=self.term, missed=missed, heard_everything=whole)
        self.on_backlog()

    async def _catch_up(self) -> bool:
        """Hear everything that any leader before us may have accepted: all of that was published
        before a mark made under our own term. Without it, what reaches us late would be accepted
        twice."""
        mark = await self._store.mark_epoch()
        renew_at_s = self._clock.monotonic() + self._lease.pause_s
        while self._ring.current is not None and self._ring.current < mark:
            if self._clock.monotonic() >= renew_at_s:
                renew_at_s = self._clock.monotonic() + self._lease.pause_s
                if await self._lease.run_once() is Turn.LOST:
                    return False
            await self._clock.sleep(0.005)
        if self._ring.current is None:
            # The connection was lost meanwhile. Somebody else may have heard it all.
            await self._lease.release()
            return False
        return True

    def is_ours(self, digest: bytes) -> bool:
        return partition_of_digest(digest, self._store.partitions) == self.number

    def _lose(self, why: str) -> None:
        if self.leading:
            self.leading = False
            self._log.warning("leading_no_more", why=why, dropped=self.queued)
        self._queue.clear()
        self._retries.clear()
        self._unfinished.clear()
        self._ready.clear()

    async def hand_over(self) -> None:
        """Accept what was heard, then give the partition to whoever wants it. What is heard
        from now on is the next leader's, whose ring has it."""
        if not self.leading:
            return
        self._closing = True
        self._closing_epoch = self._ring.current
        renew_at_s = self._clock.monotonic()
        while self.leading and (self.queued > 0 or self._in_flight):
            if self._clock.monotonic() >= renew_at_s:
                renew_at_s = self._clock.monotonic() + self._lease.pause_s
                if await self._lease.run_once() is Turn.LOST:
                    self._lose("its lock expired")
            await self._clock.sleep(0.005)
        await self.cover_once()
        unsent = self._ready.take_all()
        for start in range(0, len(unsent), self._store.items_max):
            part = unsent[start : start + self._store.items_max]
            await self._store.reject(self.number, [(message_id, "", 0) for message_id in part])
        if not self.leading:
            return
        self.leading = False
        await self._lease.release()
        await self._store.give_back(self.number)
        self._resigning = False
        self._not_before_s = max(self._not_before_s, self._clock.monotonic() + SHARE_PAUSE_S)
        self._log.info("handed_over")

    # Accepting --------------------------------------------------------------------------------

    async def pump(self) -> None:
        """Accept what is offered, at most two calls at a time; for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._pump_wake.wait()
                self._pump_wake.clear()
                while self.leading and self._in_flight < IN_FLIGHT_MAX:
                    batch = self._next_batch()
                    if batch is None:
                        break
                    self._in_flight += 1
                    group.create_task(self._accept(batch))

    def _next_batch(self) -> Batch | None:
        if self._retries:
            return self._retries.popleft()
        while self._queue and not self._queue[0][1]:
            self._queue.popleft()
        if not self._queue:
            return None
        epoch, heard = self._queue[0]
        count_max, size_max = self._store.items_max, self._limits.batch_bytes_max
        payloads: list[bytes] = []
        digests: list[bytes] = []
        size = 0
        while heard and len(payloads) < count_max and size < size_max:
            payload, digest = heard.popleft()
            payloads.append(payload)
            digests.append(digest)
            size += len(payload)
        ids = new_ids(len(payloads), self.number, self._store.partitions)
        messages = list(zip(ids, payloads, strict=True))
        return Batch(epoch, messages, b"".join(digests), self._leadership)

    async def _accept(self, batch: Batch) -> None:
        count, began_ns = len(batch.messages), time.time_ns()
        sent = self._sendable(count)
        try:
            accepted = await self._store.accept(
                self.number, self._lease.term, batch.epoch, batch.messages, batch.digests, sent
            )
        except AngariumError as error:
            # The batch is known by its first id, so it can be sent again, whatever happened.
            await self._try_again(batch, error)
            return
        self._in_flight -= 1
        self._pump_wake.set()  # whoever leads by now may be waiting for this place
        if batch.leadership != self._leadership or not self.leading:
            return
        if accepted is None:
            self._lose("a newer leader exists")
            return
        self._recorded.add(batch.epoch)
        self._unfinished[batch.epoch] -= count
        self._counts.accepted += accepted
        self._counts.refused += count - accepted
        self._take_in(batch.messages[:accepted], sent, began_ns)

    async def _try_again(self, batch: Batch, error: AngariumError) -> None:
        self._log.warning("accept_failed", error=str(error), messages=len(batch.messages))
        try:
            await self._clock.sleep(0.1)
        finally:
            self._in_flight -= 1
            self._pump_wake.set()
        if self.leading and batch.leadership == self._leadership:
            self._retries.append(batch)

    def _sendable(self, count: int) -> int:
        """How many of the next messages we send ourselves. What waits in Redis comes first."""
        return 0 if self._backlog else min(count, self._ready.space)

    def _take_in(self, messages: Sequence[MessageBytes], sent: int, began_ns: int) -> None:
        """Freshly accepted: the first `sent` are ours to send, the others are due in Redis."""
        tracing = self._runtime.tracing
        if tracing is not None:
            tracing.messages("dispatch accept", messages, began_ns, first=True)
        # What no frame can carry went from the script to the dead letters.
        bytes_max = self._payload_bytes_max
        fit = [each for each in messages[:sent] if len(each[1]) <= bytes_max]
        self._counts.too_large += min(sent, len(messages)) - len(fit)
        self._ready.add(fit)
        if len(messages) > sent:
            self._backlog = True
        self.flush()

    # Redelivering -----------------------------------------------------------------------------

    async def claim_once(self) -> Pass:
        """Send what is due, as far as workers have space for it."""
        space = min(self._links.space, self._store.items_max)
        if not self.leading or not self._lease.trusted or self._ready or space <= 0:
            return Pass()
        leadership = self._leadership
        claim = await self._store.claim(self.number, self._lease.term, space)
        if leadership != self._leadership or not self.leading:
            return Pass()
        if claim is None:
            self._lose("a newer leader exists")
            return Pass()
        self._counts.dead += claim.dead
        self._backlog = claim.full
        if claim.messages:
            self._redeliver(claim.messages)
        return Pass(len(claim.messages), again=claim.full)

    def _redeliver(self, messages: Sequence[Claimed]) -> None:
        holders = [self._links.holder(each.message_id) for each in messages]
        expired: dict[Link, list[bytes]] = {}
        for each, link in zip(messages, holders, strict=True):
            if link is not None:
                expired.setdefault(link, []).append(each.message_id)
        for link, ids in expired.items():
            link.expired(ids)
        pairs = [(each.message_id, each.payload) for each in messages]
        self._ready.add(pairs, holders if expired else ())
        self._counts.redelivered += sum(each.delivery > 1 for each in messages)
        self.flush()

    # Durable intake ---------------------------------------------------------------------------

    async def take_inbox_once(self) -> Pass:
        if not self.leading or not self._lease.trusted:
            return Pass()
        if not await self._store.wait_for_inbox(self.number, INBOX_BLOCK_MS):
            return Pass(again=True)
        if not self.leading or not self._lease.trusted:
            return Pass()
        count = self._store.items_max
        sent, leadership, began_ns = self._sendable(count), self._leadership, time.time_ns()
        taken = await self._store.take_inbox(self.number, self._lease.term, count, sent)
        if leadership != self._leadership or not self.leading:
            return Pass()
        if taken is None:
            self._lose("a newer leader exists")
            return Pass()
        self._counts.accepted += len(taken)
        self._take_in(taken, sent, began_ns)
        return Pass(len(taken), again=bool(taken))

    # Covering ---------------------------------------------------------------------------------

    async def cover_once(self) -> None:
        """Say how far everything is accepted, so that nobody keeps it for a takeover."""
        current = self._closing_epoch if self._closing else self._ring.current
        if not self.leading or not self._lease.trusted or current is None:
            return
        if self._resigning:
            return  # We missed some that others heard; they are the next leader's.
        unfinished = [epoch for epoch, count in self._unfinished.items() if count > 0]
        epoch = min([*unfinished, current])
        if epoch <= self._covered:
            return
        finished = [each for each in self._recorded if each < epoch]
        leadership = self._leadership
        done = await self._store.cover(self.number, self._lease.term, epoch, finished)
        if leadership != self._leadership or not self.leading:
            return
        if done is None:
            self._lose("a newer leader exists")
            return
        self._covered = epoch
        self._recorded.difference_update(finished)
        for each in [each for each in self._unfinished if each < epoch]:
            del self._unfinished[each]


def partition_of_digest(digest: bytes, partitions: int) -> int:
    return int.from_bytes(digest[:4], "big") % partitions if partitions > 1 else 0
