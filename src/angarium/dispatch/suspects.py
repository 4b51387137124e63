"""Sends messages that may have killed workers, on a worker that has nothing else meanwhile.

A worker that dies takes every message that it had with it, and each of them counts a delivery. If
one of them is the cause, it dies again on the next worker, and its neighbours would run out of
deliveries with it. So a message whose holder died several times is a suspect. The leader takes one
worker out of the turn, waits until it is empty, and sends it suspects: a few together at first,
then one by one. The one that kills is alone by then, and the others finish.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from angarium.dispatch.transitions import ClaimedBatch
from angarium.dispatch.worker_connection import WorkerConnection
from angarium.dispatch.worker_pool import WorkerPool
from angarium.runtime import log
from angarium.runtime.clock import Clock

# Suspects that are sent together. A kill finds one of a thousand in a few deliveries.
TOGETHER_MAX = 25
# A function that runs for an hour must not keep its worker empty for so long. After this many
# time-outs the suspects are sent beside it.
EMPTY_TIMEOUTS_MAX = 10

Claim = Callable[[int, str], Awaitable[ClaimedBatch | None]]
"""Claims up to so many suspects of a queue; None if this leadership has ended."""
GiveBack = Callable[[Sequence[bytes]], Awaitable[None]]
"""Makes messages due that were claimed and not sent."""


class SuspectSender:
    def __init__(
        self, workers: WorkerPool, clock: Clock, ack_timeout_s: float, partition: int
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._empty_s_max = ack_timeout_s * EMPTY_TIMEOUTS_MAX
        self._reserved: WorkerConnection | None = None
        self._sent = False
        self._from_s = 0.0
        self._log = log.logger("angarium.dispatch", partition=partition)

    @property
    def active(self) -> bool:
        return self._reserved is not None

    def begin(self, suspects: int, queue: str) -> None:
        """Suspects of a queue are due: reserve a worker for them."""
        if self._reserved is None and (reserved := self._workers.reserve(queue)) is not None:
            self._reserved, self._sent = reserved, False
            self._from_s = self._clock.monotonic()
            self._log.warning("suspects", messages=suspects, consumer=reserved.consumer)

    async def run_once(self, claim: Claim, give_back: GiveBack) -> int:
        """Send the next suspects if the worker is empty; the number sent."""
        reserved = self._reserved
        if reserved is None or not reserved.usable:
            self.end()
            return 0
        waited_s = self._clock.monotonic() - self._from_s
        if reserved.unacknowledged and (self._sent or waited_s < self._empty_s_max):
            return 0
        found = await claim(TOGETHER_MAX, reserved.queue)
        if found is None or not found.messages or not reserved.usable:
            self.end()
            if found is not None:
                # The worker died meanwhile. What was not sent is not counted as a delivery.
                await give_back([each.message_id for each in found.messages])
            return 0
        deliveries = {each.message_id: each.delivery for each in found.messages}
        reserved.send([(each.message_id, each.payload) for each in found.messages], deliveries)
        self._sent = True
        return len(found.messages)

    def end(self) -> None:
        """Give the worker back to the others."""
        if self._reserved is not None:
            self._reserved.reserved = False
            self._reserved = None
            self._workers.on_free_slots()
