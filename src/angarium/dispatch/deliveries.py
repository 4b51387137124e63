"""Brings the accepted messages of one partition to workers: new ones, due ones, those of queues.

New messages of the unnamed queue are sent from memory. Everything else is claimed from Redis when
workers have free slots: messages that were never sent or are due again, messages that wait in named
queues, and those that may have killed workers. Every call carries the term of the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from angarium.dispatch.frames import DispatchedMessage
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.metrics import DispatcherMetrics
from angarium.dispatch.queues import UNNAMED
from angarium.dispatch.send_queue import SendQueue
from angarium.dispatch.settings import DispatchSettings
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.suspects import SuspectSender
from angarium.dispatch.transitions import ClaimedBatch, ClaimedMessage
from angarium.dispatch.worker_connection import WorkerConnection
from angarium.dispatch.worker_pool import WorkerPool
from angarium.runtime import log
from angarium.runtime.runtime import Runtime

# After a change of leader, workers connect to a dispatcher within this time.
RECONNECT_S = 1.0
# A live worker renews everything that it holds within this part of the lease (worker.py: a third
# of the lease and a tick).
RENEWED_PART = 0.5
# A longer pause between two claims, as a part of the lease, is a stall: a renewal that came in time
# may not be written yet.
STALL_PART = 1 / 3
# Claims in a row that a busy machine may delay so long. The next one judges the workers all the
# same: otherwise the messages of a dead one would wait for ever.
STALLS_MAX = 3


class Leadership(Protocol):
    """The leadership under which messages are sent. `leadership` is its number in this process."""

    @property
    def leading(self) -> bool: ...
    @property
    def leadership(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def trusted(self) -> bool: ...
    def stop_leading(self, why: str) -> None: ...


@dataclass(frozen=True)
class PassResult:
    """The result of one pass of a loop over messages; `again` requests the next pass at once."""

    messages: int = 0
    again: bool = False


class Deliveries:
    def __init__(
        self,
        number: int,
        runtime: Runtime,
        store: DispatchStore,
        workers: WorkerPool,
        metrics: DispatcherMetrics,
        leader: Leadership,
    ) -> None:
        self._number = number
        self._clock = runtime.clock
        self._store = store
        self._workers = workers
        self._metrics = metrics
        self._leader = leader
        limits = runtime.settings.limits_of(DispatchLimits)
        ack_timeout_s = runtime.settings.group(DispatchSettings).ack_timeout_ms / 1000
        self._ack_timeout_s = ack_timeout_s
        self._passed_s = float("inf")  # when the last pass ended
        self._stalls = 0  # in a row
        self._stalled = False  # in this pass
        self._redis_ms: tuple[int, float] | None = None  # a time of Redis, and ours at its arrival
        self._held_from_s = float("inf")  # from then on, messages that workers hold time out
        self._send_queue = SendQueue(workers, self._clock, ack_timeout_s, limits)
        self._suspects = SuspectSender(workers, self._clock, ack_timeout_s, number)
        self._log = log.logger("angarium.dispatch", partition=number)
        self._may_wait: dict[str, bool] = {}  # named queue → whether messages may wait in it
        self._has_named = False  # this leader accepted messages of named queues
        self._backlog = True  # messages may be due in Redis; they are sent before newer ones
        self.on_backlog: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """A leadership begins: messages may be due, and workers get a lease to renew theirs."""
        self._backlog = True
        self._may_wait.clear()
        self._stalls = 0
        self._redis_ms = None
        self._held_from_s = self._clock.monotonic() + self._ack_timeout_s + RECONNECT_S

    def end(self) -> None:
        """A leadership ended: nothing more is sent."""
        self._suspects.end()
        self._workers.forget_deliveries(self._send_queue.take_all())

    async def give_back_all(self) -> None:
        """Make everything due that was accepted and not sent."""
        await self.give_back(self._send_queue.take_all())

    def add(self, messages: Sequence[DispatchedMessage], *, more_due: bool) -> None:
        """Send accepted messages, as many as workers have free slots for. `more_due`: others that
        were accepted with them are due in Redis."""
        self._send_queue.add(messages)
        self._backlog = self._backlog or more_due
        self.send_queued()

    def send_queued(self) -> None:
        """Send what workers have free slots for. A leader that was paused past its lease sends
        nothing: its messages become due in Redis."""
        if self._send_queue and self._leader.trusted:
            self._metrics.sent += self._send_queue.send()
        if not self._send_queue and (self._backlog or self._named_with_slots()):
            self.on_backlog()

    def _named_with_slots(self) -> list[str]:
        """The named queues in which messages may wait and whose workers have free slots."""
        workers = self._workers
        return [
            queue
            for queue in workers.named_queues
            if self._may_wait.get(queue, True) and workers.slots_of(queue) > 0
        ]

    def expect_due_messages(self) -> None:
        """Messages were given back: they are sent before newer ones."""
        self._backlog = True
        if not self._send_queue:
            self.on_backlog()

    async def return_expired(self) -> None:
        """Give back the messages that waited too long for a worker."""
        await self.give_back(self._send_queue.take_expired())

    async def give_back(self, unsent: Sequence[bytes]) -> None:
        if not unsent:
            return
        self._workers.forget_deliveries(unsent)
        if not self._leader.leading or not self._leader.trusted:
            return
        if await self._store.return_unsent(self._number, self._leader.term, unsent):
            self.expect_due_messages()
        else:
            self._leader.stop_leading("a newer leader exists")

    def postpone_time_outs(self) -> None:
        """Renewals could not be written for some time: live workers get the time to renew."""
        self._hold(self._ack_timeout_s * RENEWED_PART)

    def _hold(self, seconds: float) -> None:
        self._held_from_s = max(self._held_from_s, self._clock.monotonic() + seconds)

    def _note_stall(self, paused_s: float) -> None:
        """This process or Redis stood still, and renewals wait behind the next claim."""
        if paused_s <= self._ack_timeout_s * STALL_PART:
            return
        self._stalled = True
        self._stalls += 1
        self._metrics.stalls += 1
        self._log.info("stalled", seconds=round(paused_s, 1))
        if self._stalls > STALLS_MAX:
            return
        if paused_s > self._ack_timeout_s:
            # Long enough for connections to have broken.
            self._hold(self._ack_timeout_s + RECONNECT_S)
        else:
            self.postpone_time_outs()

    def expect_waiting(self, count: int) -> None:
        """Messages begin to wait in named queues."""
        if count > 0:
            self._has_named = True
            self._may_wait.clear()
            if self._named_with_slots():
                self.on_backlog()

    def sendable(self, count: int) -> int:
        """How many of the next messages this leader sends itself. A backlog in Redis goes first."""
        return 0 if self._backlog else min(count, self._send_queue.free_slots)

    async def claim_once(self) -> PassResult:
        """Send due messages, as many as workers have free slots for. Those of named queues begin
        to wait there, also while nothing can be sent."""
        self._stalled = False
        self._note_stall(self._clock.monotonic() - self._passed_s)
        try:
            return await self._claim_due()
        finally:
            self._passed_s = self._clock.monotonic()
            if not self._stalled:
                self._stalls = 0

    async def _claim_due(self) -> PassResult:
        if not self._leader.leading or not self._leader.trusted:
            return PassResult()
        if self._suspects.active:
            sent = await self._suspects.run_once(self._claim_suspects, self.give_back)
            self._metrics.redelivered += sent
        again = await self._claim_named()
        free_slots = min(self._workers.free_slots, self._store.items_max)
        if not self._leader.leading or self._send_queue:
            return PassResult(again=again)
        if free_slots <= 0 and not (self._has_named or self._workers.named_queues):
            return PassResult(again=again)
        claim = await self._claim(free_slots)
        if claim is None:
            return PassResult()
        if free_slots > 0:
            self._backlog = claim.full or claim.suspects > 0
        if claim.suspects:
            self._suspects.begin(claim.suspects, UNNAMED)
        if claim.messages:
            self._redeliver(claim.messages)
        self.expect_waiting(claim.named)
        return PassResult(len(claim.messages), again=again or claim.full)

    async def _claim_named(self) -> bool:
        """Send messages that wait in named queues to their workers; whether more may wait."""
        again = False
        for queue in self._named_with_slots():
            count = min(self._workers.slots_of(queue), self._store.items_max)
            claim = await self._claim(count, queue=queue) if count > 0 else None
            if claim is None:
                return False
            self._may_wait[queue] = claim.full or len(claim.messages) >= count
            again = again or self._may_wait[queue]
            if claim.suspects:
                self._suspects.begin(claim.suspects, queue)
                self._may_wait[queue] = True
            await self._send_named(queue, claim.messages)
        return again

    async def _send_named(self, queue: str, messages: Sequence[ClaimedMessage]) -> None:
        pairs = [(each.message_id, each.payload) for each in messages]
        self._workers.deliveries.update(
            (each.message_id, each.delivery) for each in messages if each.delivery > 1
        )
        sent = self._workers.distribute(pairs, self._expire(messages), queue)
        self._metrics.sent += sent
        self._metrics.redelivered += sum(each.delivery > 1 for each in messages)
        await self.give_back([message_id for message_id, _ in pairs[sent:]])

    async def _claim_suspects(self, count: int, queue: str) -> ClaimedBatch | None:
        claim = await self._claim(self._store.items_max, count, queue)
        if claim is not None:
            self._expire(claim.messages)
        return claim

    async def _claim(
        self, count: int, suspects_max: int = 0, queue: str = UNNAMED
    ) -> ClaimedBatch | None:
        """None if this leadership ended meanwhile."""
        leadership, term = self._leader.leadership, self._leader.term
        sent_ms = self._estimate_redis_ms()
        # The first claim of a leadership learns the time of Redis.
        held_too = sent_ms > 0 and self._clock.monotonic() >= self._held_from_s
        claim = await self._store.claim(
            self._number,
            term,
            count,
            held_too=held_too,
            suspects_max=suspects_max,
            queue=queue,
            sent_ms=sent_ms if self._stalls <= STALLS_MAX else 0,
        )
        if leadership != self._leader.leadership or not self._leader.leading:
            return None
        if claim is None:
            self._leader.stop_leading("a newer leader exists")
            return None
        self._redis_ms = claim.at_ms, self._clock.monotonic()
        if sent_ms:
            # A claim that Redis ran late took nothing from workers; neither do the next ones.
            self._note_stall((claim.at_ms - sent_ms) / 1000)
        self._metrics.dead += claim.dead
        return claim

    def _estimate_redis_ms(self) -> int:
        """The time of Redis now, or a little less; 0 if unknown."""
        if self._redis_ms is None:
            return 0
        at_ms, arrived_s = self._redis_ms
        return at_ms + int((self._clock.monotonic() - arrived_s) * 1000)

    def _expire(self, messages: Sequence[ClaimedMessage]) -> Sequence[WorkerConnection | None]:
        """Free the slots of messages that timed out. Returns the connection that had each; nothing
        if none did."""
        last = [self._workers.connection_with(each.message_id) for each in messages]
        expired: dict[WorkerConnection, list[bytes]] = {}
        for each, connection in zip(messages, last, strict=True):
            if connection is not None:
                expired.setdefault(connection, []).append(each.message_id)
        for connection, ids in expired.items():
            connection.expire(ids)
        return last if expired else ()

    def _redeliver(self, messages: Sequence[ClaimedMessage]) -> None:
        last = self._expire(messages)
        pairs = [(each.message_id, each.payload) for each in messages]
        self._workers.deliveries.update(
            (each.message_id, each.delivery) for each in messages if each.delivery > 1
        )
        self._send_queue.add(pairs, last)
        self._metrics.redelivered += sum(each.delivery > 1 for each in messages)
        self.send_queued()
