"""The agent that brings awaited replies back: in turns, a few at a time, each claimed.

The first turn comes at a random second of the minute, so that processes that were started
together do not look together; that is for load only. What makes two of them safe is the claim,
which one script gives to one of them, and which ends by itself if that one is never heard again.
A turn that was full is followed by the next at once: the number is the size of a bite, not a
speed limit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from angarium.conversations.operations import MessageSyncManager
from angarium.conversations.script_values import TakenReply
from angarium.conversations.store import ConversationStore
from angarium.runtime.clock import Clock
from angarium.runtime.setting_groups.conversations import ConversationsSettings

# Requests nobody answered, noted in one call.
REQUESTS_MAX = 500


@dataclass(frozen=True)
class AwaitedTurn:
    taken: int
    requests_expired: int
    again: bool


class AwaitedAgent:
    """`module` tells how many more the memory queue takes; `enqueue` gets what was claimed."""

    def __init__(
        self,
        manager: MessageSyncManager,
        store: ConversationStore,
        settings: ConversationsSettings,
        clock: Clock,
        module: Callable[[], int],
        enqueue: Callable[[Sequence[TakenReply]], None],
    ) -> None:
        self._manager = manager
        self._store = store
        self._settings = settings
        self._clock = clock
        self._module = module
        self._enqueue = enqueue
        self._woken = asyncio.Event()
        self._begun = False
        self.turns = 0

    def wake(self) -> None:
        """Something became due before its time."""
        self._woken.set()

    async def run(self) -> None:
        if not self._begun:
            self._begun = True
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
        bite = min(self._settings.awaited_messages_by_turn, self._module())
        claimed, taken = 0, list[TakenReply]()
        if bite > 0:
            claimed, taken = await self._manager.claim_awaited_messages(bite)
            self._enqueue(taken)
        full = 0 < bite <= claimed
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
    """Seconds until a drawn second of the minute, or of the shorter time that is set."""
    within_s = max(1, within_ms // 1000)
    return (draw(within_s) - now_s()) % within_s
