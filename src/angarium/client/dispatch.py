"""Sends messages to workers: on the channel, or to the durable intake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from angarium.dispatch.service import DispatchService
from angarium.dispatch.store import Enqueued, PartitionStatus
from angarium.runtime.errors import InputInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text


class DispatchClient:
    def __init__(self, runtime: Runtime) -> None:
        self._service = DispatchService(runtime)

    async def publish(self, message: Any) -> int:
        """Returns the number of listening dispatchers. With none, the message is lost."""
        (listeners,) = await self.publish_all([message])
        return listeners

    async def publish_all(self, messages: Sequence[Any]) -> list[int]:
        return await self._service.publish([encoded(each) for each in messages])

    async def enqueue(self, message: Any, *, idempotency_key: str | None = None) -> Enqueued:
        """Add to the durable intake, where it waits for a dispatcher. A used key adds nothing."""
        if idempotency_key is not None:
            check_text(idempotency_key, "idempotency_key")
        (enqueued,) = await self._service.enqueue([(encoded(message), idempotency_key)])
        return enqueued

    async def status(self) -> list[PartitionStatus]:
        return await self._service.partitions()


def encoded(value: Any) -> bytes:
    """Encode as JSON; `msgspec.Raw` is unchanged."""
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InputInvalid(f"the value can't be written as JSON: {error}") from None
