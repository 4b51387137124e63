"""Adds, takes, counts and removes messages in pickup queues.

For server programs such as a mediator's process; recipients connect to a gateway with
`angarium.pickup.client.PickupClient`. The database is opened at its first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from angarium.client.dispatch import encoded
from angarium.conversations.settings import ConversationsSettings
from angarium.pickup.deduplicated_add import NewMessage, derived_id
from angarium.pickup.model import DEFAULT_TENANT, StoredMessage
from angarium.pickup.service import ConnectionQueue, PickupService
from angarium.runtime.ids import time_ordered_id
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text


class PickupQueuesClient:
    def __init__(self, runtime: Runtime) -> None:
        self._prefix = runtime.settings.prefix
        repeats_ms = runtime.settings.group(ConversationsSettings).awaited_message_ttl
        self._pickup = PickupService(runtime, remembered_ms=repeats_ms)

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
        for name, text in [
            ("tenant", tenant), ("connection_id", connection_id), ("key", key),
            ("push_token", push_token), *(("recipient", each) for each in recipients),
        ]:  # fmt: skip
            if text is not None:
                check_text(text, name)
        parts = (self._prefix, tenant, connection_id, key or time_ordered_id().hex)
        message_id = derived_id(*parts)
        await self._pickup.add(
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
        _check(tenant=tenant, connection_id=connection_id, recipient=recipient)
        return await self._pickup.take(tenant, connection_id, recipient, limit)

    async def remove(
        self, connection_id: str, message_ids: Sequence[str], *, tenant: str = DEFAULT_TENANT
    ) -> int:
        """Remove messages permanently, which acknowledges them. Returns how many existed."""
        for message_id in message_ids:
            check_text(message_id, "message_id")
        _check(tenant=tenant, connection_id=connection_id)
        return await self._pickup.remove(tenant, connection_id, message_ids)

    async def count(self, connection_id: str, *, tenant: str = DEFAULT_TENANT) -> int:
        _check(tenant=tenant, connection_id=connection_id)
        return await self._pickup.count(tenant, connection_id)

    async def show(self, connection_id: str, *, tenant: str = DEFAULT_TENANT) -> ConnectionQueue:
        _check(tenant=tenant, connection_id=connection_id)
        return await self._pickup.show(tenant, connection_id)

    async def close(self) -> None:
        await self._pickup.close()


def _check(**texts: str) -> None:
    for name, text in texts.items():
        check_text(text, name)
