"""The move of messages from Redis to the database, on the side of Redis.

`PickupStore.moves` is the instance. Only the holder of a partition's persister lease calls these
transitions; `persister.py` has the order of the steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from angarium.pickup import keys
from angarium.pickup.message_transitions import OneQueue
from angarium.pickup.model import StoredMessage, messages_of
from angarium.pickup.settings import PickupSettings
from angarium.runtime.lease import LeaseKeys
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition

# One step of the move is one transaction of the database, and short enough in Redis that other
# messages do not wait for it.
MOVE_MESSAGES_MAX = 250
MOVE_BYTES_MAX = 1024 * 1024
SCANNED_KEYS = 500


class MoveLimits(NamedTuple):
    threshold_ms: int
    messages_max: int
    bytes_max: int


class MovedRows(NamedTuple):
    """`ids` are divided by spaces."""

    queue: str
    ids: str


class DeletedRow(NamedTuple):
    id: str


class WriteCountsArgs(NamedTuple):
    last: bool


class ArchiveCount(NamedTuple):
    queue: str
    archived: int
    archived_bytes: int


class RaiseArgs(NamedTuple):
    term: int


class MarkedMessages(NamedTuple):
    messages: list[bytes]


class MovedMessages(NamedTuple):
    moved: int


BEGIN = Transition(
    "angarium.pickup",
    "begin_move",
    keys={"moving": keys.PICKUP_MOVING},
    args=MoveLimits,
    item=OneQueue,
    item_keys=keys.QUEUE,
    replies={"marked": MarkedMessages},
)
FINISH = Transition(
    "angarium.pickup",
    "finish_move",
    keys={
        "moving": keys.PICKUP_MOVING, "ages": keys.PICKUP_AGES, "charted": keys.PICKUP_CHARTED
    },
    item=MovedRows,
    item_keys=keys.QUEUE,
    replies={"moved": MovedMessages, "not_counted": None},
)  # fmt: skip
CLEAR = Transition(
    "angarium.pickup",
    "clear_removed",
    keys={"removed_queues": keys.PICKUP_REMOVED_QUEUES, **keys.QUEUE},
    args=OneQueue,
    item=DeletedRow,
    replies={"cleared": None},
    one_reply=True,
)
WRITE_COUNTS = Transition(
    "angarium.pickup",
    "write_archive_counts",
    keys={"charted": keys.PICKUP_CHARTED},
    args=WriteCountsArgs,
    item=ArchiveCount,
    item_keys={"meta": keys.PICKUP_QUEUE},
    replies={"written": None, "complete": None},
    one_reply=True,
)
RESET = Transition(
    "angarium.pickup",
    "reset_archive",
    keys={"charted": keys.PICKUP_CHARTED},
    item=OneQueue,
    item_keys=keys.QUEUE,
    replies={"reset": None},
    one_reply=True,
)
RAISE: Transition[Any] = Transition(
    "angarium.pickup",
    "raise_term",
    keys={"term": keys.PICKUP_PERSISTER_TERM},
    args=RaiseArgs,
    replies={"raised": None, "greater": None},
)


class MoveStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._name = runtime.keyspace.name
        self._partition_of = runtime.keyspace.partition_of
        threshold_ms = runtime.settings.group(PickupSettings).threshold_timestamp
        self._limits = MoveLimits(threshold_ms, MOVE_MESSAGES_MAX, MOVE_BYTES_MAX)

    async def begin(
        self, partition: int, queues: Sequence[str]
    ) -> Mapping[str, list[StoredMessage]]:
        """Messages to store in the database, by queue."""
        items = [OneQueue(each) for each in queues]
        marked = await self._runtime.call(BEGIN, partition, self._limits, items)
        found = zip(queues, marked, strict=True)
        return {queue: messages_of(each.messages) for queue, each in found if each.messages}

    async def finish(self, partition: int, moved: Mapping[str, Sequence[str]]) -> int | None:
        """How many messages left Redis; None if the archived messages are not counted yet."""
        items = [MovedRows(queue, " ".join(ids)) for queue, ids in moved.items()]
        replies = await self._runtime.call(FINISH, partition, None, items)
        return None if "not_counted" in replies else sum(each.moved for each in replies)

    async def removed_rows(self, queue: str, count_max: int) -> list[str]:
        """Some ids of removed messages whose rows are still in the database."""
        name = self._name(keys.PICKUP_REMOVED_IDS, self._partition_of(queue), queue)
        reply = await self._runtime.redis.call("SRANDMEMBER", name, count_max, key=name)
        return [each.decode() for each in reply]

    async def clear_removed(self, queue: str, ids: Sequence[str]) -> None:
        """Forget removed messages whose rows are deleted."""
        items = [DeletedRow(each) for each in ids]
        await self._runtime.call(CLEAR, self._partition_of(queue), OneQueue(queue), items)

    async def counts_written(self, partition: int) -> bool:
        name = self._name(keys.PICKUP_CHARTED, partition)
        return bool(await self._runtime.redis.call("EXISTS", name, key=name))

    async def write_counts(
        self, partition: int, counts: Sequence[tuple[str, int, int]], *, last: bool
    ) -> None:
        """Write the number and bytes of each queue's archived messages; `last` completes it."""
        items = [ArchiveCount(*each) for each in counts]
        await self._runtime.call(WRITE_COUNTS, partition, WriteCountsArgs(last), items)

    async def reset_archive(self, partition: int) -> None:
        """Forget all archived messages of the partition, because their database is lost."""
        redis, start = self._runtime.redis, self._name(keys.PICKUP_QUEUE, partition, "")
        pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", start) + "*"
        cursor = b"0"
        while True:
            command = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED_KEYS)
            cursor, found = await redis.call(*command, key=start)
            items = [OneQueue(each.decode().removeprefix(start)) for each in found]
            await self._runtime.call(RESET, partition, None, items)
            if int(cursor) == 0:
                return

    def lease_keys(self, partition: int) -> LeaseKeys:
        return LeaseKeys(
            partition,
            self._name(keys.PICKUP_PERSISTER_LOCK, partition),
            self._name(keys.PICKUP_PERSISTER_TERM, partition),
        )

    async def raise_term(self, partition: int, term: int) -> None:
        await self._runtime.call(RAISE, partition, RaiseArgs(term))
