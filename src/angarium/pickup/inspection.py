"""The module as an operator sees it: one queue, the whole, and emptying a queue.

Used by the command line and the API; it opens the database for itself and moves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from angarium.pickup.archive import Archive
from angarium.pickup.mailbox import Mailbox
from angarium.pickup.model import check_word, is_tenant, queue_name
from angarium.pickup.store import GatewayFigures, PickupStore
from angarium.runtime.errors import DatabaseUnavailable, InputInvalid, NotFound
from angarium.runtime.runtime import Runtime

# The totals of the database may be this old, and counting takes a twentieth of the time at most.
COUNT_S_MIN = 10.0
COUNT_PAUSES = 20


class Shown(msgspec.Struct, frozen=True):
    """One connection's queue."""

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


class Overview(msgspec.Struct, frozen=True):
    """The whole module."""

    gateways: list[GatewayFigures]
    queues: int
    moving: int
    pushes: int
    archived: int
    archived_bytes: int


class Inspection:
    def __init__(self, store: PickupStore, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self._counted = 0, 0
        self._count_again_s = float("-inf")
        self._counting = asyncio.Lock()

    async def show(self, tenant: str, connection_id: str) -> Shown:
        queue = self._queue(tenant, connection_id)
        found = await self._store.show(queue)
        if found is None:
            raise NotFound(f"{connection_id} of {tenant} has no messages and no session")
        return Shown(
            tenant=tenant,
            connection_id=connection_id,
            pending=found.pending,
            sending=found.sending,
            archived=found.archived,
            bytes=found.bytes,
            live=found.live,
            session=found.session,
            gateway=found.gateway,
            oldest_ms=found.oldest_ms,
        )

    async def overview(self) -> Overview:
        figures = await self._store.overview()
        archived, archived_bytes = await self._totals()
        return Overview(
            gateways=figures.gateways,
            queues=figures.queues,
            moving=figures.moving,
            pushes=figures.pushes,
            archived=archived,
            archived_bytes=archived_bytes,
        )

    async def _totals(self) -> tuple[int, int]:
        """Of the database, which counts by looking at every message: so it is asked seldom, and
        the longer it takes the less often. One asks for all who wait."""
        clock = self._store.runtime.clock
        async with self._counting:
            if clock.monotonic() >= self._count_again_s:
                began_s = clock.monotonic()
                self._counted = await self._archive.totals()
                took_s = clock.monotonic() - began_s
                self._count_again_s = began_s + max(COUNT_S_MIN, took_s * COUNT_PAUSES)
        return self._counted

    async def drain(self, tenant: str, connection_id: str, did: str = "") -> int:
        """Every message, or those of one recipient, gone for good; how many."""
        if did:
            check_word("recipientDid", did, self._store.runtime.settings.limits.id_bytes_max)
        queue = self._queue(tenant, connection_id)
        if not await self._store.charted(self._store.partition_of(queue)):
            figures = await self._store.overview()
            if not any(each.live for each in figures.gateways):
                return await self._nothing_in(queue)
        return await Mailbox(self._store, self._archive).remove_all(queue, did)

    async def _nothing_in(self, queue: str) -> int:
        """No gateway has yet counted what the database holds, and none is there to do it: who
        waited would wait in vain."""
        if await self._store.show(queue) is None and not await self._archive.page(queue, "", 0, 1):
            return 0
        hint = "start a gateway: angarium serve gateway"
        raise DatabaseUnavailable(f"nobody has counted what the database holds; {hint}")

    def _queue(self, tenant: str, connection_id: str) -> str:
        if not is_tenant(tenant):
            raise InputInvalid(f"{tenant!r} can't be a tenant's name")
        check_word("connectionId", connection_id, self._store.runtime.settings.limits.id_bytes_max)
        return queue_name(tenant, connection_id)


@asynccontextmanager
async def inspection(runtime: Runtime) -> AsyncIterator[Inspection]:
    archive = await Archive.open(runtime.settings.database_url, runtime.settings.prefix)
    try:
        yield Inspection(PickupStore(runtime), archive)
    finally:
        await archive.close()
