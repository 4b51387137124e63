"""A queue as its reader sees it: Redis and the database as one, in order of arrival.

What waits in the database is older than what waits in Redis, so it goes first. Every message is
given out by a script in Redis, whichever store it lies in, so nobody gets what another has; every
removal is exact in both. While the database is away, queues that have nothing there work on, and
the others say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from angarium.pickup.archive import Archive
from angarium.pickup.model import Message
from angarium.pickup.store import (
    PULL_BYTES_MAX,
    PULL_MESSAGES_MAX,
    PickupStore,
    TakeLimits,
    messages_of,
)
from angarium.runtime.errors import AngariumError, DatabaseUnavailable
from angarium.runtime.scripts import status_of

# A queue whose chart is missing is served when the persister has made it; a reader waits so long.
CHART_WAIT_S = 10.0
CHART_POLL_S = 0.05
PAGE_ROWS = 200
DELIVERED = "delivered"
CANCELLED = "cancelled"


@dataclass(frozen=True)
class Claimed:
    """Messages of the database that are the caller's now.

    `full`: a limit cut them short. `torn`: rows were deleted meanwhile, so look again. `due`: when
    each is pending again, if a taker has it.
    """

    messages: list[Message]
    full: bool
    torn: bool
    due: dict[str, bytes]


@dataclass(frozen=True)
class Taken:
    """Messages that are the taker's now. `more`: the limit in bytes left something behind."""

    messages: list[Message]
    more: bool
    due: dict[str, bytes]

    def with_more(self, messages: list[Message], more: bool, due: dict[str, bytes]) -> Taken:
        return Taken(self.messages + messages, more, self.due | due)


class Mailbox:
    def __init__(self, store: PickupStore, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self._clock = store.runtime.clock

    async def take(self, queue: str, did: str, messages_max: int, bytes_max: int) -> list[Message]:
        """Oldest first, never more than both limits; sending from now on."""
        limits = TakeLimits(messages_max, bytes_max, bytes_max)
        return (await self.take_portion(queue, did, limits)).messages

    async def take_portion(self, queue: str, did: str, limits: TakeLimits) -> Taken:
        """Oldest first, within the limits, but at least one; sending from now on."""
        taken = Taken([], False, {})
        seen = ""
        while len(taken.messages) < limits.messages:
            left = _left_of(limits, taken.messages)
            try:
                reply = await self._store.take(queue, did, left, seen)
                status = status_of(reply)
                if status == "uncharted":
                    await self.wait_for_chart(queue)
                elif status == "archived":
                    claimed = await self._claim(queue, "", did, left, reply[2])
                    seen = "" if claimed.torn else reply[1].decode()
                    taken = taken.with_more(claimed.messages, claimed.full, claimed.due)
                    if claimed.full:
                        break
            except AngariumError:
                if not taken.messages:
                    raise
                break  # what was taken before is answered
            if status == "taken":
                found = messages_of(reply[3:])
                due = dict.fromkeys((each.id for each in found), reply[2])
                return taken.with_more(found, bool(reply[1]), due)
        return taken

    async def give_back(self, queue: str, due: Mapping[str, bytes]) -> None:
        """What was taken and never answered is pending again."""
        await self._store.give_back(queue, due)

    async def pull_archived(self, queue: str, term: str, cleared: bytes) -> Claimed:
        """What the database has for a live session; at least one, if it has any."""
        limits = TakeLimits(PULL_MESSAGES_MAX, PULL_BYTES_MAX)
        return await self._claim(queue, term, "", limits, cleared)

    async def _claim(
        self, queue: str, term: str, did: str, limits: TakeLimits, cleared: bytes
    ) -> Claimed:
        """Archived messages that are ours from now on."""
        due: dict[str, bytes] = {}
        try:
            status = await self._claim_rows(queue, term, did, limits, cleared, due)
            if status == "lost":
                return Claimed([], False, False, {})
            found = await self._archive.load(list(due)) if due else []
        except Exception:
            # A taker who gets an error must not keep what it never saw from the next one. A
            # session asks again for all that it holds.
            if due and not term:
                with contextlib.suppress(AngariumError):
                    await self.give_back(queue, due)
            raise
        full = status == "full" or len(due) >= limits.messages
        return Claimed(found, full, status == "again", due)

    async def _claim_rows(
        self,
        queue: str,
        term: str,
        did: str,
        limits: TakeLimits,
        cleared: bytes,
        due: dict[str, bytes],
    ) -> str:
        """Page by page into `due`; why it ended: full, lost, again, or all were looked at."""
        after = 0
        while limits.messages > 0:
            rows = await self._archive.page(queue, did, after, PAGE_ROWS)
            if not rows:
                break
            after = rows[-1][1]
            reply = await self._store.claim(queue, term, rows, limits, cleared)
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
            if status == "uncharted":
                await self.wait_for_chart(queue)
            elif status == "archived":
                without = {each.decode() for each in reply[2:]}
                return int(reply[1]) + await self._archive.count(queue, did, without)
            else:
                return int(reply[1])

    async def remove(self, queue: str, ids: Sequence[str], event: str = DELIVERED) -> int:
        """Exactly these, wherever they are; how many there were."""
        reply = await self._store.remove(queue, event, ids)
        return await self.finish_remove(queue, ids, event, reply)

    async def finish_remove(self, queue: str, ids: Sequence[str], event: str, reply: Any) -> int:
        """The rest of a removal whose first answer is `reply`."""
        removed = 0
        while True:
            if status_of(reply) == "uncharted":
                await self.wait_for_chart(queue)
            else:
                removed += int(reply[1])
                ids = [each.decode() for each in reply[3:]]
                if not ids:
                    return removed
                rows = await self._archive.sizes(queue, ids)
                if not rows:
                    return removed
                buried = await self._store.bury(queue, event, reply[2], rows)
                if status_of(buried) == "buried":
                    return removed + int(buried[1])
            reply = await self._store.remove(queue, event, ids)

    async def remove_all(self, queue: str, did: str, event: str = CANCELLED) -> int:
        """Every message of a recipient, or of all when `did` is empty."""
        removed = 0
        while True:
            reply = await self._store.list_ids(queue, did, 1_000)
            if status_of(reply) == "uncharted":
                await self.wait_for_chart(queue)
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

    async def wait_for_chart(self, queue: str) -> None:
        """Redis came back without data: what the database has is being counted."""
        partition, clock = self._store.partition_of(queue), self._clock
        give_up = clock.monotonic() + CHART_WAIT_S
        while not await self._store.charted(partition):
            if clock.monotonic() > give_up:
                raise DatabaseUnavailable("what the database holds is not counted yet; try again")
            await clock.sleep(CHART_POLL_S)


def _left_of(limits: TakeLimits, taken: Sequence[Message]) -> TakeLimits:
    return _reduced(limits, len(taken), sum(len(each.payload) for each in taken))


def _reduced(limits: TakeLimits, count: int, size: int) -> TakeLimits:
    """What is left after so many messages; only the very first may exceed the limit in bytes."""
    if count == 0:
        return limits
    left_bytes = max(0, limits.bytes - size)
    return TakeLimits(limits.messages - count, left_bytes, left_bytes)
