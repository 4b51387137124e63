"""Lists queues and live sessions for people, a page at a time. It only reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from angarium.pickup import keys
from angarium.runtime.runtime import Runtime


@dataclass(frozen=True)
class QueueAge:
    """The oldest message of the queue in Redis arrived at `since_ms` or later."""

    queue: str
    since_ms: int


class PickupListing:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._name = runtime.keyspace.name
        self.partitions = runtime.settings.partitions

    async def queues_by_age(self, partition: int, first: int, count: int) -> list[QueueAge]:
        """Queues that have messages in Redis; the longest wait first."""
        name = self._name(keys.PICKUP_AGES, partition)
        found = await self._runtime.redis.call(
            "ZRANGE", name, first, first + count - 1, "WITHSCORES", key=name
        )
        return [
            QueueAge(queue.decode(), int(float(score)))
            for queue, score in zip(found[::2], found[1::2], strict=True)
        ]

    async def without_age(self, partition: int, queues: Sequence[str]) -> list[str]:
        """Those of the partition's queues that `queues_by_age` does not list."""
        if not queues:
            return []
        name = self._name(keys.PICKUP_AGES, partition)
        scores = await self._runtime.redis.call("ZMSCORE", name, *queues, key=name)
        return [queue for queue, score in zip(queues, scores, strict=True) if score is None]

    async def gateways(self, partition: int) -> list[str]:
        name = self._name(keys.PICKUP_GATEWAYS, partition)
        return sorted(
            each.decode()
            for each in await self._runtime.redis.call("ZRANGE", name, 0, -1, key=name)
        )

    async def sessions(
        self, partition: int, gateway: str, cursor: int, count: int
    ) -> tuple[list[str], int]:
        """Queues whose live session is at a gateway, and the next cursor; 0 at the end.

        `count` is a hint to Redis; a small set is returned whole.
        """
        name = self._name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway)
        after, found = await self._runtime.redis.call(
            "SSCAN", name, cursor, "COUNT", count, key=name
        )
        return [each.decode() for each in found], int(after)
