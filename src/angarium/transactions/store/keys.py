"""The key and channel names of this module, built once per partition."""

from __future__ import annotations

from collections.abc import Sequence

from angarium.runtime.key import Key
from angarium.runtime.runtime import Runtime
from angarium.transactions import keys as transactions_keys
from angarium.transactions.model import route_of


class TransactionKeys:
    """A stem is a key name without its id. Scripts append ids that only they know."""

    def __init__(self, runtime: Runtime) -> None:
        self._space = runtime.keyspace
        self.partitions = range(runtime.settings.partitions)
        self.notify_channel = self._space.global_name(transactions_keys.TRANSACTIONS_NOTIFY)
        self.work_channel = self._space.global_name(transactions_keys.TRANSACTIONS_WORK)
        # ARGV 4 and 5 of every script that changes a transaction.
        self.channels = (self.notify_channel, self.work_channel)
        # Scripts build this name themselves: the notify channel with «:events» appended.
        self.events_channel = self._space.global_name(transactions_keys.TRANSACTIONS_EVENTS)
        self._statistics = [
            tuple(
                self.stem(key, partition)
                for key in (
                    transactions_keys.STATS_FINE,
                    transactions_keys.STATS_MEDIUM,
                    transactions_keys.STATS_COARSE,
                )
            )
            for partition in self.partitions
        ]
        self._states = [
            self.stem(transactions_keys.STATE, partition) for partition in self.partitions
        ]

    def partition_of(self, transaction_id: str) -> int:
        if len(self.partitions) == 1:
            return 0
        return self._space.partition_of(route_of(transaction_id))

    def route_partition(self, route: str) -> int:
        return self._space.partition_of(route)

    def name(self, key: Key, partition: int, *parts: str) -> str:
        return self._space.name(key, partition, *parts)

    def stem(self, key: Key, partition: int) -> str:
        return self._space.name(key, partition, "")

    def state(self, partition: int, transaction_id: str) -> str:
        return self._states[partition] + transaction_id

    def statistics(self, partition: int) -> Sequence[str]:
        return self._statistics[partition]

    def ending(self, partition: int) -> list[str]:
        """KEYS 3 to 11 of every script that can end a transaction."""
        return [
            *self.statistics(partition),
            self.name(transactions_keys.PROCESSING, partition),
            self.name(transactions_keys.SLEEPING, partition),
            self.name(transactions_keys.TO_ARCHIVE, partition),
            self.name(transactions_keys.WEBHOOKS, partition),
            self.stem(transactions_keys.QUEUE_OUT, partition),
            self.stem(transactions_keys.STATE, partition),
        ]

    def ending_queued(self, partition: int) -> list[str]:
        """KEYS 3 to 12 of scripts that end queued transactions, which may wait for a step type."""
        return [*self.ending(partition), self.stem(transactions_keys.WAITING, partition)]

    def queue_stems(self, partition: int) -> list[str]:
        return [
            self.stem(key, partition)
            for key in (
                transactions_keys.QUEUE_IN,
                transactions_keys.QUEUE_OUT,
                transactions_keys.QUEUE_ADMIN,
            )
        ]

    def queues(self, partition: int, groups: Sequence[str]) -> list[str]:
        """The admin, out and in queue of each group, in the order in which nodes serve them."""
        return [
            self.name(key, partition, group)
            for group in groups
            for key in (
                transactions_keys.QUEUE_ADMIN,
                transactions_keys.QUEUE_OUT,
                transactions_keys.QUEUE_IN,
            )
        ]
