"""Moves messages that wait long from Redis to the database, one lease per partition.

Mark in Redis, store in the database under the lease's term, take out of Redis: a crash between
any two steps leaves a message in both, which readers see once, and the next persister goes on
where this one stopped. Rows of messages that were removed meanwhile are deleted here. The same
holder counts what the database has when Redis came back empty, before anyone relies on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from angarium.pickup.archive import Archive
from angarium.pickup.model import Message
from angarium.pickup.store import PickupStore
from angarium.runtime.errors import DatabaseUnavailable, LeaseLost
from angarium.runtime.lease import Lease, Turn

QUEUES_PER_PASS = 200
BURIED_PER_PASS = 1_000
CHART_QUEUES_PER_CALL = 500


@dataclass(frozen=True)
class Moved:
    """What one pass did; `again` when there is more to do at once."""

    messages: int = 0
    rows_deleted: int = 0
    again: bool = False


class Persister:
    """One partition's. `run_once` at each interval; it does nothing without the lease."""

    def __init__(self, store: PickupStore, archive: Archive, partition: int, lease_ms: int) -> None:
        self._store = store
        self._archive = archive
        self._partition = partition
        self._lease = Lease(store.runtime, store.persister_lease(partition), lease_ms)
        self._fenced: int | None = None

    async def run_once(self) -> Moved:
        if await self._lease.run_once() is Turn.LOST:
            await self._lease.run_once()  # nobody may want it
        if not self._lease.trusted:
            self._fenced = None
            return Moved()
        term = self._lease.term
        if self._fenced != term:
            # Before anything is read from Redis: what an older holder stored until now is there
            # to be seen, and it stores nothing from now on.
            newest = await self._archive.fence(self._partition, term)
            if newest > term:
                # Redis lost its data and counts from one again: the next term is greater.
                await self._store.raise_term(self._partition, newest)
                await self._lease.release()
                return Moved(again=True)
            self._fenced = term
        if not await self._store.charted(self._partition):
            await self._chart()
        due = await self._store.due(self._partition, QUEUES_PER_PASS)
        try:
            moved = await self._move(due.aged, term) if due.aged else 0
            deleted = 0
            for queue in due.buried:
                deleted += await self._delete_buried(queue, term)
        except LeaseLost:
            self._fenced = None
            raise
        return Moved(moved, deleted, again=bool(moved or deleted))

    async def release(self) -> None:
        await self._lease.release()

    async def _move(self, queues: Sequence[str], term: int) -> int:
        found = await self._store.begin_move(self._partition, queues)
        if found:
            await self.on_marked(found)
            await self._archive.store(self._partition, term, found)
            await self.on_stored(found)
        moved: dict[str, list[str]] = {queue: [] for queue in queues}
        for queue, messages in found.items():
            moved[queue] = [each.id for each in messages]
        # Queues without anything to move are passed too: their age is set anew.
        count = await self._store.finish_move(self._partition, moved)
        if count is None:
            raise DatabaseUnavailable("Redis lost its data in the middle of a move")
        return count

    async def on_marked(self, found: Mapping[str, Sequence[Message]]) -> None:
        """Between marking and storing; tests stop here."""

    async def on_stored(self, found: Mapping[str, Sequence[Message]]) -> None:
        """Between storing and taking out of Redis; tests stop here."""

    async def _delete_buried(self, queue: str, term: int) -> int:
        ids = await self._store.buried(queue, BURIED_PER_PASS)
        if ids:
            await self._archive.delete(self._partition, term, ids)
            await self._store.clear(queue, ids)
        return len(ids)

    async def _chart(self) -> None:
        ours = [
            figures
            for figures in await self._archive.figures()
            if self._store.partition_of(figures[0]) == self._partition
        ]
        for start in range(0, len(ours), CHART_QUEUES_PER_CALL):
            portion = ours[start : start + CHART_QUEUES_PER_CALL]
            await self._store.chart(self._partition, portion, last=False)
        await self._store.chart(self._partition, [], last=True)
