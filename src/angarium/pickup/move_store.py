"""The move of messages from Redis to the database, on the side of Redis.

`PickupStore.moves` is the instance. Only the holder of a partition's persister lease calls these
transitions; `persister.py` has the order of the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from angarium.pickup import keys
from angarium.pickup.model import StoredMessage, messages_of
from angarium.pickup.queue_keys import QueueKeys
from angarium.pickup.settings import PickupSettings
from angarium.runtime.lease import LeaseKeys
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of

BEGIN, FINISH, CLEAR, WRITE_COUNTS, RAISE = (
    load_script("angarium.pickup", name)
    for name in (
        "begin_move", "finish_move", "clear_removed", "write_archive_counts", "raise_term",
    )
)  # fmt: skip
# One step of the move is one transaction of the database, and short enough in Redis that other
# messages do not wait for it.
MOVE_MESSAGES_MAX = 250
MOVE_BYTES_MAX = 1024 * 1024


class MoveStore:
    def __init__(self, runtime: Runtime, names: QueueKeys) -> None:
        self._runtime = runtime
        self._keys = names
        self._threshold_ms = runtime.settings.group(PickupSettings).threshold_timestamp

    async def begin(
        self, partition: int, queues: Sequence[str]
    ) -> Mapping[str, list[StoredMessage]]:
        """Messages to store in the database, by queue."""
        names = [self._keys.name(keys.PICKUP_MOVING, partition), *self._keys.of_all(queues)]
        limits = (self._threshold_ms, MOVE_MESSAGES_MAX, MOVE_BYTES_MAX)
        args: list[Any] = [*limits, len(queues), *queues]
        reply = await self._runtime.run(BEGIN, partition, names, args)
        return {
            queue: messages_of(found) for queue, found in zip(queues, reply, strict=True) if found
        }

    async def finish(self, partition: int, moved: Mapping[str, Sequence[str]]) -> int | None:
        """How many messages left Redis; None if the archived messages are not counted yet."""
        shared = self._keys.of_partition(keys.PICKUP_MOVING, keys.PICKUP_AGES, keys.PICKUP_CHARTED)(
            partition
        )
        names = [*shared, *self._keys.of_all(moved)]
        args: list[Any] = [self._threshold_ms, len(moved)]
        for queue, ids in moved.items():
            args += [queue, " ".join(ids)]
        reply = await self._runtime.run(FINISH, partition, names, args)
        if any(status_of(each) == "not_counted" for each in reply):
            return None
        return sum(int(each[1]) for each in reply)

    async def removed_rows(self, queue: str, count_max: int) -> list[str]:
        """Some ids of removed messages whose rows are still in the database."""
        name = self._keys.name(keys.PICKUP_BURIED, self._keys.partition_of(queue), queue)
        reply = await self._runtime.redis.call("SRANDMEMBER", name, count_max, key=name)
        return [each.decode() for each in reply]

    async def clear_removed(self, queue: str, ids: Sequence[str]) -> None:
        """Forget removed messages whose rows are deleted."""
        await self._keys.run(CLEAR, queue, (keys.PICKUP_BURIALS,), [queue, *ids])

    async def counts_written(self, partition: int) -> bool:
        name = self._keys.name(keys.PICKUP_CHARTED, partition)
        return bool(await self._runtime.redis.call("EXISTS", name, key=name))

    async def write_counts(
        self, partition: int, counts: Sequence[tuple[str, int, int]], *, last: bool
    ) -> None:
        """Write the number and bytes of each queue's archived messages; `last` completes it."""
        names = [
            self._keys.name(keys.PICKUP_CHARTED, partition),
            *self._keys.of_all(queue for queue, _, _ in counts),
        ]
        args: list[Any] = [1 if last else 0, len(counts)]
        for _, count, size in counts:
            args += [count, size]
        await self._runtime.run(WRITE_COUNTS, partition, names, args)

    def lease_keys(self, partition: int) -> LeaseKeys:
        return LeaseKeys(
            partition,
            self._keys.name(keys.PICKUP_PERSISTER_LOCK, partition),
            self._keys.name(keys.PICKUP_PERSISTER_TERM, partition),
        )

    async def raise_term(self, partition: int, term: int) -> None:
        names = [self._keys.name(keys.PICKUP_PERSISTER_TERM, partition)]
        await self._runtime.run(RAISE, partition, names, [term])
