"""A queue as its reader sees it: Redis and the database as one, in order of arrival.

What waits in the database is older than what waits in Redis, so it goes first. Every message is
given out by a script in Redis, whichever store it lies in, so nobody gets what another has; every
removal is exact in both. While the database is away, queues that have nothing there work on, and
the others say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from angarium.core.errors import DatabaseUnavailable
from angarium.core.scripts import status_of
from angarium.pickup.archive import Archive
from angarium.pickup.model import Message
from angarium.pickup.store import PULL_BYTES_MAX, PULL_MESSAGES_MAX, PickupStore, messages_of

# A queue whose chart is missing is served when the persister has made it; a reader waits so long.
CHART_WAIT_S = 10.0
CHART_POLL_S = 0.05
PAGE_ROWS = 200
DELIVERED = "delivered"
CANCELLED = "cancelled"


@dataclass(frozen=True)
class Claimed:
    """Messages of the database that are the caller's now.

    `full`: a limit cut them short. `torn`: rows were deleted meanwhile, so look again.
    """

    messages: list[Message]
    full: bool
    torn: bool


class Mailbox:
    def __init__(self, store: PickupStore, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self._clock = store.ground.clock

    async def take(self, queue: str, did: str, messages_max: int, bytes_max: int) -> list[Message]:
        """Oldest first, within both limits; sending from now on."""
        taken: list[Message] = []
        seen = ""
        while len(taken) < messages_max:
            left_bytes = bytes_max - sum(len(each.payload) for each in taken)
            left = messages_max - len(taken)
            reply = await self._store.take(queue, did, left, left_bytes, seen)
            status = status_of(reply)
            if status == "uncharted":
                await self.wait_for_chart(queue)
            elif status == "archived":
                seen = reply[1].decode()
                claimed = await self._claim(queue, "", did, left, left_bytes, reply[2])
                taken += claimed.messages
                if claimed.full:
                    break
                if claimed.torn:
                    seen = ""
            else:
                return taken + messages_of(reply[1:])
        return taken

    async def pull_archived(self, queue: str, term: str, cleared: bytes) -> Claimed:
        """What the database has for a live session."""
        limits = PULL_MESSAGES_MAX, PULL_BYTES_MAX
        return await self._claim(queue, term, "", *limits, cleared)

    async def _claim(
        self, queue: str, term: str, did: str, messages_max: int, bytes_max: int, cleared: bytes
    ) -> Claimed:
        """Archived messages that are ours from now on."""
        claimed: list[str] = []
        after, full, torn = 0, False, False
        size = 0
        while not full and len(claimed) < messages_max:
            rows = await self._archive.page(queue, did, after, PAGE_ROWS)
            if not rows:
                break
            after = rows[-1][1]
            reply = await self._store.claim(
                queue, term, rows, messages_max - len(claimed), bytes_max - size, cleared
            )
            status = status_of(reply)
            if status == "lost":
                return Claimed([], full=False, torn=False)
            if status == "again":
                torn = True
                break
            ids = [each.decode() for each in reply[2:]]
            sizes = {row[0]: row[2] for row in rows}
            size += sum(sizes[each] for each in ids)
            claimed += ids
            full = bool(reply[1])
        full = full or len(claimed) >= messages_max
        found = await self._archive.load(claimed) if claimed else []
        return Claimed(found, full, torn)

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
