"""What can be done with dispatch. HTTP, client, command line and dashboard call this."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from angarium.dispatch.dead_letters import DispatchDeadLetters
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.store import DispatchStore, Enqueued, PartitionStatus
from angarium.runtime.errors import LimitExceeded
from angarium.runtime.runtime import Runtime


class DispatchStatus(msgspec.Struct, frozen=True):
    """The state of each partition, and the live workers and dispatchers."""

    partitions: list[PartitionStatus]
    consumers: list[str]
    dispatchers: list[str]


class DispatchService:
    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store(DispatchStore)
        self._limits = runtime.settings.limits_of(DispatchLimits)
        self.dead_letters = DispatchDeadLetters(self._store)

    async def publish(self, payloads: Sequence[bytes]) -> list[int]:
        """Publish on the channel, in order; for each the number of listening dispatchers. With
        none, the message is lost."""
        for payload in payloads:
            self._store.check_payload(payload)
        return await self._store.publish_all(payloads)

    async def enqueue(self, messages: Sequence[tuple[bytes, str | None]]) -> list[Enqueued]:
        """Put messages, each with its idempotency key, into the durable intake, where they wait for
        a dispatcher. If one of them is invalid, none is added."""
        count_max = self._limits.intake_messages_max
        if len(messages) > count_max:
            raise LimitExceeded("intake_messages_max", len(messages), count_max)
        return await self._store.enqueue_all(messages)

    async def partitions(self) -> list[PartitionStatus]:
        return [await self._store.status(number) for number in range(self._store.partitions)]

    async def status(self) -> DispatchStatus:
        return DispatchStatus(
            await self.partitions(), await self._store.consumers(), await self._store.dispatchers()
        )

    async def is_pending(self, message_id: str) -> bool:
        return await self._store.is_pending(message_id)
