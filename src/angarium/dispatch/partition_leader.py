"""Leads one partition: its lease, acceptance from channel and inbox, redelivery.

While this dispatcher leads, every message published for the partition is queued, accepted in
batches and sent to workers. At a takeover the leader first accepts the messages that it received
and no earlier leader recorded. Every write carries the term. The first write that Redis refuses
as stale ends this leadership; the queued messages are dropped, because the next leader received
them too. When the queue is full, or a hand-over was cut short, the leader reads the messages that
it has not accepted from the ring again, as at a takeover. What the ring had to drop by then is lost
and counted: a channel can't be asked to wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from angarium.dispatch.accept_queue import AcceptBatch, AcceptQueue, AcceptQueueLimits
from angarium.dispatch.deliveries import Deliveries, PassResult
from angarium.dispatch.epochs import EpochRing, PublishedMessage
from angarium.dispatch.frames import DispatchedMessage, message_bytes
from angarium.dispatch.free_partition import FreePartition, LeadershipShare
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.settings import DispatchSettings
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.worker_pool import WorkerPool
from angarium.runtime import log
from angarium.runtime.errors import AngariumError
from angarium.runtime.lease import Lease, LeaseOutcome
from angarium.runtime.runtime import Runtime

# Redis executes one batch while the next one is prepared.
IN_FLIGHT_MAX = 2
# After a failed call, the next one follows after this time.
RETRY_S = 0.1
# After a handover the other dispatchers get this long to acquire the partition first.
SHARE_PAUSE_S = 0.2
# Long enough to cause little load, short enough to notice the end of the leadership.
INBOX_BLOCK_MS = 1_000


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
        self.leadership = 0
        self._runtime = runtime
        self._clock = runtime.clock
        self._store = store
        self._ring = ring
        self._metrics = metrics
        frame_bytes_max = runtime.settings.limits.frame_bytes_max
        self._payload_bytes_max = frame_bytes_max - message_bytes(b"")
        self._lease = Lease(
            runtime, store.lease_keys(number), runtime.settings.group(DispatchSettings).lock_ms
        )
        limits = runtime.settings.limits_of(DispatchLimits)
        self._queue = AcceptQueue(
            number,
            store.partitions,
            AcceptQueueLimits(
                limits.accept_messages_max,
                limits.accept_bytes_max,
                store.items_max,
                limits.batch_bytes_max,
            ),
        )
        self._recorded: set[int] = set()  # epochs that may have digests in Redis
        self._in_flight = 0
        self.deliveries = Deliveries(number, runtime, store, workers, metrics, self)
        self._covered = 0
        self._accept_wake = asyncio.Event()
        self._lead_wake = asyncio.Event()
        self._resigning = False
        self._free = FreePartition(number, store, ring, self._clock)
        self._log = log.logger("angarium.dispatch", partition=number)

    @property
    def term(self) -> int:
        return self._lease.term

    @property
    def trusted(self) -> bool:
        """Whether the lock can't have expired."""
        return self._lease.trusted

    @property
    def accepting(self) -> bool:
        """Whether this leader accepts messages that are published now."""
        return self.leading and not self._closing

    @property
    def queued(self) -> int:
        return self._queue.messages

    def offer(self, epoch: int, messages: Sequence[PublishedMessage]) -> None:
        """Queue messages of this partition, in the order in which they were published."""
        if self._queue.is_full:
            self._miss(epoch, "the queue is full, limits.accept_messages_max or accept_bytes_max")
        if self._queue.missed_from is not None:
            self._queue.missed += len(messages)
            self._metrics.overflowed += len(messages)
            return
        self._queue.add(epoch, messages)
        self._accept_wake.set()

    def _miss(self, epoch: int | None, why: str) -> None:
        """From this epoch on, messages are in the ring alone."""
        if self._queue.missed_from is None:
            self._queue.missed_from = epoch
            self._log.warning("accept_behind", why=why, queued=self.queued)
        self._accept_wake.set()

    def announced_free(self) -> None:
        """The leader handed over in an orderly way, so it is not dead."""
        self._free.announced()
        self.wake()

    def wake(self) -> None:
        """A partition became free, or the shares changed: check the lease now."""
        self._lead_wake.set()

    def resign(self, pause_s: float) -> None:
        """Hand over when the queued messages are accepted, and do not acquire for `pause_s`."""
        self._resigning = True
        self._free.pause(pause_s)
        self._lead_wake.set()

    # Leading ----------------------------------------------------------------------------------

    async def lead(self, share: LeadershipShare) -> None:
        """Renew the lease, or try to acquire it, for ever."""
        while True:
            await self._lead_once(share)
            self._lead_wake.clear()
            try:
                async with asyncio.timeout(min(self._lease.pause_s, self._free.next_check_s)):
                    await self._lead_wake.wait()
            except TimeoutError:
                continue

    async def _lead_once(self, share: LeadershipShare) -> None:
        if not self.leading:
            self._resigning = False
        if self.leading:
            if self._resigning or share.over_share:
                await self.hand_over()
            elif await self._lease.run_once() is LeaseOutcome.LOST:
                self.stop_leading("its lock expired")
        elif (
            share.may_lead
            and self._ring.current is not None
            and await self._free.may_acquire(share)
            # KEPT without leading: the last takeover failed after the lease was acquired.
            and await self._lease.run_once() in (LeaseOutcome.GAINED, LeaseOutcome.RENEWED)
        ):
            await self._take_over()
            if self.leading and not share.may_lead:
                await self.hand_over()  # the dispatcher began to stop meanwhile

    async def _take_over(self) -> None:
        if not await self._wait_for_own_marker():
            return
        self._covered = await self._store.covered(self.number)
        epochs, accepted = await self._recorded_digests()
        # No await from here on: the next published message must find `leading` set.
        self._queue.clear()
        self._recorded = set(epochs)
        self.leadership += 1
        self._closing = False
        self.leading = True
        self.deliveries.begin()
        missed = self._offer_unaccepted(accepted)
        self._metrics.takeovers += 1
        self._metrics.gap_accepted += missed
        complete = self._covered == 0 or self._ring.complete_since(self._covered)
        self._log.info("leading", term=self.term, missed=missed, heard_everything=complete)
        self.deliveries.on_backlog()

    async def _recorded_digests(self) -> tuple[list[int], Mapping[int, Counter[bytes]]]:
        """The epochs that are not covered, and what was accepted of them."""
        epochs = self._ring.epochs_from(self._covered)
        return epochs, await self._store.accepted_digests(self.number, epochs)

    def _offer_unaccepted(self, accepted: Mapping[int, Counter[bytes]]) -> int:
        """Queue the messages of the ring that nobody accepted; their number."""
        count = 0
        for epoch, messages in self._ring.unaccepted(accepted, self._covered, self._owns):
            self.offer(epoch, messages)
            count += len(messages)
        return count

    async def _accept_missed(self) -> None:
        """The queue is empty again: continue with the messages that are only in the ring."""
        leadership = self.leadership
        try:
            _, accepted = await self._recorded_digests()
        except AngariumError as error:
            self._log.warning("accept_failed", error=str(error))
            await self._clock.sleep(RETRY_S)
            self._accept_wake.set()
            return
        # No await from here on: see _take_over. Nothing was accepted meanwhile.
        if self.leading and leadership == self.leadership:
            overflowed, self._queue.missed = self._queue.missed, 0
            self._queue.missed_from = None
            missed = self._offer_unaccepted(accepted)
            self._log.info("accept_resumed", missed=missed)
            self._count_lost(overflowed - missed)

    def _count_lost(self, count: int) -> None:
        """Published messages that Redis refused for so long that the ring dropped them."""
        if count > 0:
            self._metrics.lost += count
            why = "limits.ring_messages_max and ring_bytes_max were full while Redis refused"
            self._log.error("messages_lost", messages=count, why=why)

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

    def stop_leading(self, why: str) -> None:
        if self.leading:
            self.leading = False
            self._log.warning("leadership_lost", why=why, dropped=self.queued)
        self._queue.clear()
        self.deliveries.end()

    async def hand_over(self) -> None:
        """Accept the messages received so far, then release the lease. Messages received from now
        on belong to the next leader, whose ring has them."""
        if not self.leading:
            return
        self._closing = True
        self._closing_epoch = self._ring.current
        try:
            await self._finish_leading()
        finally:
            if self.leading:
                # Cut short. What arrived meanwhile is in the ring.
                self._closing = False
                self._miss(self._closing_epoch, "a hand-over was cut short")

    async def _finish_leading(self) -> None:
        renew_at_s = self._clock.monotonic()
        while self.leading and (self.queued > 0 or self._in_flight):
            if self._clock.monotonic() >= renew_at_s:
                renew_at_s = self._clock.monotonic() + self._lease.pause_s
                if await self._lease.run_once() is LeaseOutcome.LOST:
                    self.stop_leading("its lock expired")
            await self._clock.sleep(0.005)
        await self.cover_once()
        await self.deliveries.give_back_all()
        if not self.leading:
            return
        await self._lease.release()
        self.leading = False
        self._queue.clear()
        self.deliveries.end()
        self._resigning = False
        self._free.pause(SHARE_PAUSE_S)
        self._log.info("handed_over")
        await self._store.announce_free_partition(self.number)

    # Accepting --------------------------------------------------------------------------------

    async def run_accepts(self) -> None:
        """Accept queued messages for ever, with at most IN_FLIGHT_MAX calls at a time."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._accept_wake.wait()
                self._accept_wake.clear()
                while self.leading and self._in_flight < IN_FLIGHT_MAX:
                    batch = self._queue.next_batch(self.leadership)
                    if batch is None:
                        break
                    self._in_flight += 1
                    group.create_task(self._accept(batch))
                if self._queue.missed_from is None or not self.accepting:
                    continue
                if not self._in_flight and self.queued == 0:
                    await self._accept_missed()

    async def _accept(self, batch: AcceptBatch) -> None:
        count, began_ns = len(batch.messages), time.time_ns()
        sent = 0 if batch.queue else self.deliveries.sendable(count)
        try:
            accepted = await self._store.accept(
                self.number,
                self._lease.term,
                batch.epoch,
                batch.messages,
                batch.digests,
                sent,
                batch.queue,
            )
        except AngariumError as error:
            # Redis knows the batch by its first id, so a repeat is safe after any failure.
            await self._retry(batch, error)
            return
        self._in_flight -= 1
        self._accept_wake.set()  # a newer leadership may wait for this call to end
        if batch.leadership != self.leadership or not self.leading:
            return
        if accepted is None:
            self.stop_leading("a newer leader exists")
            return
        self._recorded.add(batch.epoch)
        self._queue.accepted(batch)
        self._metrics.accepted += accepted.accepted
        self._metrics.spilled += accepted.spilled
        self._metrics.refused += count - accepted.accepted - accepted.spilled
        if batch.queue:
            self.deliveries.expect_waiting(accepted.accepted)
        else:
            self._queue_accepted(batch.messages[: accepted.accepted], sent, began_ns)

    async def _retry(self, batch: AcceptBatch, error: AngariumError) -> None:
        self._log.warning("accept_failed", error=str(error), messages=len(batch.messages))
        try:
            await self._clock.sleep(RETRY_S)
        finally:
            self._in_flight -= 1
            self._accept_wake.set()
        if self.leading and batch.leadership == self.leadership:
            self._queue.retry(batch)

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
        self.deliveries.add(fit, more_due=len(messages) > sent)

    # Durable intake ---------------------------------------------------------------------------

    async def accept_inbox_once(self) -> PassResult:
        if not self.leading or not self._lease.trusted:
            return PassResult()
        if not await self._store.wait_for_inbox(self.number, INBOX_BLOCK_MS):
            return PassResult(again=True)
        if not self.leading or not self._lease.trusted:
            return PassResult()
        count = self._store.items_max
        sent = self.deliveries.sendable(count)
        leadership, began_ns = self.leadership, time.time_ns()
        accepted = await self._store.accept_inbox(self.number, self._lease.term, count, sent)
        if leadership != self.leadership or not self.leading:
            return PassResult()
        if accepted is None:
            self.stop_leading("a newer leader exists")
            return PassResult()
        count = accepted.named + len(accepted.messages)
        self._metrics.accepted += count
        self._queue_accepted(accepted.messages, sent, began_ns)
        self.deliveries.expect_waiting(accepted.named)
        return PassResult(count, again=count > 0)

    # Covering ---------------------------------------------------------------------------------

    async def cover_once(self) -> None:
        """Record the epoch before which all messages are accepted. Other dispatchers then drop
        the older epochs from their rings."""
        current = self._closing_epoch if self._closing else self._ring.current
        if not self.leading or not self._lease.trusted or current is None:
            return
        if self._resigning:
            return  # After a gap the next leader accepts the messages that this one missed.
        epoch = self._queue.first_epoch(current)
        if epoch <= self._covered:
            return
        finished = [each for each in self._recorded if each < epoch]
        leadership = self.leadership
        covered = await self._store.cover_epochs(self.number, self._lease.term, epoch, finished)
        if leadership != self.leadership or not self.leading:
            return
        if not covered:
            self.stop_leading("a newer leader exists")
            return
        self._covered = epoch
        self._recorded.difference_update(finished)
        self._queue.forget_before(epoch)


def partition_of_digest(digest: bytes, partitions: int) -> int:
    return int.from_bytes(digest[:4], "big") % partitions if partitions > 1 else 0
