"""Sends messages to workers: on the channel, or to the durable intake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from angarium.dispatch.message_state import MessageState
from angarium.dispatch.service import DispatchService
from angarium.dispatch.store import Enqueued, PartitionStatus
from angarium.runtime.errors import InputInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text


class DispatchClient:
    def __init__(self, runtime: Runtime) -> None:
        self._service = DispatchService(runtime)

    async def publish(self, message: Any, *, queue: str = "") -> int:
        """Returns the number of listening dispatchers. With none, the message is lost."""
        (listeners,) = await self.publish_all([message], queue=queue)
        return listeners

    async def publish_all(self, messages: Sequence[Any], *, queue: str = "") -> list[int]:
        return await self._service.publish([encoded(each) for each in messages], queue)

    async def enqueue(
        self, message: Any, *, idempotency_key: str | None = None, queue: str = ""
    ) -> Enqueued:
        """Add to the durable intake, where it waits for a dispatcher. A used key adds nothing."""
        if idempotency_key is not None:
            check_text(idempotency_key, "idempotency_key")
        (enqueued,) = await self._service.enqueue([(encoded(message), idempotency_key)], [queue])
        return enqueued

    async def result(self, message_id: str, wait_s: float = 0) -> MessageState:
        """What became of a message, after waiting up to `wait_s` for its end; `state.result` has
        the fields of its result as text. Raises `MessageUnknown`."""
        return await self._service.messages.wait(message_id, wait_s)

    async def status(self) -> list[PartitionStatus]:
        return await self._service.partitions()


def encoded(value: Any) -> bytes:
    """Encode as JSON; `msgspec.Raw` is unchanged."""
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InputInvalid(f"the value can't be written as JSON: {error}") from None
