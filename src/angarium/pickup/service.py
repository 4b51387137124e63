"""What can be done with pickup queues. HTTP, the Python client and the command line call this.

Recipients use the gateway instead. The database is opened at its first use; `close` closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from angarium.pickup.archive import MessageArchive
from angarium.pickup.deduplicated_add import REMEMBERED_MS, DeduplicatedAdd, NewMessage
from angarium.pickup.limits import PickupLimits
from angarium.pickup.model import StoredMessage, check_id, is_tenant, queue_name
from angarium.pickup.queues import PickupQueues
from angarium.pickup.store import GatewayStatus, PickupStore, TakeLimits
from angarium.runtime.database.identity import adopt_database
from angarium.runtime.errors import DatabaseUnavailable, InputInvalid, NotFound
from angarium.runtime.runtime import Runtime

# The totals of the database may be this old; counting takes at most a twentieth of the time.
COUNT_S_MIN = 10.0
COUNT_PAUSES = 20


class ConnectionQueue(msgspec.Struct, frozen=True):
    """The queue of one connection."""

    tenant: str
    connection_id: str
    pending: int
    sending: int
    archived: int
    bytes: int
    live: bool
    session: str | None
    gateway: str | None
    oldest_ms: int | None


class PickupOverview(msgspec.Struct, frozen=True):
    """The whole module."""

    gateways: list[GatewayStatus]
    queues: int
    moving: int
    pushes: int
    archived: int
    archived_bytes: int


class PickupService:
    def __init__(
        self,
        runtime: Runtime,
        *,
        remembered_ms: int = REMEMBERED_MS,
        archive: MessageArchive | None = None,
    ) -> None:
        """A repeated add within `remembered_ms` adds nothing."""
        self._runtime = runtime
        self._store = runtime.store(PickupStore)
        self._limits: PickupLimits = runtime.settings.limits_of(PickupLimits)
        self._adds = DeduplicatedAdd(runtime, self.archive, remembered_ms)
        self._archive = archive
        self._opening = asyncio.Lock()
        self._totals = 0, 0
        self._count_again_s = float("-inf")
        self._counting = asyncio.Lock()

    async def close(self) -> None:
        archive, self._archive = self._archive, None
        if archive is not None:
            await archive.close()

    async def archive(self) -> MessageArchive:
        async with self._opening:
            if self._archive is None:
                self._archive = await MessageArchive.of(self._runtime)
            return self._archive

    # Messages

    async def add(self, message: NewMessage) -> str:
        """'live' | 'offline' | 'duplicate' (still there) | 'removed' (added and removed before)."""
        return await self._adds.add(message)

    async def take(
        self, tenant: str, connection_id: str, recipient: str, limit: int
    ) -> list[StoredMessage]:
        """Take messages, oldest first. They are delivered again unless removed in time."""
        queue = self._queue(tenant, connection_id, recipient)
        messages_max = min(limit, self._limits.pickup_take_messages_max)
        most = TakeLimits(messages_max, self._limits.pickup_take_bytes_max)
        return (await (await self._queues()).take(queue, recipient, most)).messages

    async def remove(self, tenant: str, connection_id: str, message_ids: Sequence[str]) -> int:
        """Remove messages permanently, which acknowledges them. Returns how many existed."""
        return await (await self._queues()).remove(self._queue(tenant, connection_id), message_ids)

    async def count(self, tenant: str, connection_id: str, recipient: str = "") -> int:
        queue = self._queue(tenant, connection_id, recipient)
        return await (await self._queues()).count(queue, recipient)

    # Reports

    async def show(self, tenant: str, connection_id: str) -> ConnectionQueue:
        found = await self._store.queue_status(self._queue(tenant, connection_id))
        if found is None:
            raise NotFound(f"{connection_id} of {tenant} has no messages and no session")
        return ConnectionQueue(tenant=tenant, connection_id=connection_id, **vars(found))

    async def overview(self) -> PickupOverview:
        totals = await self._store.totals()
        archived, archived_bytes = await self._count_archive()
        return PickupOverview(archived=archived, archived_bytes=archived_bytes, **vars(totals))

    async def _count_archive(self) -> tuple[int, int]:
        """Messages and bytes in the database. Counting reads every row, so the result is reused;
        the longer counting takes, the longer. Concurrent callers share one count."""
        clock = self._runtime.clock
        async with self._counting:
            if clock.monotonic() >= self._count_again_s:
                began_s = clock.monotonic()
                self._totals = await (await self.archive()).totals()
                took_s = clock.monotonic() - began_s
                self._count_again_s = began_s + max(COUNT_S_MIN, took_s * COUNT_PAUSES)
        return self._totals

    # Commands of operators

    async def drain(self, tenant: str, connection_id: str, did: str = "") -> int:
        """Remove every message, or those of one recipient; returns how many there were."""
        queue = self._queue(tenant, connection_id, did)
        if not await self._store.moves.counts_written(self._store.partition_of(queue)):
            totals = await self._store.totals()
            if not any(each.live for each in totals.gateways):
                return await self._drain_uncounted(queue)
        return await (await self._queues()).remove_all(queue, did)

    async def _drain_uncounted(self, queue: str) -> int:
        """The archived messages are not counted, and no gateway runs that could count them. Only
        an empty queue can be answered; waiting would not help."""
        if await self._store.queue_status(queue) is None and not await (await self.archive()).page(
            queue, "", 0, 1
        ):
            return 0
        hint = "start a gateway: angarium serve gateway"
        raise DatabaseUnavailable(f"the archived messages are not counted; {hint}")

    async def adopt_database(self) -> str:
        """Use the configured database in place of the recorded one, which is lost. Messages that
        the lost database had are given up. Returns where the new one is."""
        place = await adopt_database(self._runtime)
        for partition in self._store.partitions:
            await self._store.moves.reset_archive(partition)
        return place

    async def _queues(self) -> PickupQueues:
        return PickupQueues(self._store, await self.archive())

    def _queue(self, tenant: str, connection_id: str, recipient: str = "") -> str:
        bytes_max = self._limits.id_bytes_max
        if not is_tenant(tenant):
            raise InputInvalid(f"{tenant!r} can't be a tenant's name")
        check_id("connectionId", connection_id, bytes_max)
        if recipient:
            check_id("recipientDid", recipient, bytes_max)
        return queue_name(tenant, connection_id)
