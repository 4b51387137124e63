"""Moves old messages from Redis to the database. Each partition has one lease for it.

A move has three steps: mark the messages in Redis, store them in the database under the term of the
lease, delete them from Redis. After a crash between two steps a message is in both stores; readers
see it once, and the next persister continues. The persister also deletes the rows of removed
messages. If Redis lost its data, the persister counts the rows of each queue before any reader
relies on the counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from angarium.pickup.archive import MessageArchive
from angarium.pickup.model import StoredMessage
from angarium.pickup.store import PickupStore
from angarium.runtime.errors import DatabaseUnavailable, LeaseLost
from angarium.runtime.lease import Lease, LeaseOutcome

QUEUES_PER_PASS = 200
ROWS_DELETED_PER_PASS = 1_000
COUNTED_QUEUES_PER_CALL = 500


@dataclass(frozen=True)
class PersistResult:
    """`again`: there is more to do at once."""

    messages: int = 0
    rows_deleted: int = 0
    again: bool = False


class Persister:
    """Of one partition. `run_once` does nothing without the lease."""

    def __init__(
        self, store: PickupStore, archive: MessageArchive, partition: int, lease_ms: int
    ) -> None:
        self._store = store
        self._archive = archive
        self._partition = partition
        self._moves = store.moves
        self._lease = Lease(store.runtime, store.moves.lease_keys(partition), lease_ms)
        self._fenced_term: int | None = None

    async def run_once(self) -> PersistResult:
        if await self._lease.run_once() is LeaseOutcome.LOST:
            await self._lease.run_once()  # the lease may be free
        if not self._lease.trusted:
            self._fenced_term = None
            return PersistResult()
        term = self._lease.term
        if self._fenced_term != term:
            # The fence comes before the first read of Redis: all rows of an older holder are
            # visible then, and it stores no more.
            newest = await self._archive.fence(self._partition, term)
            if newest > term:
                # Redis lost its data and counts terms from one again.
                await self._moves.raise_term(self._partition, newest)
                await self._lease.release()
                return PersistResult(again=True)
            self._fenced_term = term
        if not await self._moves.counts_written(self._partition):
            await self._write_counts()
        due = await self._store.due_work(self._partition, QUEUES_PER_PASS)
        try:
            moved = await self._move(due.to_archive, term) if due.to_archive else 0
            deleted = 0
            for queue in due.with_removed_rows:
                deleted += await self._delete_rows(queue, term)
        except LeaseLost:
            self._fenced_term = None
            raise
        return PersistResult(moved, deleted, again=bool(moved or deleted))

    async def release(self) -> None:
        await self._lease.release()

    async def _move(self, queues: Sequence[str], term: int) -> int:
        found = await self._moves.begin(self._partition, queues)
        if found:
            await self.on_move_begun(found)
            await self._archive.store(self._partition, term, found)
            await self.on_rows_stored(found)
        moved: dict[str, list[str]] = {queue: [] for queue in queues}
        for queue, messages in found.items():
            moved[queue] = [each.id for each in messages]
        # Also queues without messages to move: the script updates their age.
        count = await self._moves.finish(self._partition, moved)
        if count is None:
            raise DatabaseUnavailable("Redis lost its data during a move")
        return count

    async def on_move_begun(self, found: Mapping[str, Sequence[StoredMessage]]) -> None:
        """Called between marking and storing; tests interrupt the move here."""

    async def on_rows_stored(self, found: Mapping[str, Sequence[StoredMessage]]) -> None:
        """Called between storing and deleting from Redis; tests interrupt the move here."""

    async def _delete_rows(self, queue: str, term: int) -> int:
        ids = await self._moves.removed_rows(queue, ROWS_DELETED_PER_PASS)
        if ids:
            await self._archive.delete(self._partition, term, ids)
            await self._moves.clear_removed(queue, ids)
        return len(ids)

    async def _write_counts(self) -> None:
        counts = [
            each
            for each in await self._archive.counts()
            if self._store.partition_of(each[0]) == self._partition
        ]
        for start in range(0, len(counts), COUNTED_QUEUES_PER_CALL):
            some = counts[start : start + COUNTED_QUEUES_PER_CALL]
            await self._moves.write_counts(self._partition, some, last=False)
        await self._moves.write_counts(self._partition, [], last=True)
