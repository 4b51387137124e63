"""The room as an operator sees it: one queue, the whole, and emptying a queue.

Used by the command line and the API; it opens the database for itself and moves nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from angarium.core.errors import InputInvalid, NotFound
from angarium.core.ground import Ground
from angarium.pickup.archive import Archive
from angarium.pickup.mailbox import Mailbox
from angarium.pickup.model import check_word, is_tenant, queue_name
from angarium.pickup.store import GatewayFigures, PickupStore


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
    """The whole room."""

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
        archived = await self._archive.figures()
        return Overview(
            gateways=figures.gateways,
            queues=figures.queues,
            moving=figures.moving,
            pushes=figures.pushes,
            archived=sum(count for _, count, _ in archived),
            archived_bytes=sum(size for _, _, size in archived),
        )

    async def drain(self, tenant: str, connection_id: str, did: str = "") -> int:
        """Every message, or those of one recipient, gone for good; how many."""
        if did:
            check_word("recipientDid", did, self._store.ground.settings.limits.id_bytes_max)
        queue = self._queue(tenant, connection_id)
        return await Mailbox(self._store, self._archive).remove_all(queue, did)

    def _queue(self, tenant: str, connection_id: str) -> str:
        if not is_tenant(tenant):
            raise InputInvalid(f"{tenant!r} can't be a tenant's name")
        check_word("connectionId", connection_id, self._store.ground.settings.limits.id_bytes_max)
        return queue_name(tenant, connection_id)


@asynccontextmanager
async def inspection(ground: Ground) -> AsyncIterator[Inspection]:
    archive = await Archive.open(ground.settings.database_url, ground.settings.prefix)
    try:
        yield Inspection(PickupStore(ground), archive)
    finally:
        await archive.close()
