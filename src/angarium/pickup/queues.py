"""Queues for readers: Redis and the database as one, in order of arrival.

The pending messages in the database are older than those in Redis, so they go first. A script in
Redis gives out every message, also the archived ones, so two readers never get the same message.
Removal is exact in both stores. While the database is unavailable, queues without archived messages
work; calls for the others fail with `database_unavailable`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from angarium.pickup.archive import MessageArchive
from angarium.pickup.model import StoredMessage, messages_of
from angarium.pickup.store import (
    PULL_BYTES_MAX,
    PULL_MESSAGES_MAX,
    PickupStore,
    TakeLimits,
)
from angarium.runtime.errors import AngariumError, DatabaseUnavailable
from angarium.runtime.scripts import status_of

# After Redis lost its data, a reader waits this long for the persister to count the database.
COUNT_WAIT_S = 10.0
COUNT_POLL_S = 0.05
PAGE_ROWS = 200
DELIVERED = "delivered"
CANCELLED = "cancelled"


@dataclass(frozen=True)
class ClaimedMessages:
    """Archived messages that belong to the caller now.

    `full`: a limit was reached. `stale`: rows were deleted meanwhile, so the caller has to ask
    again. `due`: when a taker's message is pending again, by id.
    """

    messages: list[StoredMessage]
    full: bool
    stale: bool
    due: dict[str, bytes]


@dataclass(frozen=True)
class TakenMessages:
    """Messages that belong to the taker now. `more`: the byte limit excluded some messages."""

    messages: list[StoredMessage]
    more: bool
    due: dict[str, bytes]

    def with_more(
        self, messages: list[StoredMessage], more: bool, due: dict[str, bytes]
    ) -> TakenMessages:
        return TakenMessages(self.messages + messages, more, self.due | due)


class PickupQueues:
    def __init__(self, store: PickupStore, archive: MessageArchive) -> None:
        self._store = store
        self._archive = archive
        self._clock = store.runtime.clock

    async def take(self, queue: str, did: str, limits: TakeLimits) -> TakenMessages:
        """Oldest first, within the limits; their state is `sending` from now on."""
        taken = TakenMessages([], False, {})
        seen = ""
        while len(taken.messages) < limits.messages:
            left = _left_of(limits, taken.messages)
            try:
                reply = await self._store.take(queue, did, left, seen)
                status = status_of(reply)
                if status == "not_counted":
                    await self._wait_for_counts(queue)
                elif status == "archived":
                    claimed = await self._claim(queue, "", did, left, reply[2])
                    seen = "" if claimed.stale else reply[1].decode()
                    taken = taken.with_more(claimed.messages, claimed.full, claimed.due)
                    if claimed.full:
                        break
            except AngariumError:
                if not taken.messages:
                    raise
                break  # the answer has the messages that were taken before
            if status == "taken":
                found = messages_of(reply[3:])
                due = dict.fromkeys((each.id for each in found), reply[2])
                return taken.with_more(found, bool(reply[1]), due)
        return taken

    async def give_back(self, queue: str, due: Mapping[str, bytes]) -> None:
        """Make taken messages pending again whose answer did not reach the client."""
        await self._store.give_back(queue, due)

    async def pull_archived(self, queue: str, term: str, cleared: bytes) -> ClaimedMessages:
        """Archived messages for a live session; at least one, if there is one."""
        limits = TakeLimits(PULL_MESSAGES_MAX, PULL_BYTES_MAX)
        return await self._claim(queue, term, "", limits, cleared)

    async def _claim(
        self, queue: str, term: str, did: str, limits: TakeLimits, cleared: bytes
    ) -> ClaimedMessages:
        """Archived messages for a session, or for a taker if `term` is empty."""
        due: dict[str, bytes] = {}
        try:
            status = await self._claim_rows(queue, term, did, limits, cleared, due)
            if status == "lost":
                return ClaimedMessages([], False, False, {})
            found = await self._archive.load(list(due)) if due else []
        except Exception:
            # A taker that gets an error does not know its messages, so they are pending again. A
            # session fetches all its messages again.
            if due and not term:
                with contextlib.suppress(AngariumError):
                    await self.give_back(queue, due)
            raise
        full = status == "full" or len(due) >= limits.messages
        return ClaimedMessages(found, full, status == "again", due)

    async def _claim_rows(
        self,
        queue: str,
        term: str,
        did: str,
        limits: TakeLimits,
        cleared: bytes,
        due: dict[str, bytes],
    ) -> str:
        """Claim page by page into `due`; returns 'full', 'lost', 'again', or 'all' at the end."""
        after = 0
        while limits.messages > 0:
            rows = await self._archive.page(queue, did, after, PAGE_ROWS)
            if not rows:
                break
            after = rows[-1][1]
            reply = await self._store.claim_archived(queue, term, rows, limits, cleared)
            status = status_of(reply)
            if status != "claimed":
                return status
            ids = [each.decode() for each in reply[3:]]
            due.update(dict.fromkeys(ids, reply[2]))
            if reply[1]:
                return "full"
            sizes = {row[0]: row[2] for row in rows}
            limits = _reduced(limits, len(ids), sum(sizes[each] for each in ids))
        return "all"

    async def count(self, queue: str, did: str) -> int:
        while True:
            reply = await self._store.count(queue, did)
            status = status_of(reply)
            if status == "not_counted":
                await self._wait_for_counts(queue)
            elif status == "archived":
                without = {each.decode() for each in reply[2:]}
                return int(reply[1]) + await self._archive.count(queue, did, without)
            else:
                return int(reply[1])

    async def remove(self, queue: str, ids: Sequence[str], event: str = DELIVERED) -> int:
        """Remove exactly these messages from both stores; returns how many existed."""
        reply = await self._store.remove(queue, event, ids)
        return await self.finish_remove(queue, ids, event, reply)

    async def finish_remove(self, queue: str, ids: Sequence[str], event: str, reply: Any) -> int:
        """Complete a removal whose first reply from Redis is `reply`."""
        removed = 0
        while True:
            if status_of(reply) == "not_counted":
                await self._wait_for_counts(queue)
            else:
                removed += int(reply[1])
                ids = [each.decode() for each in reply[3:]]
                if not ids:
                    return removed
                rows = await self._archive.sizes(queue, ids)
                if not rows:
                    return removed
                archived = await self._store.remove_archived(queue, event, reply[2], rows)
                if status_of(archived) == "removed":
                    return removed + int(archived[1])
            reply = await self._store.remove(queue, event, ids)

    async def remove_all(self, queue: str, did: str, event: str = CANCELLED) -> int:
        """Remove every message of a recipient, or of the queue if `did` is empty."""
        removed = 0
        while True:
            reply = await self._store.list_ids(queue, did, 1_000)
            if status_of(reply) == "not_counted":
                await self._wait_for_counts(queue)
                continue
            ids = [each.decode() for each in reply[3:]]
            if not ids:
                archived = int(reply[2])
                return removed + (await self._remove_rows(queue, did, event) if archived else 0)
            removed += await self.remove(queue, ids, event)

    async def _remove_rows(self, queue: str, did: str, event: str) -> int:
        removed = after = 0
        while True:
            rows = await self._archive.page(queue, did, after, PAGE_ROWS)
            if not rows:
                return removed
            after = rows[-1][1]
            removed += await self.remove(queue, [row[0] for row in rows], event)

    async def _wait_for_counts(self, queue: str) -> None:
        """Redis lost its data, and the persister counts the archived messages."""
        partition, clock = self._store.partition_of(queue), self._clock
        give_up_s = clock.monotonic() + COUNT_WAIT_S
        while not await self._store.moves.counts_written(partition):
            if clock.monotonic() > give_up_s:
                raise DatabaseUnavailable("the archived messages are not counted yet; try again")
            await clock.sleep(COUNT_POLL_S)


def _left_of(limits: TakeLimits, taken: Sequence[StoredMessage]) -> TakeLimits:
    return _reduced(limits, len(taken), sum(len(each.payload) for each in taken))


def _reduced(limits: TakeLimits, count: int, size: int) -> TakeLimits:
    """The limits that remain; only the first message may exceed the limit in bytes."""
    if count == 0:
        return limits
    left_bytes = max(0, limits.bytes - size)
    return TakeLimits(limits.messages - count, left_bytes, left_bytes)
