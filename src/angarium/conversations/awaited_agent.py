"""The awaited agent: claims replies that are due again, in turns, a few at a time.

A script gives each claim to one process, and a claim expires: two agents never take the same reply,
and the replies of a dead process become due again. The first turn comes at a random second of the
minute, which only spreads the load of processes that start together. After a full turn the next
one follows at once: the number of replies per turn is a batch size, not a rate limit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from angarium.conversations.operations import ConversationOperations
from angarium.conversations.script_values import TakenReply
from angarium.conversations.settings import ConversationsSettings
from angarium.conversations.store import ConversationStore
from angarium.runtime.clock import Clock

# Requests without a reply that one turn expires, per partition.
REQUESTS_MAX = 500


@dataclass(frozen=True)
class AwaitedTurn:
    taken: int
    requests_expired: int
    again: bool


class AwaitedAgent:
    """`free_slots` returns how many more replies the memory queue takes."""

    def __init__(
        self,
        operations: ConversationOperations,
        store: ConversationStore,
        settings: ConversationsSettings,
        clock: Clock,
        free_slots: Callable[[], int],
        enqueue: Callable[[Sequence[TakenReply]], None],
    ) -> None:
        self._operations = operations
        self._store = store
        self._settings = settings
        self._clock = clock
        self._free_slots = free_slots
        self._enqueue = enqueue
        self._woken = asyncio.Event()
        self._started = False
        self.turns = 0

    def wake(self) -> None:
        """Start the next turn now: a reply became due early."""
        self._woken.set()

    async def run(self) -> None:
        if not self._started:
            self._started = True
            await self._pause(first_turn_in_s(self._settings.awaited_first_turn))
        while True:
            turn = await self.run_once()
            if turn.again:
                await asyncio.sleep(0)
            else:
                await self._pause(self._settings.awaited_messages_interval / 1000)

    async def run_once(self) -> AwaitedTurn:
        self._woken.clear()
        self.turns += 1
        expired = 0
        for partition in self._store.partitions:
            expired += await self._store.expire_requests(partition, REQUESTS_MAX)
        most = min(self._settings.awaited_messages_by_turn, self._free_slots())
        claimed, taken = 0, list[TakenReply]()
        if most > 0:
            claimed, taken = await self._operations.claim_awaited(most)
            self._enqueue(taken)
        full = 0 < most <= claimed
        return AwaitedTurn(len(taken), expired, full or expired >= REQUESTS_MAX)

    async def _pause(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            sleeping = group.create_task(self._clock.sleep(seconds))
            waking = group.create_task(self._woken.wait())
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
            sleeping.cancel()
            waking.cancel()


def first_turn_in_s(
    within_ms: int,
    now_s: Callable[[], float] = time.time,
    draw: Callable[[int], int] = random.randrange,
) -> float:
    """Seconds until a random second of the minute, or of a shorter interval that is set."""
    within_s = max(1, within_ms // 1000)
    return (draw(within_s) - now_s()) % within_s
