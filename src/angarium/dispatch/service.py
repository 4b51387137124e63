"""What can be done with dispatch. HTTP, client, command line and dashboard call this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from angarium.dispatch.dead_letters import DispatchDeadLetters
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.message_state import MessageStates
from angarium.dispatch.queues import UNNAMED
from angarium.dispatch.store import DispatchStore, Enqueued, PartitionStatus
from angarium.runtime.errors import LimitExceeded
from angarium.runtime.runtime import Runtime


class QueueStatus(msgspec.Struct, frozen=True):
    """A named queue: messages that wait for one of its workers, and how long the first does."""

    queue: str
    waiting: int
    oldest_ms: int
    workers: int


class DispatchStatus(msgspec.Struct, frozen=True):
    """The state of each partition, the live workers and dispatchers, and the named queues that have
    a worker or a message."""

    partitions: list[PartitionStatus]
    consumers: list[str]
    dispatchers: list[str]
    queues: list[QueueStatus]


class DispatchService:
    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store(DispatchStore)
        self._limits = runtime.settings.limits_of(DispatchLimits)
        self.dead_letters = DispatchDeadLetters(self._store)
        self.messages = MessageStates(runtime)

    @property
    def messages_max(self) -> int:
        """How many messages one call of `enqueue` takes."""
        return self._limits.intake_messages_max

    def check_payload(self, payload: bytes) -> None:
        """Raise LimitExceeded for a payload that does not fit into a frame."""
        self._store.check_payload(payload)

    def channel_of(self, queue: str) -> str:
        return self._store.channel_of(queue)

    async def dispatchers(self) -> list[str]:
        return await self._store.dispatchers()

    async def publish(self, payloads: Sequence[bytes], queue: str = UNNAMED) -> list[int]:
        """Publish on the channel of a queue, in order; for each the number of listening
        dispatchers. With none, the message is lost."""
        for payload in payloads:
            self._store.check_payload(payload)
        return await self._store.publish_all(payloads, queue)

    async def enqueue(
        self, messages: Sequence[tuple[bytes, str | None]], queues: Sequence[str] = ()
    ) -> list[Enqueued]:
        """Put messages, each with its idempotency key, into the durable intake, where they wait for
        a dispatcher; `queues` has the queue of each. If one of them is invalid, none is added."""
        if len(messages) > self.messages_max:
            raise LimitExceeded("intake_messages_max", len(messages), self.messages_max)
        return await self._store.enqueue_all(messages, queues)

    async def partitions(self) -> list[PartitionStatus]:
        return [await self._store.status(number) for number in range(self._store.partitions)]

    async def status(self) -> DispatchStatus:
        return DispatchStatus(
            await self.partitions(),
            await self._store.consumers(),
            await self._store.dispatchers(),
            await self.queues(),
        )

    async def queues(self) -> list[QueueStatus]:
        """The named queues that have a worker or a message that waits for one, by name."""
        workers = Counter(queue for queue, _ in await self._store.named_consumers())
        waiting: Counter[str] = Counter()
        oldest: dict[str, int] = {}
        for partition in range(self._store.partitions):
            for row in await self._store.waiting_in_queues(partition):
                waiting[row.queue] += row.waiting
                oldest[row.queue] = max(oldest.get(row.queue, 0), row.oldest_ms)
        return [
            QueueStatus(name, waiting[name], oldest.get(name, 0), workers[name])
            for name in sorted({*workers, *waiting})
        ]
