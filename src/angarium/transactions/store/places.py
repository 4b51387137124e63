"""Names of this module's keys and channels, by partition, each built once."""

from __future__ import annotations

from collections.abc import Sequence

from angarium.runtime import keyspace as keys
from angarium.runtime.runtime import Runtime
from angarium.transactions.model import route_of


class Places:
    """A stem is a key's name without its id: scripts append ids that only they know."""

    def __init__(self, runtime: Runtime) -> None:
        self._space = runtime.keyspace
        self.partitions = range(runtime.settings.partitions)
        self.channels = (
            self._space.global_name(keys.TRANSACTIONS_NOTIFY),
            self._space.global_name(keys.TRANSACTIONS_WORK),
        )
        # Scripts know it as the first of these with «:events» behind it.
        self.events_channel = self._space.global_name(keys.TRANSACTIONS_EVENTS)
        self._statistics = [
            tuple(
                self.stem(key, partition)
                for key in (keys.STATS_FINE, keys.STATS_MEDIUM, keys.STATS_COARSE)
            )
            for partition in self.partitions
        ]
        self._states = [self.stem(keys.STATE, partition) for partition in self.partitions]

    def partition_of(self, transaction_id: str) -> int:
        if len(self.partitions) == 1:
            return 0
        return self._space.partition_of(route_of(transaction_id))

    def route_partition(self, route: str) -> int:
        return self._space.partition_of(route)

    def name(self, key: keys.Key, partition: int, *parts: str) -> str:
        return self._space.name(key, partition, *parts)

    def stem(self, key: keys.Key, partition: int) -> str:
        return self._space.name(key, partition, "")

    def state(self, partition: int, transaction_id: str) -> str:
        return self._states[partition] + transaction_id

    def statistics(self, partition: int) -> Sequence[str]:
        return self._statistics[partition]

    def ending(self, partition: int) -> list[str]:
        """KEYS 3 to 11 of every script that can end a transaction."""
        return [
            *self.statistics(partition),
            self.name(keys.PROCESSING, partition),
            self.name(keys.SLEEPING, partition),
            self.name(keys.TO_ARCHIVE, partition),
            self.name(keys.WEBHOOKS, partition),
            self.stem(keys.QUEUE_OUT, partition),
            self.stem(keys.STATE, partition),
        ]

    def ending_queued(self, partition: int) -> list[str]:
        """The same with KEYS 12, for scripts that end what is queued: it may wait for a step."""
        return [*self.ending(partition), self.stem(keys.WAITING, partition)]

    def queue_stems(self, partition: int) -> list[str]:
        return [
            self.stem(key, partition) for key in (keys.QUEUE_IN, keys.QUEUE_OUT, keys.QUEUE_ADMIN)
        ]

    def queues(self, partition: int, groups: Sequence[str]) -> list[str]:
        """Admin, out and in of each group: the order in which they are served."""
        return [
            self.name(key, partition, group)
            for group in groups
            for key in (keys.QUEUE_ADMIN, keys.QUEUE_OUT, keys.QUEUE_IN)
        ]
