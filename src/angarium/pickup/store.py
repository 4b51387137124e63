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
from angarium.pickup import message_transitions as declared
from angarium.pickup.did_store import DidStore
from angarium.pickup.limits import PickupLimits
from angarium.pickup.move_store import MoveStore
from angarium.pickup.push_store import PushStore
from angarium.pickup.session_store import SessionStore
from angarium.pickup.settings import PickupSettings
from angarium.runtime.runtime import Runtime

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
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.gateway = runtime.actor
        self.partitions = range(runtime.settings.partitions)
        self.partition_of = runtime.keyspace.partition_of
        # The name of a gateway completes the name of its channel.
        self.hint_channel = runtime.keyspace.global_name(keys.PICKUP_HINTS, "")
        self.sessions = SessionStore(runtime, self.hint_channel)
        self.pushes = PushStore(runtime)
        self.moves = MoveStore(runtime)
        self.dids = DidStore(runtime)
        settings = runtime.settings.group(PickupSettings)
        limits: PickupLimits = runtime.settings.limits_of(PickupLimits)
        self._threshold_ms = settings.threshold_timestamp
        self._sending_ms = settings.sending_ms
        window = limits.pickup_sending_messages_max
        add_limits = declared.AddLimits(
            limits.pickup_queue_messages_max,
            limits.pickup_queue_bytes_max,
            window,
            self.hint_channel,
            settings.push_gather_ms,
            settings.push_uncollected_ms,
        )
        self._adds = runtime.batch(declared.ADD, add_limits)
        self._deduplicated_adds = runtime.batch(declared.ADD_DEDUPLICATED, add_limits)
        self._pulls = runtime.batch(
            declared.PULL,
            declared.PullLimits(PULL_MESSAGES_MAX, PULL_BYTES_MAX, window, CALL_BYTES_MAX),
        )
        self._takes = runtime.batch(
            declared.TAKE, declared.TakeArgs(self._sending_ms, CALL_BYTES_MAX)
        )
        self._removes = runtime.batch(declared.REMOVE, declared.RemoveArgs(self.hint_channel))
        self._counts = runtime.batch(declared.COUNT)
        self._finds = runtime.batch(declared.FIND)

    # Messages

    def add(
        self,
        queue: str,
        message_id: str,
        dids: str,
        payload: bytes,
        push: bytes = b"",
        *,
        at_once: bool = False,
    ) -> asyncio.Future[Any]:
        """'here', 'elsewhere', 'offline', 'queue_full', or SentAtOnce.

        `push` is a hashed token, a space and an encoded push; it is sent if the message is not
        collected in time. `at_once`: the message may go to a session of this gateway in the same
        call. The caller then has to see replies in the order of the calls.
        """
        item = declared.MessageToAdd(queue, message_id, dids, payload, push, at_once)
        return self._adds.submit(self.partition_of(queue), item, queue, len(payload))

    def add_deduplicated(self, message: declared.MessageToAddOnce) -> asyncio.Future[Any]:
        """'live', 'offline', 'queue_full', 'duplicate', 'removed' or 'not_in_redis'."""
        queue = message.queue
        return self._deduplicated_adds.submit(
            self.partition_of(queue), message, queue, len(message.payload)
        )

    async def exists(self, queue: str, message_id: str) -> bool:
        """Whether Redis holds the message."""
        item = declared.MessageToFind(queue, message_id)
        return bool(await self._finds.submit(self.partition_of(queue), item) == "found")

    def pull(self, queue: str, term: str, *, resend: bool, seen: str = "") -> asyncio.Future[Any]:
        """Messages for a live session; `resend`: also those that it was sent before."""
        item = declared.QueueToPull(queue, term, resend, seen)
        return self._pulls.submit(self.partition_of(queue), item, None, 0, REPLY_BYTES_ESTIMATE)

    def take(self, queue: str, did: str, limits: TakeLimits, seen: str = "") -> asyncio.Future[Any]:
        item = declared.QueueToTake(queue, did, *limits, seen)
        estimate = REPLY_BYTES_ESTIMATE * 8
        return self._takes.submit(self.partition_of(queue), item, queue, 0, estimate)

    async def claim_archived(
        self,
        queue: str,
        term: str,
        rows: Iterable[tuple[str, int, int]],
        limits: TakeLimits,
        cleared: str,
    ) -> Any:
        """Give archived messages (id, sequence, bytes) to a session, or to a taker if no term."""
        args = declared.QueueClaimArgs(queue, term, self._sending_ms, *limits, cleared)
        items = [declared.ArchivedRow(*each) for each in rows]
        return await self.runtime.call(declared.CLAIM, self.partition_of(queue), args, items)

    async def give_back(self, queue: str, due: Mapping[str, str]) -> int:
        """Make taken messages pending again; `due` is the time that the take named for each id."""
        args, items = (
            declared.QueueReturnArgs(queue, self.hint_channel),
            list(map(declared.TakenMessage._make, due.items())),
        )
        reply = await self.runtime.call(declared.RETURN, self.partition_of(queue), args, items)
        return int(reply.returned)

    def remove(self, queue: str, event: str, ids: Iterable[str]) -> asyncio.Future[Any]:
        """RemovedMessages, or 'not_counted'."""
        listed = " ".join(ids)
        item = declared.MessagesToRemove(queue, event, listed)
        return self._removes.submit(self.partition_of(queue), item, queue, len(listed))

    async def remove_archived(
        self, queue: str, event: str, cleared: str, rows: Iterable[tuple[str, int]]
    ) -> Any:
        """Remove archived messages (id, bytes); the persister deletes their rows later."""
        args = declared.RemoveArchivedArgs(queue, event, cleared, self.hint_channel)
        items = [declared.RowToRemove(*each) for each in rows]
        return await self.runtime.call(
            declared.REMOVE_ARCHIVED, self.partition_of(queue), args, items
        )

    def count(self, queue: str, did: str) -> asyncio.Future[Any]:
        return self._counts.submit(
            self.partition_of(queue), declared.QueueToCount(queue, did), queue
        )

    async def list_ids(self, queue: str, did: str, ids_max: int) -> Any:
        args = declared.QueueListArgs(queue, did, ids_max)
        return await self.runtime.call(declared.LIST, self.partition_of(queue), args)

    # Periodic work

    async def due_work(self, partition: int, names_max: int) -> declared.DueWork:
        args = declared.DueArgs(self._threshold_ms, names_max)
        found: declared.DueWork = await self.runtime.call(declared.LIST_DUE, partition, args)
        return found

    async def release(self, partition: int, queues: Sequence[str]) -> int:
        """Make sent messages pending again whose time is over; how many there were."""
        args = declared.ReleaseArgs(RELEASE_MESSAGES_MAX, self.hint_channel)
        items = [declared.OneQueue(each) for each in queues]
        replies = await self.runtime.call(declared.RELEASE, partition, args, items)
        return sum(each.released for each in replies)

    # Reports

    async def queue_status(self, queue: str) -> PickupQueueStatus | None:
        """None: the queue has no messages and no session."""
        found = await self.runtime.call(
            declared.SHOW, self.partition_of(queue), declared.OneQueue(queue)
        )
        fields = found.meta
        if not fields:
            return None
        meta = {name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
        archived, sent_archived = int(meta.get("archived", 0)), int(meta.get("held", 0))
        return PickupQueueStatus(
            pending=found.pending + archived - sent_archived,
            sending=found.sending,
            archived=archived,
            bytes=int(meta.get("bytes", 0)),
            live=found.live,
            session=_text(meta.get("session")),
            gateway=_text(meta.get("gateway")),
            oldest_ms=int(float(found.oldest)) // 1000 if found.oldest else None,
        )

    async def totals(self) -> PickupTotals:
        queues = moving = pushes = 0
        sessions: dict[str, int] = {}
        dead: set[str] = set()
        for partition in self.partitions:
            name = self.runtime.keyspace.name
            shared = (
                keys.PICKUP_GATEWAYS, keys.PICKUP_AGES, keys.PICKUP_MOVING, keys.PICKUP_PUSHES_DUE
            )  # fmt: skip
            names = [name(key, partition) for key in shared]
            commands = [("ZRANGE", names[0], 0, -1), ("ZCARD", names[1]), ("HLEN", names[2])]
            found = await self.runtime.redis.execute(
                [*commands, ("ZCARD", names[3])], key=names[0], repeatable=True
            )
            queues, moving, pushes = queues + found[1], moving + found[2], pushes + found[3]
            dead |= set((await self.due_work(partition, 1_000)).dead_gateways)
            for gateway in (each.decode() for each in found[0]):
                listed = name(keys.PICKUP_GATEWAY_SESSIONS, partition, gateway)
                count = await self.runtime.redis.call("SCARD", listed, key=listed)
                sessions[gateway] = sessions.get(gateway, 0) + int(count)
        gateways = [
            GatewayStatus(each, sessions[each], each not in dead) for each in sorted(sessions)
        ]
        return PickupTotals(gateways, queues, moving, pushes)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
