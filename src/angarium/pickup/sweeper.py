"""What has to happen by itself: messages that wait again, sessions whose gateway died.

Every gateway sweeps every partition. The scripts look again at what they are told to end, so it
does no harm that two sweep at once, or that a gateway wakes up in between.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from angarium.pickup.store import PickupStore
from angarium.runtime.scripts import status_of

QUEUES_PER_PASS = 200
SESSIONS_PER_PASS = 500


@dataclass(frozen=True)
class Swept:
    """What one pass did; `again` when a list was longer than a pass."""

    released: int = 0
    closed: int = 0
    again: bool = False


class Sweeper:
    def __init__(self, store: PickupStore, partition: int) -> None:
        self._store = store
        self._partition = partition

    async def run_once(self) -> Swept:
        store, partition = self._store, self._partition
        due = await store.due(partition, QUEUES_PER_PASS)
        released = closed = 0
        if due.to_release:
            released = await store.release(partition, due.to_release)
        for gateway in due.gateways:
            closed += await self._end(gateway)
        again = released > 0 or closed > 0 or len(due.to_release) == QUEUES_PER_PASS
        return Swept(released, closed, again)

    async def _end(self, gateway: str) -> int:
        queues = await self._store.sessions_of(self._partition, gateway, SESSIONS_PER_PASS)
        if not queues:
            await self._store.forget_gateway(self._partition, gateway)
            return 0
        closing = [self._store.close_session(each, gateway=gateway, dead=True) for each in queues]
        return [status_of(each) for each in await asyncio.gather(*closing)].count("closed")
