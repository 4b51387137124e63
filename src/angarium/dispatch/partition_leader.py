"""Leads one partition: its lease, acceptance from channel and inbox, redelivery.

While this dispatcher leads, every message published for the partition is queued, accepted in
batches and sent to workers. At a takeover the leader first accepts the messages that it received
and no earlier leader recorded. Every write carries the term. The first write that Redis refuses
as stale ends this leadership; the queued messages are dropped, because the next leader received
them too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from angarium.dispatch.epochs import EpochRing, PublishedMessage
from angarium.dispatch.frames import DispatchedMessage, message_bytes
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.send_queue import SendQueue
from angarium.dispatch.settings import DispatchSettings
from angarium.dispatch.store import ClaimedMessage, DispatchStore
from angarium.dispatch.worker_connection import WorkerConnection
from angarium.dispatch.worker_pool import WorkerPool
from angarium.runtime import log
from angarium.runtime.errors import AngariumError
from angarium.runtime.lease import Lease, LeaseOutcome
from angarium.runtime.runtime import Runtime

# Redis executes one batch while the next one is prepared.
IN_FLIGHT_MAX = 2
# After a handover the other dispatchers get this long to acquire the partition first.
SHARE_PAUSE_S = 0.2
# Consecutive checks, a third of the lock's expiry apart, that find the partition without a leader.
FREE_CHECKS_COMPLETE = 2
FREE_CHECKS_PARTIAL = 4
# Long enough to cause little load, short enough to notice the end of the leadership.
INBOX_BLOCK_MS = 1_000


@dataclass(frozen=True)
class AcceptBatch:
    """The arguments of one accept call. A repeated call has the same ids."""

    epoch: int
    messages: Sequence[DispatchedMessage]
    digests: bytes
    leadership: int  # the number of the leadership in which the messages were received


@dataclass(frozen=True)
class PassResult:
    """The result of one pass over due messages or the inbox; `again` requests the next at once."""

    messages: int = 0
    again: bool = False


class LeadershipShare(Protocol):
    """How many partitions this dispatcher leads, compared with its share."""

    @property
    def may_lead(self) -> bool: ...
    @property
    def is_only_dispatcher(self) -> bool: ...
    @property
    def below_share(self) -> bool: ...
    @property
    def over_share(self) -> bool: ...


class PartitionLeader:
    def __init__(
        self,
        number: int,
        runtime: Runtime,
        store: DispatchStore,
        ring: EpochRing,
        workers: WorkerPool,
        metrics: DispatcherMetrics,
    ) -> None:
        self.number = number
        self.leading = False
        self._closing = False
        self._closing_epoch: int | None = None  # the epoch in which the handover began
        self._leadership = 0
        self._runtime = runtime
        self._clock = runtime.clock
        self._store = store
        self._ring = ring
        self._workers = workers
        self._metrics = metrics
        self._limits = runtime.settings.limits
        self._payload_bytes_max = self._limits.frame_bytes_max - message_bytes(b"")
        self._lease = Lease(
            runtime, store.lease_keys(number), runtime.settings.group(DispatchSettings).lock_ms
        )
        self._queue: deque[tuple[int, deque[PublishedMessage]]] = deque()
        self._retries: deque[AcceptBatch] = deque()
        self._unaccepted: Counter[int] = Counter()  # number of messages by epoch
        self._recorded: set[int] = set()  # epochs that may have digests in Redis
        self._in_flight = 0
        ack_timeout_s = runtime.settings.group(DispatchSettings).ack_timeout_ms / 1000
        self._send_queue = SendQueue(workers, self._clock, ack_timeout_s)
        self._backlog = True  # messages may be due in Redis; they are sent before newer ones
        self._covered = 0
        self._accept_wake = asyncio.Event()
        self._lead_wake = asyncio.Event()
        self._resigning = False
        self._free_checks = 0
        self._not_before_s = float("-inf")
        self.on_backlog: Callable[[], None] = lambda: None
        self._log = log.logger("angarium.dispatch", partition=number)

    @property
    def term(self) -> int | None:
        return self._lease.term if self._lease.trusted else None

    @property
    def accepting(self) -> bool:
        """Whether this leader accepts messages that are published now."""
        return self.leading and not self._closing

    @property
    def queued(self) -> int:
        return sum(self._unaccepted.values())

    def send_queued(self) -> None:
        """Send what workers have free slots for. A leader that was paused past its lease sends
        nothing: its messages become due in Redis."""
        if self._send_queue and self._lease.trusted:
            self._metrics.sent += self._send_queue.send()
        if not self._send_queue and self._backlog:
            self.on_backlog()

    def expect_due_messages(self) -> None:
        """Messages were given back: they are sent before newer ones."""
        self._backlog = True
        if not self._send_queue:
            self.on_backlog()

    def take_expired(self) -> list[bytes]:
        """Ids of messages that waited too long for a worker. The caller gives them back."""
        return self._send_queue.take_expired()

    def offer(self, epoch: int, messages: Sequence[PublishedMessage]) -> None:
        """Queue messages of this partition, in the order in which they were published."""
        if self._queue and self._queue[-1][0] == epoch:
            self._queue[-1][1].extend(messages)
        else:
            self._queue.append((epoch, deque(messages)))
        self._unaccepted[epoch] += len(messages)
        self._accept_wake.set()

    def wake(self) -> None:
        """A partition became free, or the shares changed: check the lease now."""
        self._lead_wake.set()

    def resign(self, pause_s: float) -> None:
        """Hand over when the queued messages are accepted, and do not acquire for `pause_s`."""
        self._resigning = True
        self._not_before_s = self._clock.monotonic() + pause_s
        self._lead_wake.set()

    # Leading ----------------------------------------------------------------------------------

    async def lead(self, share: LeadershipShare) -> None:
        """Renew the lease, or try to acquire it, for ever."""
        while True:
            await self._lead_once(share)
            self._lead_wake.clear()
            try:
                async with asyncio.timeout(self._lease.pause_s):
                    await self._lead_wake.wait()
            except TimeoutError:
                continue

    async def _lead_once(self, share: LeadershipShare) -> None:
        if self.leading:
            if self._resigning or share.over_share:
                await self.hand_over()
            elif await self._lease.run_once() is LeaseOutcome.LOST:
                self._stop_leading("its lock expired")
        elif (
            share.may_lead
            and self._ring.current is not None
            and await self._may_acquire(share)
            # KEPT without leading: the last takeover failed after the lease was acquired.
            and await self._lease.run_once() in (LeaseOutcome.GAINED, LeaseOutcome.RENEWED)
        ):
            await self._take_over()
            if self.leading and not share.may_lead:
                await self.hand_over()  # the dispatcher began to stop meanwhile

    async def _may_acquire(self, share: LeadershipShare) -> bool:
        """Whether to acquire the partition if it is free.

        A dispatcher that received every message since the last covered epoch goes first: only it
        can close the gap. A dispatcher with a gap, or with its full share of partitions, acquires
        a partition only after several checks found it free.
        """
        self._resigning = False
        if self._clock.monotonic() < self._not_before_s:
            return False
        covered = await self._store.covered(self.number)
        complete = covered == 0 or self._ring.complete_since(covered) or share.is_only_dispatcher
        if share.below_share and complete:
            self._free_checks = 0
            return True
        has_leader = await self._store.has_leader(self.number)
        self._free_checks = 0 if has_leader else self._free_checks + 1
        return self._free_checks >= (FREE_CHECKS_COMPLETE if complete else FREE_CHECKS_PARTIAL)

    async def _take_over(self) -> None:
        if not await self._wait_for_own_marker():
            return
        covered = await self._store.covered(self.number)
        epochs = self._ring.epochs_from(covered)
        accepted = await self._store.accepted_digests(self.number, epochs)
        # No await from here on: the next published message must find `leading` set.
        self._clear_queues()
        self._recorded = set(epochs)
        self._covered = covered
        self._backlog = True
        self._free_checks = 0
        self._leadership += 1
        self._closing = False
        self.leading = True
        missed = 0
        for epoch, messages in self._ring.unaccepted(accepted, covered, self._owns):
            self.offer(epoch, messages)
            missed += len(messages)
        self._metrics.takeovers += 1
        self._metrics.gap_accepted += missed
        complete = covered == 0 or self._ring.complete_since(covered)
        self._log.info("leading", term=self.term, missed=missed, heard_everything=complete)
        self.on_backlog()

    async def _wait_for_own_marker(self) -> bool:
        """Wait until we received every message that an earlier leader may have accepted.

        All of them were published before a marker of our own term. Without this wait, a message
        that reaches us late would be accepted twice.
        """
        marker = await self._store.publish_epoch_marker()
        renew_at_s = self._clock.monotonic() + self._lease.pause_s
        while self._ring.current is not None and self._ring.current < marker:
            if self._clock.monotonic() >= renew_at_s:
                renew_at_s = self._clock.monotonic() + self._lease.pause_s
                if await self._lease.run_once() is LeaseOutcome.LOST:
                    return False
            await self._clock.sleep(0.005)
        if self._ring.current is None:
            # The subscription had a gap. Another dispatcher may have received every message.
            await self._lease.release()
            return False
        return True

    def _owns(self, digest: bytes) -> bool:
        return partition_of_digest(digest, self._store.partitions) == self.number

    def _stop_leading(self, why: str) -> None:
        if self.leading:
            self.leading = False
            self._log.warning("leadership_lost", why=why, dropped=self.queued)
        self._clear_queues()
        self._send_queue.clear()

    def _clear_queues(self) -> None:
        self._queue.clear()
        self._retries.clear()
        self._unaccepted.clear()

    async def hand_over(self) -> None:
        """Accept the messages received so far, then release the lease. Messages received from now
        on belong to the next leader, whose ring has them."""
        if not self.leading:
            return
        self._closing = True
        self._closing_epoch = self._ring.current
        renew_at_s = self._clock.monotonic()
        while self.leading and (self.queued > 0 or self._in_flight):
            if self._clock.monotonic() >= renew_at_s:
                renew_at_s = self._clock.monotonic() + self._lease.pause_s
                if await self._lease.run_once() is LeaseOutcome.LOST:
                    self._stop_leading("its lock expired")
            await self._clock.sleep(0.005)
        await self.cover_once()
        unsent = self._send_queue.take_all()
        for start in range(0, len(unsent), self._store.items_max):
            part = unsent[start : start + self._store.items_max]
            await self._store.reject(self.number, [(message_id, "", 0) for message_id in part])
        if not self.leading:
            return
        self.leading = False
        await self._lease.release()
        await self._store.announce_free_partition(self.number)
        self._resigning = False
        self._not_before_s = max(self._not_before_s, self._clock.monotonic() + SHARE_PAUSE_S)
        self._log.info("handed_over")

    # Accepting --------------------------------------------------------------------------------

    async def run_accepts(self) -> None:
        """Accept queued messages for ever, with at most IN_FLIGHT_MAX calls at a time."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._accept_wake.wait()
                self._accept_wake.clear()
                while self.leading and self._in_flight < IN_FLIGHT_MAX:
                    batch = self._next_batch()
                    if batch is None:
                        break
                    self._in_flight += 1
                    group.create_task(self._accept(batch))

    def _next_batch(self) -> AcceptBatch | None:
        if self._retries:
            return self._retries.popleft()
        while self._queue and not self._queue[0][1]:
            self._queue.popleft()
        if not self._queue:
            return None
        epoch, waiting = self._queue[0]
        count_max, size_max = self._store.items_max, self._limits.batch_bytes_max
        payloads: list[bytes] = []
        digests: list[bytes] = []
        size = 0
        while waiting and len(payloads) < count_max and size < size_max:
            payload, digest = waiting.popleft()
            payloads.append(payload)
            digests.append(digest)
            size += len(payload)
        ids = new_ids(len(payloads), self.number, self._store.partitions)
        messages = list(zip(ids, payloads, strict=True))
        return AcceptBatch(epoch, messages, b"".join(digests), self._leadership)

    async def _accept(self, batch: AcceptBatch) -> None:
        count, began_ns = len(batch.messages), time.time_ns()
        sent = self._sendable(count)
        try:
            accepted = await self._store.accept(
                self.number, self._lease.term, batch.epoch, batch.messages, batch.digests, sent
            )
        except AngariumError as error:
            # Redis knows the batch by its first id, so a repeat is safe after any failure.
            await self._retry(batch, error)
            return
        self._in_flight -= 1
        self._accept_wake.set()  # a newer leadership may wait for this call to end
        if batch.leadership != self._leadership or not self.leading:
            return
        if accepted is None:
            self._stop_leading("a newer leader exists")
            return
        self._recorded.add(batch.epoch)
        self._unaccepted[batch.epoch] -= count
        self._metrics.accepted += accepted
        self._metrics.refused += count - accepted
        self._queue_accepted(batch.messages[:accepted], sent, began_ns)

    async def _retry(self, batch: AcceptBatch, error: AngariumError) -> None:
        self._log.warning("accept_failed", error=str(error), messages=len(batch.messages))
        try:
            await self._clock.sleep(0.1)
        finally:
            self._in_flight -= 1
            self._accept_wake.set()
        if self.leading and batch.leadership == self._leadership:
            self._retries.append(batch)

    def _sendable(self, count: int) -> int:
        """How many of the next messages this leader sends itself. A backlog in Redis goes first."""
        return 0 if self._backlog else min(count, self._send_queue.free_slots)

    def _queue_accepted(
        self, messages: Sequence[DispatchedMessage], sent: int, began_ns: int
    ) -> None:
        """Queue the first `sent` accepted messages for sending; the others are due in Redis."""
        tracing = self._runtime.tracing
        if tracing is not None:
            tracing.messages("dispatch accept", messages, began_ns, first=True)
        # The script made dead letters of messages that do not fit into a frame.
        bytes_max = self._payload_bytes_max
        fit = [each for each in messages[:sent] if len(each[1]) <= bytes_max]
        self._metrics.too_large += min(sent, len(messages)) - len(fit)
        self._send_queue.add(fit)
        if len(messages) > sent:
            self._backlog = True
        self.send_queued()

    # Redelivering -----------------------------------------------------------------------------

    async def claim_once(self) -> PassResult:
        """Send due messages, as many as workers have free slots for."""
        free_slots = min(self._workers.free_slots, self._store.items_max)
        if not self.leading or not self._lease.trusted or self._send_queue or free_slots <= 0:
            return PassResult()
        leadership = self._leadership
        claim = await self._store.claim(self.number, self._lease.term, free_slots)
        if leadership != self._leadership or not self.leading:
            return PassResult()
        if claim is None:
            self._stop_leading("a newer leader exists")
            return PassResult()
        self._metrics.dead += claim.dead
        self._backlog = claim.full
        if claim.messages:
            self._redeliver(claim.messages)
        return PassResult(len(claim.messages), again=claim.full)

    def _redeliver(self, messages: Sequence[ClaimedMessage]) -> None:
        last = [self._workers.connection_with(each.message_id) for each in messages]
        expired: dict[WorkerConnection, list[bytes]] = {}
        for each, connection in zip(messages, last, strict=True):
            if connection is not None:
                expired.setdefault(connection, []).append(each.message_id)
        for connection, ids in expired.items():
            connection.expire(ids)
        pairs = [(each.message_id, each.payload) for each in messages]
        self._send_queue.add(pairs, last if expired else ())
        self._metrics.redelivered += sum(each.delivery > 1 for each in messages)
        self.send_queued()

    # Durable intake ---------------------------------------------------------------------------

    async def accept_inbox_once(self) -> PassResult:
        if not self.leading or not self._lease.trusted:
            return PassResult()
        if not await self._store.wait_for_inbox(self.number, INBOX_BLOCK_MS):
            return PassResult(again=True)
        if not self.leading or not self._lease.trusted:
            return PassResult()
        count = self._store.items_max
        sent, leadership, began_ns = self._sendable(count), self._leadership, time.time_ns()
        accepted = await self._store.accept_inbox(self.number, self._lease.term, count, sent)
        if leadership != self._leadership or not self.leading:
            return PassResult()
        if accepted is None:
            self._stop_leading("a newer leader exists")
            return PassResult()
        self._metrics.accepted += len(accepted)
        self._queue_accepted(accepted, sent, began_ns)
        return PassResult(len(accepted), again=bool(accepted))

    # Covering ---------------------------------------------------------------------------------

    async def cover_once(self) -> None:
        """Record the epoch before which all messages are accepted. Other dispatchers then drop
        the older epochs from their rings."""
        current = self._closing_epoch if self._closing else self._ring.current
        if not self.leading or not self._lease.trusted or current is None:
            return
        if self._resigning:
            return  # After a gap the next leader accepts the messages that this one missed.
        unaccepted = [epoch for epoch, count in self._unaccepted.items() if count > 0]
        epoch = min([*unaccepted, current])
        if epoch <= self._covered:
            return
        finished = [each for each in self._recorded if each < epoch]
        leadership = self._leadership
        covered = await self._store.cover_epochs(self.number, self._lease.term, epoch, finished)
        if leadership != self._leadership or not self.leading:
            return
        if not covered:
            self._stop_leading("a newer leader exists")
            return
        self._covered = epoch
        self._recorded.difference_update(finished)
        for each in [each for each in self._unaccepted if each < epoch]:
            del self._unaccepted[each]


def partition_of_digest(digest: bytes, partitions: int) -> int:
    return int.from_bytes(digest[:4], "big") % partitions if partitions > 1 else 0
