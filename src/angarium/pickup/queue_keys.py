"""Names of the module's keys in Redis: of a queue, of a partition, and of the hint channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from angarium.pickup import keys
from angarium.runtime.key import Key
from angarium.runtime.runtime import Runtime

# The order is that of `queue_at` in lua/include/queue.lua.
QUEUE = (
    keys.PICKUP_QUEUE,
    keys.PICKUP_MESSAGES,
    keys.PICKUP_PENDING,
    keys.PICKUP_SENDING,
    keys.PICKUP_RECIPIENTS,
    keys.PICKUP_BURIED,
)
# About 1 KB each.
CACHED_QUEUES_MAX = 10_000


class QueueKeys:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.name = runtime.keyspace.name
        self.partition_of = runtime.keyspace.partition_of
        # The name of a gateway completes the name of its channel.
        self.hint_channel = runtime.keyspace.global_name(keys.PICKUP_HINTS, "")
        # Three calls for each message name the keys of its queue.
        self.of = lru_cache(CACHED_QUEUES_MAX)(self._name_queue)

    def of_all(self, queues: Iterable[str]) -> list[str]:
        return [name for queue in queues for name in self.of(queue)]

    def of_partition(self, *shared: Key) -> Callable[[int], list[str]]:
        return lambda partition: [self.name(key, partition) for key in shared]

    async def run(self, script: Any, queue: str, shared: Sequence[Key], args: Sequence[Any]) -> Any:
        """Run a script for one queue, outside any batch."""
        partition = self.partition_of(queue)
        names = [*self.of_partition(*shared)(partition), *self.of(queue)]
        return await self._runtime.run(script, partition, names, args)

    def _name_queue(self, queue: str) -> tuple[str, ...]:
        partition = self.partition_of(queue)
        return tuple([self.name(key, partition, queue) for key in QUEUE])
