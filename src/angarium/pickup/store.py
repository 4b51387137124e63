"""The messages of the module in Redis: calls its scripts, and decides nothing.

Frequent calls are gathered into batches and return futures, so a caller with thousands of calls
under way needs no task for each. The sessions, the pushes and the move to the database have their
own stores, which are attributes of `PickupStore`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from angarium.pickup import keys
from angarium.pickup.limits import PickupLimits
from angarium.pickup.move_store import MoveStore
from angarium.pickup.push_store import PushStore
from angarium.pickup.queue_keys import QueueKeys
from angarium.pickup.session_store import SessionStore
from angarium.pickup.settings import PickupSettings
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of

ADD, FIND, PULL, TAKE, CLAIM, REMOVE, REMOVE_ARCHIVED, COUNT, LIST, DUE, RELEASE, SHOW, RETURN = (
    load_script("angarium.pickup", name)
    for name in (
        "add_messages", "find_messages", "pull_messages", "take_messages", "claim_archived",
        "remove_messages", "remove_archived", "count_messages", "list_messages", "list_due",
        "release_messages", "show_queue", "return_messages",
    )
)  # fmt: skip

# One notification of a live session; the rest comes with the next notification.
PULL_MESSAGES_MAX = 100
PULL_BYTES_MAX = 256 * 1024
# Of one call for many sessions or takers: Redis copies this much, and this process holds it.
CALL_BYTES_MAX = 4 * 1024 * 1024
# The first message is given whatever its size. No queue has a message larger than this.
ANY_BYTES = 2**52
RELEASE_MESSAGES_MAX = 1_000
# An estimate for replies of unknown size; it limits the size of a batch.
REPLY_BYTES_ESTIMATE = 2_048


class TakeLimits(NamedTuple):
    """Of one take, or of one delivery. The first message may be as large as `first_bytes`."""

    messages: int
    bytes: int
    first_bytes: int = ANY_BYTES


@dataclass(frozen=True)
class DueWork:
    """What the periodic work of a partition has to do now."""

    dead_gateways: Sequence[str]
    to_release: Sequence[str]
    to_archive: Sequence[str]
    with_removed_rows: Sequence[str]


@dataclass(frozen=True)
class PickupQueueStatus:
    """`archived` counts the messages that are in the database and not in Redis."""

    pending: int
    sending: int
    archived: int
    bytes: int
    live: bool
    session: str | None
    gateway: str | None
    oldest_ms: int | None


@dataclass(frozen=True)
class GatewayStatus:
    gateway: str
    sessions: int
    live: bool


@dataclass(frozen=True)
class PickupTotals:
    """All partitions together."""

    gateways: list[GatewayStatus]
    queues: int
    moving: int
    pushes: int


class PickupStore:
    def __init__(self, runtime: Runtime, *, send_at_once: bool = False) -> None:
        """`send_at_once`: an added message may go to a session of this gateway in the same call
        (add_messages.lua). The caller has to see replies in the order of the calls."""
        self.runtime = runtime
        self.gateway = runtime.actor
        self.partitions = range(runtime.settings.partitions)
        self._keys = names = QueueKeys(runtime)
        self.partition_of = names.partition_of
        self.hint_channel = names.hint_channel
        self.sessions = SessionStore(runtime, names)
        self.pushes = PushStore(runtime, names)
        self.moves = MoveStore(runtime, names)
        settings, limits = (
            runtime.settings.group(PickupSettings),
            runtime.settings.limits_of(PickupLimits),
        )
        self._threshold_ms = settings.threshold_timestamp
        self._sending_ms = settings.sending_ms
        window = limits.pickup_sending_messages_max
        shared = names.of_partition
        self._adds = runtime.batched(
            ADD,
            shared(
                keys.PICKUP_GATEWAYS,
                keys.PICKUP_AGES,
                keys.PICKUP_CHARTED,
                keys.PICKUP_PUSHES_DUE,
                keys.PICKUP_PUSHES,
            ),
            (
                limits.pickup_queue_messages_max,
                limits.pickup_queue_bytes_max,
                self.hint_channel,
                window if send_at_once else 0,
            ),
        )
        self._pulls = runtime.batched(
            PULL,
            shared(keys.PICKUP_CHARTED),
            (PULL_MESSAGES_MAX, PULL_BYTES_MAX, window, CALL_BYTES_MAX),
        )
        self._takes = runtime.batched(
            TAKE, shared(keys.PICKUP_CHARTED, keys.PICKUP_DUE), (self._sending_ms, CALL_BYTES_MAX)
        )
        self._removes = runtime.batched(
            REMOVE,
            shared(keys.PICKUP_MOVING, keys.PICKUP_BURIALS, keys.PICKUP_CHARTED),
            (self.hint_channel,),
        )
        self._counts = runtime.batched(COUNT, shared(keys.PICKUP_CHARTED, keys.PICKUP_MOVING))
        self._finds = runtime.batched(FIND, lambda _: ())

    # Messages

    def add(
        self,
        queue: str,
        message_id: str,
        dids: str,
        payload: bytes,
        push: bytes = b"",
        *,
        at_once: bool = True,
    ) -> asyncio.Future[Any]:
        """b"here", b"elsewhere", b"offline", b"queue_full", or [b"sent", term, sequence, ms].

        `push` is a hashed token, a space and an encoded push; it is scheduled if the recipient is
        offline. Without `at_once` the message stays pending, because its session's client is slow.
        """
        args = (queue, message_id, dids, payload, push, 1 if at_once else 0)
        item = (self._keys.of(queue), args)
        return self._adds.submit(self.partition_of(queue), item, queue, len(payload))

    async def exists(self, queue: str, message_id: str) -> bool:
        """Whether Redis holds the message."""
        item = (self._keys.of(queue), (message_id,))
        reply = await self._finds.submit(self.partition_of(queue), item)
        return status_of(reply) == "found"

    def pull(self, queue: str, term: str, *, resend: bool, seen: str = "") -> asyncio.Future[Any]:
        """Messages for a live session; `resend`: also those that it was sent before."""
        item = (self._keys.of(queue), (queue, term, 1 if resend else 0, seen))
        return self._pulls.submit(self.partition_of(queue), item, None, 0, REPLY_BYTES_ESTIMATE)

    def take(self, queue: str, did: str, limits: TakeLimits, seen: str = "") -> asyncio.Future[Any]:
        item = (self._keys.of(queue), (queue, did, *limits, seen))
        estimate = REPLY_BYTES_ESTIMATE * 8
        return self._takes.submit(self.partition_of(queue), item, queue, 0, estimate)

    async def claim_archived(
        self,
        queue: str,
        term: str,
        rows: Iterable[tuple[str, int, int]],
        limits: TakeLimits,
        cleared: bytes,
    ) -> Any:
        """Give archived messages (id, sequence, bytes) to a session, or to a taker if no term."""
        fields = [field for row in rows for field in row]
        args = [queue, term, self._sending_ms, *limits, cleared, *fields]
        return await self._keys.run(CLAIM, queue, (keys.PICKUP_DUE,), args)

    async def give_back(self, queue: str, due: Mapping[str, bytes]) -> int:
        """Make taken messages pending again; `due` is the time that the take named for each id."""
        fields = [field for pair in due.items() for field in pair]
        args = [queue, self.hint_channel, *fields]
        return int((await self._keys.run(RETURN, queue, (keys.PICKUP_GATEWAYS,), args))[1])

    def remove(self, queue: str, event: str, ids: Iterable[str]) -> asyncio.Future[Any]:
        listed = " ".join(ids)
        item = (self._keys.of(queue), (queue, event, listed))
        return self._removes.submit(self.partition_of(queue), item, queue, len(listed))

    async def remove_archived(
        self, queue: str, event: str, cleared: bytes, rows: Iterable[tuple[str, int]]
    ) -> Any:
        """Remove archived messages (id, bytes); the persister deletes their rows later."""
        fields = [field for row in rows for field in row]
        args = [queue, event, cleared, self.hint_channel, *fields]
        return await self._keys.run(REMOVE_ARCHIVED, queue, (keys.PICKUP_BURIALS,), args)

    def count(self, queue: str, did: str) -> asyncio.Future[Any]:
        item = (self._keys.of(queue), (queue, did))
        return self._counts.submit(self.partition_of(queue), item, queue)

    async def list_ids(self, queue: str, did: str, ids_max: int) -> Any:
        return await self._keys.run(LIST, queue, (keys.PICKUP_CHARTED,), [did, ids_max])

    # Periodic work

    async def due_work(self, partition: int, count_max: int) -> DueWork:
        names = self._keys.of_partition(
            keys.PICKUP_GATEWAYS, keys.PICKUP_DUE, keys.PICKUP_AGES, keys.PICKUP_BURIALS
        )(partition)
        reply = await self.runtime.run(DUE, partition, names, [self._threshold_ms, count_max])
        return DueWork(*([each.decode() for each in part] for part in reply))

    async def release(self, partition: int, queues: Sequence[str]) -> int:
        """Make sent messages pending again whose time is over; how many there were."""
        shared = self._keys.of_partition(keys.PICKUP_GATEWAYS, keys.PICKUP_DUE)(partition)
        names = [*shared, *self._keys.of_all(queues)]
        args: list[Any] = [RELEASE_MESSAGES_MAX, self.hint_channel, len(queues), *queues]
        reply = await self.runtime.run(RELEASE, partition, names, args)
        return sum(int(each[1]) for each in reply)

    # Reports

    async def queue_status(self, queue: str) -> PickupQueueStatus | None:
        """None: the queue has no messages and no session."""
        reply = await self._keys.run(SHOW, queue, (keys.PICKUP_GATEWAYS,), [])
        pending, sending, _, oldest, live, *fields = reply
        if not fields:
            return None
        meta = {name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
        archived, sent_archived = int(meta.get("archived", 0)), int(meta.get("held", 0))
        return PickupQueueStatus(
            pending=int(pending) + archived - sent_archived,
            sending=int(sending),
            archived=archived,
            bytes=int(meta.get("bytes", 0)),
            live=bool(live),
            session=_text(meta.get("session")),
            gateway=_text(meta.get("gateway")),
            oldest_ms=int(float(oldest)) // 1000 if oldest else None,
        )

    async def totals(self) -> PickupTotals:
        queues = moving = pushes = 0
        sessions: dict[str, int] = {}
        dead: set[str] = set()
        for partition in self.partitions:
            names = self._keys.of_partition(
                keys.PICKUP_GATEWAYS, keys.PICKUP_AGES, keys.PICKUP_MOVING, keys.PICKUP_PUSHES_DUE
            )(partition)
            commands = [("ZRANGE", names[0], 0, -1), ("ZCARD", names[1]), ("HLEN", names[2])]
            found = await self.runtime.redis.execute(
                [*commands, ("ZCARD", names[3])], key=names[0], repeatable=True
            )
            queues, moving, pushes = queues + found[1], moving + found[2], pushes + found[3]
            dead |= set((await self.due_work(partition, 1_000)).dead_gateways)
            for gateway in (each.decode() for each in found[0]):
                name = self._keys.name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway)
                count = await self.runtime.redis.call("SCARD", name, key=name)
                sessions[gateway] = sessions.get(gateway, 0) + int(count)
        gateways = [
            GatewayStatus(each, sessions[each], each not in dead) for each in sorted(sessions)
        ]
        return PickupTotals(gateways, queues, moving, pushes)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
