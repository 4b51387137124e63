"""Removes messages from the database that are older than `retention_s`.

Every gateway may run it: a removal is exact, and the persister deletes the rows later. Rows of
messages that were removed before are found again until then; removing them does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from angarium.pickup.archive import MessageArchive
from angarium.pickup.queues import PickupQueues
from angarium.pickup.store import PickupStore

ROWS_PER_PASS = 500
EXPIRED = "expired"


@dataclass(frozen=True)
class ExpiryPass:
    removed: int
    again: bool


class Expiry:
    def __init__(self, store: PickupStore, archive: MessageArchive, retention_s: int) -> None:
        self._store = store
        self._archive = archive
        self._queues = PickupQueues(store, archive)
        self._retention_ms = retention_s * 1000

    async def run_once(self) -> ExpiryPass:
        """Remove some; the next pass follows at once while there are more."""
        before_ms = await self._now_ms() - self._retention_ms
        found: dict[str, list[str]] = {}
        rows = await self._archive.received_before(before_ms, ROWS_PER_PASS)
        for queue, message_id in rows:
            found.setdefault(queue, []).append(message_id)
        counts = [await self._queues.remove(queue, ids, EXPIRED) for queue, ids in found.items()]
        # Rows of removed messages are found until the persister has deleted them.
        removed = sum(counts)
        return ExpiryPass(removed, again=removed > 0 and len(rows) == ROWS_PER_PASS)

    async def _now_ms(self) -> int:
        """By the clock that the times of arrival are from."""
        now_ms = self._store.runtime.clock.now_ms()
        if now_ms is not None:
            return now_ms
        name = self._store.hint_channel
        seconds, micros = await self._store.runtime.redis.call("TIME", key=name)
        return int(seconds) * 1000 + int(micros) // 1000
