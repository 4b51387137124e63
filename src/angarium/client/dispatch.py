"""Sends messages to workers: on the channel, or to the durable intake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from angarium.dispatch.store import DispatchStore, Enqueued, PartitionStatus
from angarium.runtime.errors import InputInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text


class DispatchClient:
    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store(DispatchStore)

    async def publish(self, message: Any) -> int:
        """Returns the number of listening dispatchers. With none, the message is lost."""
        return await self._store.publish(self._encoded(message))

    async def publish_all(self, messages: Sequence[Any]) -> list[int]:
        return await self._store.publish_all([self._encoded(each) for each in messages])

    async def enqueue(self, message: Any, *, idempotency_key: str | None = None) -> Enqueued:
        """Add to the durable intake, where it waits for a dispatcher. A used key adds nothing."""
        if idempotency_key is not None:
            check_text(idempotency_key, "idempotency_key")
        return await self._store.enqueue(self._encoded(message), idempotency_key)

    async def status(self) -> list[PartitionStatus]:
        partitions = range(self._store.partitions)
        return [await self._store.status(partition) for partition in partitions]

    def _encoded(self, message: Any) -> bytes:
        payload = encoded(message)
        self._store.check_payload(payload)
        return payload


def encoded(value: Any) -> bytes:
    """Encode as JSON; `msgspec.Raw` is unchanged."""
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InputInvalid(f"the value can't be written as JSON: {error}") from None
