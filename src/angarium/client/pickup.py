"""Adds, takes, counts and removes messages in pickup queues.

For server programs such as a mediator's process; recipients connect to a gateway with
`angarium.pickup.client.PickupClient`. The database is opened at its first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from angarium.client.dispatch import encoded
from angarium.conversations.settings import ConversationsSettings
from angarium.pickup.archive import MessageArchive
from angarium.pickup.deduplicated_add import DeduplicatedAdd, NewMessage, derived_id
from angarium.pickup.inspection import ConnectionQueue, Inspection
from angarium.pickup.limits import PickupLimits
from angarium.pickup.model import DEFAULT_TENANT, StoredMessage, queue_name
from angarium.pickup.queues import PickupQueues
from angarium.pickup.store import PickupStore, TakeLimits
from angarium.runtime.ids import time_ordered_id
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text


class PickupQueuesClient:
    def __init__(self, runtime: Runtime) -> None:
        self._settings = runtime.settings
        repeats_ms = runtime.settings.group(ConversationsSettings).awaited_message_ttl
        self._adds = DeduplicatedAdd(runtime, repeats_ms)
        self._store = runtime.store(PickupStore)
        self._archive: MessageArchive | None = None
        self._opening = asyncio.Lock()

    async def add(
        self,
        connection_id: str,
        payload: Any,
        *,
        recipients: Sequence[str] = (),
        key: str | None = None,
        tenant: str = DEFAULT_TENANT,
        push_token: str | None = None,
    ) -> str:
        """Add a message and return its id. A repeated `key` of the connection adds nothing."""
        _queue(tenant, connection_id)
        for name, text in [
            ("key", key), ("push_token", push_token), *(("recipient", each) for each in recipients)
        ]:  # fmt: skip
            if text is not None:
                check_text(text, name)
        parts = (self._settings.prefix, tenant, connection_id, key or time_ordered_id().hex)
        message_id = derived_id(*parts)
        await self._adds.add(
            NewMessage(
                connection_id, encoded(payload), message_id, recipients, tenant, push_token,
                key or "",
            )
        )  # fmt: skip
        return message_id

    async def take(
        self,
        connection_id: str,
        *,
        recipient: str = "",
        limit: int = 100,
        tenant: str = DEFAULT_TENANT,
    ) -> list[StoredMessage]:
        """Take messages, oldest first. They are delivered again unless removed in time."""
        limits = self._settings.limits_of(PickupLimits)
        messages_max = min(limit, limits.pickup_take_messages_max)
        queue = _queue(tenant, connection_id)
        check_text(recipient, "recipient")
        queues = await self._queues()
        most = TakeLimits(messages_max, limits.pickup_take_bytes_max)
        return (await queues.take(queue, recipient, most)).messages

    async def remove(
        self, connection_id: str, message_ids: Sequence[str], *, tenant: str = DEFAULT_TENANT
    ) -> int:
        """Remove messages permanently, which acknowledges them. Returns how many existed."""
        queue = _queue(tenant, connection_id)
        for message_id in message_ids:
            check_text(message_id, "message_id")
        return await (await self._queues()).remove(queue, message_ids)

    async def count(self, connection_id: str, *, tenant: str = DEFAULT_TENANT) -> int:
        queue = _queue(tenant, connection_id)
        return await (await self._queues()).count(queue, "")

    async def show(self, connection_id: str, *, tenant: str = DEFAULT_TENANT) -> ConnectionQueue:
        _queue(tenant, connection_id)
        return await Inspection(self._store, await self._open()).show(tenant, connection_id)

    async def close(self) -> None:
        archive, self._archive = self._archive, None
        if archive is not None:
            await archive.close()

    async def _queues(self) -> PickupQueues:
        return PickupQueues(self._store, await self._open())

    async def _open(self) -> MessageArchive:
        async with self._opening:
            if self._archive is None:
                settings = self._settings
                self._archive = await MessageArchive.open(settings.database_url, settings.prefix)
            return self._archive


def _queue(tenant: str, connection_id: str) -> str:
    return queue_name(check_text(tenant, "tenant"), check_text(connection_id, "connection_id"))
