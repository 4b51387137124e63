"""The state of dispatch in Redis: all transitions, and the only place that uses its keys.

Calls take batches and return statuses; the store makes no decisions. Calls of the leader carry its
term and return None if a newer term exists: nothing was written, and the caller must stop leading.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from angarium.dispatch import keys
from angarium.dispatch.epochs import split_digests
from angarium.dispatch.frames import DispatchedMessage, message_bytes
from angarium.dispatch.message_ids import new_ids, partition_of_id
from angarium.dispatch.settings import DispatchSettings
from angarium.redis.connection import Argument, ReplyError
from angarium.runtime.batching import BatchItem
from angarium.runtime.errors import AngariumError, LimitExceeded
from angarium.runtime.lease import LeaseKeys
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of

ACCEPT = load_script("angarium.dispatch", "accept_messages")
COMPLETE = load_script("angarium.dispatch", "complete_messages")
ACKNOWLEDGE = load_script("angarium.dispatch", "acknowledge_messages")
REJECT = load_script("angarium.dispatch", "reject_messages")
CLAIM = load_script("angarium.dispatch", "claim_messages")
ACCEPT_INBOX = load_script("angarium.dispatch", "accept_inbox")
ENQUEUE = load_script("angarium.dispatch", "enqueue_messages")
RETRY_DEAD_LETTERS = load_script("angarium.dispatch", "retry_dead_letters")
DROP_DEAD_LETTERS = load_script("angarium.dispatch", "drop_dead_letters")
PUBLISH_EPOCH_MARKER = load_script("angarium.dispatch", "publish_epoch_marker")
COVER_EPOCHS = load_script("angarium.dispatch", "cover_epochs")
JOIN_MEMBERS = load_script("angarium.dispatch", "join_members")
LEAVE_MEMBERS = load_script("angarium.dispatch", "leave_members")
LIST_MEMBERS = load_script("angarium.dispatch", "list_members")

# How long an idempotency key is remembered: senders repeat within hours.
ONCE_MS = 24 * 3600 * 1000
# How long the id of a message without a key is remembered: we may repeat a call whose reply was
# lost for this long.
REPEAT_MS = 10 * 60 * 1000
# Lua passes a few thousand values to one command; with more a script would fail half-way.
SCRIPT_ITEMS_MAX = 1_000
# A member renews its entry every second; an entry that is older than this is removed.
MEMBER_TTL_MS = 5_000


class ClaimedMessage(NamedTuple):
    message_id: bytes
    payload: bytes
    delivery: int


@dataclass(frozen=True)
class ClaimedBatch:
    """Messages that were due. `full`: more may be due."""

    messages: list[ClaimedMessage]
    dead: int
    full: bool


class Enqueued(NamedTuple):
    """`duplicate`: the key was used before; `message_id` is the message of the first use."""

    message_id: str
    duplicate: bool


@dataclass(frozen=True)
class PartitionStatus:
    partition: int
    leader: str | None
    term: int
    pending: int
    oldest_ms: int
    inbox: int
    processed: int
    dead: int
    covered: int


@dataclass(frozen=True)
class DispatchDeadLetter:
    entry_id: str
    partition: int
    message_id: str
    deliveries: int
    reasons: Sequence[str]
    payload: bytes | None
    at_ms: int


class DispatchStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = runtime.settings.group(DispatchSettings)
        self._limits = runtime.settings.limits
        self._payload_bytes_max = self._limits.frame_bytes_max - message_bytes(b"")
        self.partitions = runtime.settings.partitions
        self.items_max = min(self._limits.batch_items_max, SCRIPT_ITEMS_MAX)
        name = runtime.keyspace.name
        parts = range(self.partitions)
        self._term = [name(keys.LEADER_LOCK_TERM, p) for p in parts]
        self._pending = [name(keys.MESSAGES_PENDING, p) for p in parts]
        self._payloads = [name(keys.MESSAGES_PAYLOADS, p) for p in parts]
        self._attempts = [name(keys.MESSAGES_ATTEMPTS, p) for p in parts]
        self._dead = [name(keys.MESSAGES_DEAD, p) for p in parts]
        self._inbox = [name(keys.MESSAGES_INBOX, p) for p in parts]
        self._stream = [name(keys.MESSAGES_PROCESSED, p) for p in parts]
        self._covered = [name(keys.MESSAGES_COVERED, p) for p in parts]
        self._epoch = name(keys.MESSAGES_EPOCH, 0)
        self.channel = runtime.keyspace.global_name(keys.MESSAGES_PUBLISHED)
        self.marker_channel = runtime.keyspace.global_name(keys.MESSAGES_EPOCHS)
        # Only on one node do all subscribers receive messages and markers in the same order.
        self.subscription_key = self._epoch
        self._consumers = [name(keys.CONSUMER_IDS, 0), name(keys.CONSUMERS_SEEN, 0)]
        self._dispatchers = [name(keys.DISPATCHER_IDS, 0), name(keys.DISPATCHERS_SEEN, 0)]
        self._enqueue = runtime.batched(ENQUEUE, lambda p: [self._inbox[p]])

    def lease_keys(self, partition: int) -> LeaseKeys:
        lock = self._runtime.keyspace.name(keys.LEADER_LOCK, partition)
        return LeaseKeys(partition, lock, self._term[partition])

    # The leader's transitions -----------------------------------------------------------------

    async def accept(
        self,
        partition: int,
        term: int,
        epoch: int,
        messages: Sequence[DispatchedMessage],
        digests: bytes,
        sent: int,
    ) -> int | None:
        """The number of messages that are pending now, from the first; the others were refused.

        The caller sends the first `sent` messages; the others are due in Redis.
        """
        names = self._names(partition, self._term, self._pending, self._payloads, self._attempts)
        names += [self._digests(partition, epoch), self._dead[partition]]
        settings = self._settings
        args: list[Argument] = [
            term,
            settings.ack_timeout_ms,
            settings.pending_messages_max,
            settings.pending_full,
            self.channel,
            sent,
            digests,
            self._payload_bytes_max,
            len(messages),
        ]
        for message in messages:
            args += message
        reply = await self._runtime.run(ACCEPT, partition, names, args)
        status = status_of(reply)
        if status == "stale":
            return None
        # A repeated call does not return the number. Refused messages are not pending, so sending
        # them does no harm: their results are not stored.
        return len(messages) if status == "repeated" else int(reply[1])

    async def claim(self, partition: int, term: int, count: int) -> ClaimedBatch | None:
        names = self._names(
            partition, self._term, self._pending, self._payloads, self._attempts, self._dead
        )
        settings = self._settings
        args = [term, settings.ack_timeout_ms, settings.deliveries_max, count]
        args += [self._payload_bytes_max, self._limits.batch_bytes_max]
        reply = await self._runtime.run(CLAIM, partition, names, args)
        if status_of(reply) == "stale":
            return None
        found = reply[3:]
        messages = [
            ClaimedMessage(found[i], found[i + 1], int(found[i + 2]))
            for i in range(0, len(found), 3)
        ]
        return ClaimedBatch(messages, int(reply[2]), int(reply[1]) >= count)

    async def accept_inbox(
        self, partition: int, term: int, count: int, sent: int
    ) -> list[DispatchedMessage] | None:
        """Messages of the durable intake that are pending now; [] if it is empty or the partition
        is full."""
        names = self._names(
            partition,
            self._term,
            self._pending,
            self._payloads,
            self._attempts,
            self._inbox,
            self._dead,
        )
        ids = new_ids(count, partition, self.partitions)
        settings = self._settings
        args: list[Argument] = [term, settings.ack_timeout_ms, settings.pending_messages_max]
        args += [sent, self._payload_bytes_max, partition, self.partitions, count, *ids]
        reply = await self._runtime.run(ACCEPT_INBOX, partition, names, args)
        status = status_of(reply)
        if status == "stale":
            return None
        return list(zip(reply[1::2], reply[2::2], strict=True))

    async def wait_for_inbox(self, partition: int, block_ms: int) -> bool:
        """Wait up to `block_ms`; whether the durable intake has an entry."""
        name = self._inbox[partition]
        reply = await self._runtime.redis.blocking(
            "XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", name, "0-0",
            key=name, block_ms=block_ms,
        )  # fmt: skip
        return bool(reply)

    async def publish_epoch_marker(self) -> int:
        reply = await self._runtime.run(
            PUBLISH_EPOCH_MARKER, 0, [self._epoch], [self.marker_channel], durable=False
        )
        return int(reply)

    async def cover_epochs(
        self, partition: int, term: int, epoch: int, finished: Sequence[int]
    ) -> bool:
        """Record that all messages before `epoch` are accepted, and delete the digests of the
        `finished` epochs. False if a newer term exists."""
        names = [self._term[partition], self._covered[partition]]
        names += [self._digests(partition, each) for each in finished]
        reply = await self._runtime.run(
            COVER_EPOCHS,
            partition,
            names,
            [term, epoch, self.marker_channel, partition],
            durable=False,
        )
        return status_of(reply) != "stale"

    async def covered(self, partition: int) -> int:
        name = self._covered[partition]
        return int(await self._runtime.redis.call("GET", name, key=name) or 0)

    async def accepted_digests(
        self, partition: int, epochs: Sequence[int]
    ) -> Mapping[int, Counter[bytes]]:
        """What earlier leaders accepted, by epoch. Final as soon as our own term exists."""
        if not epochs:
            return {}
        names = [self._digests(partition, epoch) for epoch in epochs]
        replies = await self._runtime.redis.execute(
            [("HVALS", name) for name in names], key=names[0], repeatable=True
        )
        return {epoch: split_digests(reply) for epoch, reply in zip(epochs, replies, strict=True)}

    # Transitions by workers and acknowledgements ----------------------------------------------

    async def complete(
        self, partition: int, consumer: str, results: Sequence[tuple[bytes, Sequence[Argument]]]
    ) -> list[bool]:
        """Store results and finish their messages; False for a message that was finished before."""
        names = self._names(partition, self._pending, self._payloads, self._attempts, self._stream)
        args: list[Argument] = [consumer, self._settings.stream_entries_max or 0, len(results)]
        for message_id, fields in results:
            args.append(message_id)
            args.append(len(fields))
            args += fields
        reply = await self._runtime.run(COMPLETE, partition, names, args)
        return [status == b"completed" for status in reply]

    async def acknowledge(
        self, partition: int, acknowledged: Sequence[tuple[bytes, str]]
    ) -> list[bool]:
        """Finish messages whose worker stored the result itself; False if it was not pending."""
        names = self._names(partition, self._pending, self._payloads, self._attempts)
        args: list[Argument] = [len(acknowledged)]
        for message_id, consumer in acknowledged:
            args += (message_id, consumer)
        reply = await self._runtime.run(ACKNOWLEDGE, partition, names, args)
        return [status == b"acknowledged" for status in reply]

    async def reject(
        self, partition: int, rejections: Sequence[tuple[bytes, str, int]]
    ) -> list[str]:
        """Id, reason ('' when given back) and first delay in ms → status."""
        names = self._names(partition, self._pending, self._payloads, self._attempts, self._dead)
        settings = self._settings
        args: list[Argument] = [
            settings.ack_timeout_ms, settings.deliveries_max, len(rejections)
        ]  # fmt: skip
        for rejection in rejections:
            args += rejection
        reply = await self._runtime.run(REJECT, partition, names, args)
        return [status_of(status) for status in reply]

    async def enqueue(self, payload: bytes, idempotency_key: str | None = None) -> Enqueued:
        """Put one message into the durable intake. Concurrent calls share a batch."""
        (enqueued,) = await self.enqueue_all([(payload, idempotency_key)])
        return enqueued

    async def enqueue_all(self, messages: Sequence[tuple[bytes, str | None]]) -> list[Enqueued]:
        """Payload and idempotency key of each. All are checked first: if one is invalid, none is
        added."""
        prepared = [self._intake(payload, key) for payload, key in messages]
        waiting: list[asyncio.Future[Any]] = []
        try:
            for partition, item, size in prepared:
                waiting.append(self._enqueue.submit(partition, item, None, size))
        except AngariumError:
            # No batch was sent yet, so cancelling is enough.
            for each in waiting:
                each.cancel()
            raise
        replies = await asyncio.gather(*waiting)
        return [Enqueued(reply[1].decode(), status_of(reply) == "duplicate") for reply in replies]

    def check_payload(self, payload: bytes) -> None:
        """Raise LimitExceeded for a payload that does not fit into a frame."""
        size, size_max = message_bytes(payload), self._limits.frame_bytes_max
        if size > size_max:
            raise LimitExceeded("frame_bytes_max", size, size_max)

    def _intake(self, payload: bytes, idempotency_key: str | None) -> tuple[int, BatchItem, int]:
        """PartitionLeader, the script's item and its size."""
        self.check_payload(payload)
        if idempotency_key is None:
            (message_id,) = new_ids(1)
            partition = partition_of_id(message_id, self.partitions)
            record_id, period_ms = message_id.decode(), REPEAT_MS
        else:
            key_bytes, key_max = len(idempotency_key.encode()), self._limits.id_bytes_max
            if key_bytes > key_max:
                raise LimitExceeded("id_bytes_max", key_bytes, key_max)
            partition = self._runtime.keyspace.partition_of(idempotency_key)
            (message_id,) = new_ids(1, partition, self.partitions)
            record_id, period_ms = idempotency_key, ONCE_MS
        record = self._runtime.keyspace.name(keys.MESSAGES_ONCE, partition, record_id)
        return partition, ((record,), (message_id, payload, period_ms)), len(payload)

    async def publish(self, payload: bytes) -> int:
        """Publish on the channel; the number of subscribers that received the message."""
        (listeners,) = await self.publish_all([payload])
        return listeners

    async def publish_all(self, payloads: Sequence[bytes]) -> list[int]:
        """Publish in order; for each the number of subscribers. Not repeated if the reply is lost:
        subscribers may have received the messages."""
        commands = [("PUBLISH", self.channel, payload) for payload in payloads]
        # A cluster node counts only its own subscribers; all dispatchers subscribe at this one.
        replies = await self._runtime.redis.execute(
            commands, key=self.subscription_key, repeatable=False
        )
        for reply in replies:
            if isinstance(reply, ReplyError):
                self._runtime.redis.raise_refusal(reply)
        return [int(reply) for reply in replies]

    # Members ----------------------------------------------------------------------------------

    async def join_consumers(self, consumer: str) -> list[str]:
        return await self._join(self._consumers, consumer)

    async def leave_consumers(self, consumer: str) -> None:
        await self._runtime.run(LEAVE_MEMBERS, 0, self._consumers, [consumer], durable=False)

    async def consumers(self) -> list[str]:
        return await self._members(self._consumers)

    async def join_dispatchers(self, dispatcher: str) -> list[str]:
        return await self._join(self._dispatchers, dispatcher)

    async def leave_dispatchers(self, dispatcher: str) -> None:
        await self._runtime.run(LEAVE_MEMBERS, 0, self._dispatchers, [dispatcher], durable=False)

    async def dispatchers(self) -> list[str]:
        return await self._members(self._dispatchers)

    async def announce_free_partition(self, partition: int) -> None:
        """Tell the other dispatchers that a partition has no leader. A hint: they also poll."""
        await self._runtime.redis.call("PUBLISH", self.marker_channel, f"free {partition}")

    async def announce_finished(self, ids: Sequence[bytes]) -> None:
        """Tell the dispatchers that sent these messages that they are acknowledged. A hint: the
        slots become free after some time-outs too."""
        await self._runtime.redis.call("PUBLISH", self.marker_channel, b"done " + b" ".join(ids))

    async def has_leader(self, partition: int) -> bool:
        lock = self.lease_keys(partition).lock
        return bool(await self._runtime.redis.call("EXISTS", lock, key=lock))

    # Status and dead letters ------------------------------------------------------------------

    async def pending_count(self, partition: int) -> int:
        name = self._pending[partition]
        return int(await self._runtime.redis.call("ZCARD", name, key=name))

    async def is_pending(self, message_id: str) -> bool:
        partition = partition_of_id(message_id.encode(), self.partitions)
        name = self._pending[partition]
        return await self._runtime.redis.call("ZSCORE", name, message_id, key=name) is not None

    async def status(self, partition: int) -> PartitionStatus:
        lease = self.lease_keys(partition)
        replies: list[Any] = await self._runtime.redis.execute(
            [
                ("GET", lease.lock),
                ("GET", lease.term),
                ("ZCARD", self._pending[partition]),
                ("ZRANGE", self._pending[partition], 0, 0, "WITHSCORES"),
                ("XLEN", self._inbox[partition]),
                ("XLEN", self._stream[partition]),
                ("XLEN", self._dead[partition]),
                ("GET", self._covered[partition]),
                ("TIME",),
            ],
            key=lease.lock,
            repeatable=True,
        )
        lock, term, pending, oldest, inbox, processed, dead, covered, time = replies
        now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
        oldest_ms = max(0, now_ms - int(float(oldest[1]))) if oldest else 0
        leader = lock.decode().partition(":")[2].partition("/")[0] if lock else None
        return PartitionStatus(
            partition, leader, int(term or 0), pending, oldest_ms, inbox, processed, dead,
            int(covered or 0),
        )  # fmt: skip

    async def dead_letters(
        self, partition: int, count: int, after: str = "-", until: str = "+"
    ) -> list[DispatchDeadLetter]:
        """Dead letters after the entry `after`, oldest first, up to the entry `until`."""
        name = self._dead[partition]
        start = after if after == "-" else f"({after}"
        entries = await self._runtime.redis.call(
            "XRANGE", name, start, until, "COUNT", count, key=name
        )
        return [_dead_letter(partition, entry) for entry in entries]

    async def newest_dead_letter_id(self, partition: int) -> str | None:
        name = self._dead[partition]
        entries = await self._runtime.redis.call("XREVRANGE", name, "+", "-", "COUNT", 1, key=name)
        return entries[0][0].decode() if entries else None

    async def retry_dead_letters(self, partition: int, entry_ids: Sequence[str]) -> list[str]:
        names = self._names(partition, self._dead, self._pending, self._payloads, self._attempts)
        args: list[Argument] = [self._settings.ack_timeout_ms, len(entry_ids), *entry_ids]
        reply = await self._runtime.run(RETRY_DEAD_LETTERS, partition, names, args)
        return [status_of(status) for status in reply]

    async def drop_dead_letters(self, partition: int, entry_ids: Sequence[str]) -> list[str]:
        names = [self._dead[partition]]
        reply = await self._runtime.run(
            DROP_DEAD_LETTERS, partition, names, [len(entry_ids), *entry_ids]
        )
        return [status_of(status) for status in reply]

    def _names(self, partition: int, *keys_by_partition: Sequence[str]) -> list[str]:
        return [names[partition] for names in keys_by_partition]

    def _digests(self, partition: int, epoch: int) -> str:
        return self._runtime.keyspace.name(keys.MESSAGES_DIGESTS, partition, str(epoch))

    async def _join(self, names: Sequence[str], member: str) -> list[str]:
        reply = await self._runtime.run(
            JOIN_MEMBERS, 0, names, [member, MEMBER_TTL_MS], durable=False
        )
        return [each.decode() for each in reply]

    async def _members(self, names: Sequence[str]) -> list[str]:
        reply = await self._runtime.run(LIST_MEMBERS, 0, names, [MEMBER_TTL_MS], durable=False)
        return [each.decode() for each in reply]


def _dead_letter(partition: int, entry: Sequence[Any]) -> DispatchDeadLetter:
    entry_id, fields = entry[0].decode(), dict(zip(entry[1][::2], entry[1][1::2], strict=True))
    reasons = fields[b"reasons"].decode(errors="replace")
    return DispatchDeadLetter(
        entry_id,
        partition,
        fields[b"message_id"].decode(),
        int(fields[b"deliveries"]),
        reasons.split("\n") if reasons else [],
        fields.get(b"payload"),
        int(entry_id.partition("-")[0]),
    )
