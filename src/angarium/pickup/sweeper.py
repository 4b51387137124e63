"""Periodic work of a partition: releases sent messages, ends the sessions of dead gateways.

Every gateway sweeps every partition. The scripts check again that the work is still due, so two
gateways may sweep at once, and a gateway that was taken for dead may return in between.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from angarium.pickup.store import PickupStore

QUEUES_PER_PASS = 200
SESSIONS_PER_PASS = 500


@dataclass(frozen=True)
class SweepResult:
    """`again`: there is more to do at once."""

    released: int = 0
    closed: int = 0
    again: bool = False


class Sweeper:
    def __init__(self, store: PickupStore, partition: int) -> None:
        self._store = store
        self._partition = partition

    async def run_once(self) -> SweepResult:
        store, partition = self._store, self._partition
        due = await store.due_work(partition, QUEUES_PER_PASS)
        released = closed = 0
        if due.to_release:
            released = await store.release(partition, due.to_release)
        for gateway in due.dead_gateways:
            closed += await self._end_sessions(gateway)
        again = released > 0 or closed > 0 or len(due.to_release) == QUEUES_PER_PASS
        return SweepResult(released, closed, again)

    async def _end_sessions(self, gateway: str) -> int:
        sessions = self._store.sessions
        queues = await sessions.queues_of(self._partition, gateway, SESSIONS_PER_PASS)
        if not queues:
            await sessions.forget_gateway(self._partition, gateway)
            return 0
        closing = [sessions.close(each, gateway=gateway, dead=True) for each in queues]
        return (await asyncio.gather(*closing)).count("closed")


class DidSweeper:
    """Removes what ended queues and gateways left in the index by DID, a part in each pass."""

    def __init__(self, store: PickupStore) -> None:
        self._store = store
        self._after = dict.fromkeys(store.partitions, "")

    async def run_once(self) -> None:
        for partition, after in self._after.items():
            self._after[partition] = await self._store.dids.sweep(partition, after)
