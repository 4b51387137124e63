"""The module's state in Redis: every transition, and the only place that knows its keys.

Batches go in, statuses come out; nothing is decided here. Calls of the leader carry its term and
answer None when a newer term exists: then nothing was written, and the caller leads no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from angarium.dispatch.epochs import split_digests
from angarium.dispatch.frames import message_bytes
from angarium.dispatch.identity import new_ids, partition_of_id
from angarium.redis.connection import Argument, ReplyError
from angarium.runtime import keyspace as keys
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
TAKE_INBOX = load_script("angarium.dispatch", "take_inbox")
ENQUEUE = load_script("angarium.dispatch", "enqueue_messages")
RETRY_DEAD = load_script("angarium.dispatch", "retry_dead")
DROP_DEAD = load_script("angarium.dispatch", "drop_dead")
MARK_EPOCH = load_script("angarium.dispatch", "mark_epoch")
COVER_EPOCHS = load_script("angarium.dispatch", "cover_epochs")
JOIN_MEMBERS = load_script("angarium.dispatch", "join_members")
LEAVE_MEMBERS = load_script("angarium.dispatch", "leave_members")
LIST_MEMBERS = load_script("angarium.dispatch", "list_members")

# A sender that tries again does so within hours; a day leaves time for a weekend's repair crew.
ONCE_MS = 24 * 3600 * 1000
# A message without a key is known by its id for as long as a call whose reply was lost may be
# sent again by ourselves.
REPEAT_MS = 10 * 60 * 1000
# A script can pass on a few thousand values at once; beyond that it would fail half-way.
SCRIPT_ITEMS_MAX = 1_000
# A member says that it lives every second; one that missed this many is taken out of the list.
MEMBER_TTL_MS = 5_000

MessageBytes = tuple[bytes, bytes]
"""Id and published bytes."""


class Claimed(NamedTuple):
    message_id: bytes
    payload: bytes
    delivery: int


@dataclass(frozen=True)
class Claim:
    """What was due. `full`: there may be more of it."""

    messages: list[Claimed]
    dead: int
    full: bool


class Enqueued(NamedTuple):
    message_id: str
    duplicate: bool


@dataclass(frozen=True)
class PartitionStatus:
    """One partition in figures, for people."""

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
class DeadLetter:
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
        self._settings = runtime.settings.dispatch
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
        self.marks = runtime.keyspace.global_name(keys.MESSAGES_EPOCHS)
        # The mark's order among the messages is the same on one node only.
        self.subscription_key = self._epoch
        self._consumers = [name(keys.CONSUMER_IDS, 0), name(keys.CONSUMERS_SEEN, 0)]
        self._dispatchers = [name(keys.DISPATCHER_IDS, 0), name(keys.DISPATCHERS_SEEN, 0)]
        self._enqueue = runtime.batched(ENQUEUE, lambda p: [self._inbox[p]])

    def lease_keys(self, partition: int) -> LeaseKeys:
        lock = self._runtime.keyspace.name(keys.LEADER_LOCK, partition)
        return LeaseKeys(partition, lock, self._term[partition])

    def inbox_name(self, partition: int) -> str:
        return self._inbox[partition]

    def stream_name(self, partition: int) -> str:
        return self._stream[partition]

    # The leader's transitions -----------------------------------------------------------------

    async def accept(
        self,
        partition: int,
        term: int,
        epoch: int,
        messages: Sequence[MessageBytes],
        digests: bytes,
        sent: int,
    ) -> int | None:
        """How many of a batch are pending now, counted from its front; the rest was refused."""
        names = [
            self._term[partition],
            self._pending[partition],
            self._payloads[partition],
            self._attempts[partition],
            self._digests(partition, epoch),
            self._dead[partition],
        ]
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
        # After a lost reply all we know is that it was done; the refused ones are in no set, so
        # sending them would at worst produce a result that finds nothing pending.
        return len(messages) if status == "repeated" else int(reply[1])

    async def claim(self, partition: int, term: int, count: int) -> Claim | None:
        names = [
            self._term[partition],
            self._pending[partition],
            self._payloads[partition],
            self._attempts[partition],
            self._dead[partition],
        ]
        settings = self._settings
        args = [term, settings.ack_timeout_ms, settings.deliveries_max, count]
        args += [self._payload_bytes_max, self._limits.batch_bytes_max]
        reply = await self._runtime.run(CLAIM, partition, names, args)
        if status_of(reply) == "stale":
            return None
        found = reply[3:]
        messages = [
            Claimed(found[i], found[i + 1], int(found[i + 2])) for i in range(0, len(found), 3)
        ]
        return Claim(messages, int(reply[2]), int(reply[1]) >= count)

    async def take_inbox(
        self, partition: int, term: int, count: int, sent: int
    ) -> list[MessageBytes] | None:
        """Entries of the durable intake that are pending now; [] if there are none, or no space."""
        names = [
            self._term[partition],
            self._pending[partition],
            self._payloads[partition],
            self._attempts[partition],
            self._inbox[partition],
            self._dead[partition],
        ]
        ids = new_ids(count, partition, self.partitions)
        settings = self._settings
        args: list[Argument] = [term, settings.ack_timeout_ms, settings.pending_messages_max]
        args += [sent, self._payload_bytes_max, partition, self.partitions, count, *ids]
        reply = await self._runtime.run(TAKE_INBOX, partition, names, args)
        status = status_of(reply)
        if status == "stale":
            return None
        return list(zip(reply[1::2], reply[2::2], strict=True))

    async def wait_for_inbox(self, partition: int, block_ms: int) -> bool:
        """Whether the durable intake holds anything; waits for it up to `block_ms`."""
        name = self._inbox[partition]
        reply = await self._runtime.redis.blocking(
            "XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", name, "0-0",
            key=name, block_ms=block_ms,
        )  # fmt: skip
        return bool(reply)

    async def mark_epoch(self) -> int:
        reply = await self._runtime.run(MARK_EPOCH, 0, [self._epoch], [self.marks], durable=False)
        return int(reply)

    async def cover(
        self, partition: int, term: int, epoch: int, finished: Sequence[int]
    ) -> bool | None:
        """Everything before `epoch` is accepted; the records of `finished` epochs may go."""
        names = [self._term[partition], self._covered[partition]]
        names += [self._digests(partition, each) for each in finished]
        reply = await self._runtime.run(
            COVER_EPOCHS, partition, names, [term, epoch, self.marks, partition], durable=False
        )
        return None if status_of(reply) == "stale" else True

    async def covered(self, partition: int) -> int:
        name = self._covered[partition]
        return int(await self._runtime.redis.call("GET", name, key=name) or 0)

    async def accepted_digests(
        self, partition: int, epochs: Sequence[int]
    ) -> Mapping[int, Counter[bytes]]:
        """What leaders before us accepted, by epoch. Final once our own term exists."""
        if not epochs:
            return {}
        names = [self._digests(partition, epoch) for epoch in epochs]
        replies = await self._runtime.redis.execute(
            [("HVALS", name) for name in names], key=names[0], repeatable=True
        )
        return {epoch: split_digests(reply) for epoch, reply in zip(epochs, replies, strict=True)}

    # What workers and acknowledgements do -----------------------------------------------------

    async def complete(
        self, partition: int, consumer: str, results: Sequence[tuple[bytes, Sequence[Argument]]]
    ) -> list[bool]:
        """Store results and finish their messages; False for one that was finished before."""
        names = [
            self._pending[partition],
            self._payloads[partition],
            self._attempts[partition],
            self._stream[partition],
        ]
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
        """Id and consumer of messages whose worker stored the result itself. False: not pending."""
        names = [self._pending[partition], self._payloads[partition], self._attempts[partition]]
        args: list[Argument] = [len(acknowledged)]
        for message_id, consumer in acknowledged:
            args += (message_id, consumer)
        reply = await self._runtime.run(ACKNOWLEDGE, partition, names, args)
        return [status == b"acknowledged" for status in reply]

    async def reject(
        self, partition: int, rejections: Sequence[tuple[bytes, str, int]]
    ) -> list[str]:
        """Id, reason ('' when given back) and first delay in ms of each → its status."""
        names = [
            self._pending[partition],
            self._payloads[partition],
            self._attempts[partition],
            self._dead[partition],
        ]
        settings = self._settings
        args: list[Argument] = [
            settings.ack_timeout_ms, settings.deliveries_max, len(rejections)
        ]  # fmt: skip
        for rejection in rejections:
            args += rejection
        reply = await self._runtime.run(REJECT, partition, names, args)
        return [status_of(status) for status in reply]

    async def enqueue(self, payload: bytes, idempotency_key: str | None = None) -> Enqueued:
        """Put one message into the durable intake. Concurrent calls travel together."""
        (enqueued,) = await self.enqueue_all([(payload, idempotency_key)])
        return enqueued

    async def enqueue_all(self, messages: Sequence[tuple[bytes, str | None]]) -> list[Enqueued]:
        """Payload and idempotency key of each. All are checked before the first one goes: when
        one is refused, none is in the intake."""
        prepared = [self._intake(payload, key) for payload, key in messages]
        waiting: list[asyncio.Future[Any]] = []
        try:
            for partition, item, size in prepared:
                waiting.append(self._enqueue.submit(partition, item, None, size))
        except AngariumError:
            # None has left yet, so taking them out again is enough.
            for each in waiting:
                each.cancel()
            raise
        replies = await asyncio.gather(*waiting)
        return [Enqueued(reply[1].decode(), status_of(reply) == "duplicate") for reply in replies]

    def check_payload(self, payload: bytes) -> None:
        """Refuse what no frame could carry to a worker."""
        size, size_max = message_bytes(payload), self._limits.frame_bytes_max
        if size > size_max:
            raise LimitExceeded("frame_bytes_max", size, size_max)

    def _intake(self, payload: bytes, idempotency_key: str | None) -> tuple[int, BatchItem, int]:
        """Partition, the script's item and its size."""
        self.check_payload(payload)
        if idempotency_key is None:
            (message_id,) = new_ids(1)
            partition = partition_of_id(message_id, self.partitions)
            known_by, period_ms = message_id.decode(), REPEAT_MS
        else:
            key_bytes, key_max = len(idempotency_key.encode()), self._limits.id_bytes_max
            if key_bytes > key_max:
                raise LimitExceeded("id_bytes_max", key_bytes, key_max)
            partition = self._runtime.keyspace.partition_of(idempotency_key)
            (message_id,) = new_ids(1, partition, self.partitions)
            known_by, period_ms = idempotency_key, ONCE_MS
        record = self._runtime.keyspace.name(keys.MESSAGES_ONCE, partition, known_by)
        return partition, ((record,), (message_id, payload, period_ms)), len(payload)

    async def publish(self, payload: bytes) -> int:
        """On the channel, for whoever listens now; how many did."""
        (listeners,) = await self.publish_all([payload])
        return listeners

    async def publish_all(self, payloads: Sequence[bytes]) -> list[int]:
        """All at once, in order; for each, how many listened. Not sent again when the answer is
        lost, for then it may have been heard."""
        commands = [("PUBLISH", self.channel, payload) for payload in payloads]
        # A cluster's node counts its own listeners only, and dispatchers listen at this one's.
        replies = await self._runtime.redis.execute(
            commands, key=self.subscription_key, repeatable=False
        )
        for reply in replies:
            if isinstance(reply, ReplyError):
                self._runtime.redis.raise_refusal(reply)
        return [int(reply) for reply in replies]

    # Who is there -----------------------------------------------------------------------------

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

    async def give_back(self, partition: int) -> None:
        """Tell the others that a partition is free. A hint: they find out by themselves too."""
        await self._runtime.redis.call("PUBLISH", self.marks, f"free {partition}")

    async def tell_finished(self, ids: Sequence[bytes]) -> None:
        """Tell whoever sent them that these were acknowledged elsewhere. A hint as well."""
        await self._runtime.redis.call("PUBLISH", self.marks, b"done " + b" ".join(ids))

    async def is_led(self, partition: int) -> bool:
        lock = self.lease_keys(partition).lock
        return bool(await self._runtime.redis.call("EXISTS", lock, key=lock))

    # For people -------------------------------------------------------------------------------

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
    ) -> list[DeadLetter]:
        """Letters behind the entry `after`, oldest first, up to the entry `until`."""
        name = self._dead[partition]
        start = after if after == "-" else f"({after}"
        entries = await self._runtime.redis.call(
            "XRANGE", name, start, until, "COUNT", count, key=name
        )
        return [_dead_letter(partition, entry) for entry in entries]

    async def newest_dead(self, partition: int) -> str | None:
        """Entry id of the last dead letter, if there is any."""
        name = self._dead[partition]
        entries = await self._runtime.redis.call("XREVRANGE", name, "+", "-", "COUNT", 1, key=name)
        return entries[0][0].decode() if entries else None

    async def retry_dead(self, partition: int, entry_ids: Sequence[str]) -> list[str]:
        names = [
            self._dead[partition],
            self._pending[partition],
            self._payloads[partition],
            self._attempts[partition],
        ]
        args: list[Argument] = [self._settings.ack_timeout_ms, len(entry_ids), *entry_ids]
        reply = await self._runtime.run(RETRY_DEAD, partition, names, args)
        return [status_of(status) for status in reply]

    async def drop_dead(self, partition: int, entry_ids: Sequence[str]) -> list[str]:
        names = [self._dead[partition]]
        reply = await self._runtime.run(DROP_DEAD, partition, names, [len(entry_ids), *entry_ids])
        return [status_of(status) for status in reply]

    # Inside -----------------------------------------------------------------------------------

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


def _dead_letter(partition: int, entry: Sequence[Any]) -> DeadLetter:
    entry_id, fields = entry[0].decode(), dict(zip(entry[1][::2], entry[1][1::2], strict=True))
    reasons = fields[b"reasons"].decode(errors="replace")
    return DeadLetter(
        entry_id,
        partition,
        fields[b"message_id"].decode(),
        int(fields[b"deliveries"]),
        reasons.split("\n") if reasons else [],
        fields.get(b"payload"),
        int(entry_id.partition("-")[0]),
    )
