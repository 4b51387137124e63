"""Operations for operators: show one queue, show the whole module, empty a queue.

The command line and the HTTP API use it. It never moves messages to the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from angarium.pickup.archive import MessageArchive
from angarium.pickup.model import check_id, is_tenant, queue_name
from angarium.pickup.queues import PickupQueues
from angarium.pickup.store import GatewayStatus, PickupStore
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


class Inspection:
    def __init__(self, store: PickupStore, archive: MessageArchive) -> None:
        self._store = store
        self._archive = archive
        self._totals = 0, 0
        self._count_again_s = float("-inf")
        self._counting = asyncio.Lock()

    async def show(self, tenant: str, connection_id: str) -> ConnectionQueue:
        queue = self._queue(tenant, connection_id)
        found = await self._store.queue_status(queue)
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
        clock = self._store.runtime.clock
        async with self._counting:
            if clock.monotonic() >= self._count_again_s:
                began_s = clock.monotonic()
                self._totals = await self._archive.totals()
                took_s = clock.monotonic() - began_s
                self._count_again_s = began_s + max(COUNT_S_MIN, took_s * COUNT_PAUSES)
        return self._totals

    async def drain(self, tenant: str, connection_id: str, did: str = "") -> int:
        """Remove every message, or those of one recipient; returns how many there were."""
        if did:
            check_id("recipientDid", did, self._store.runtime.settings.limits.id_bytes_max)
        queue = self._queue(tenant, connection_id)
        if not await self._store.moves.counts_written(self._store.partition_of(queue)):
            totals = await self._store.totals()
            if not any(each.live for each in totals.gateways):
                return await self._drain_uncounted(queue)
        return await PickupQueues(self._store, self._archive).remove_all(queue, did)

    async def _drain_uncounted(self, queue: str) -> int:
        """The archived messages are not counted, and no gateway runs that could count them. Only
        an empty queue can be answered; waiting would not help."""
        if await self._store.queue_status(queue) is None and not await self._archive.page(
            queue, "", 0, 1
        ):
            return 0
        hint = "start a gateway: angarium serve gateway"
        raise DatabaseUnavailable(f"the archived messages are not counted; {hint}")

    def _queue(self, tenant: str, connection_id: str) -> str:
        if not is_tenant(tenant):
            raise InputInvalid(f"{tenant!r} can't be a tenant's name")
        check_id("connectionId", connection_id, self._store.runtime.settings.limits.id_bytes_max)
        return queue_name(tenant, connection_id)


@asynccontextmanager
async def inspection(runtime: Runtime) -> AsyncIterator[Inspection]:
    archive = await MessageArchive.open(runtime.settings.database_url, runtime.settings.prefix)
    try:
        yield Inspection(runtime.store(PickupStore), archive)
    finally:
        await archive.close()
