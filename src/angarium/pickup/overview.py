"""Pickup in the overview."""

from __future__ import annotations

from collections.abc import Set

from angarium.pickup.listing import PickupListing
from angarium.pickup.store import PickupStore
from angarium.runtime.overview import ModuleSample
from angarium.runtime.runtime import Runtime


class PickupSampler:
    def __init__(self, runtime: Runtime) -> None:
        self._partitions = range(runtime.settings.partitions)
        self._store = runtime.store(PickupStore)
        self._listing = PickupListing(runtime)

    async def sample(self, roles: Set[str], now_ms: int) -> ModuleSample:
        found = await self._store.totals()
        oldest = [
            queue.since_ms
            for partition in self._partitions
            for queue in await self._listing.queues_by_age(partition, 0, 1)
        ]
        facts = {
            "gateways": sum(gateway.live for gateway in found.gateways),
            "sessions": sum(gateway.sessions for gateway in found.gateways if gateway.live),
            "queues": found.queues,
            "moving": found.moving,
            "pushes": found.pushes,
        }
        oldest_ms = max(0, now_ms - min(oldest)) if oldest else None
        return ModuleSample(found.queues, facts, oldest_ms)
