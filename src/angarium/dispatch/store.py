"""The state of dispatch in Redis: all transitions, and the only place that uses its keys.

Calls take batches and return statuses; the store makes no decisions. Calls of the leader carry its
term and return None if a newer term exists: nothing was written, and the caller must stop leading.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from angarium.dispatch import keys, transitions
from angarium.dispatch.epochs import split_digests
from angarium.dispatch.errors import InboxFull
from angarium.dispatch.failures import split_failure
from angarium.dispatch.frames import DispatchedMessage, message_bytes
from angarium.dispatch.message_ids import new_ids, partition_of_id
from angarium.dispatch.queues import UNNAMED, check_queue_name
from angarium.dispatch.settings import DispatchSettings
from angarium.dispatch.transitions import (
    AcceptArgs,
    Accepted,
    AcceptInboxArgs,
    ClaimArgs,
    ClaimedBatch,
    CompleteArgs,
    CoverArgs,
    DeadLetterItem,
    DeadLetterRow,
    EnqueueArgs,
    EnqueueItem,
    FindEntryArgs,
    FinishedEpoch,
    FoundEntry,
    HeldItem,
    InboxMessages,
    JoinArgs,
    LeaveArgs,
    ListArgs,
    ListDeadLettersArgs,
    ListQueuesArgs,
    ListResultsArgs,
    Members,
    MemberTransitions,
    NewId,
    RejectArgs,
    RejectItem,
    ResultItem,
    ResultRow,
    RetryArgs,
    ReturnArgs,
    Searched,
    TrimArgs,
    Trimmed,
    UnsentItem,
    WaitingQueueRow,
    WaitingQueueRows,
)
from angarium.redis.connection import ReplyError
from angarium.runtime.batching import Batcher
from angarium.runtime.errors import AngariumError, LimitExceeded
from angarium.runtime.keyspace import Key
from angarium.runtime.lease import LeaseKeys
from angarium.runtime.retry_policy import RetryPolicy
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition

# How long an idempotency key is remembered: senders repeat within hours.
ONCE_MS = 24 * 3600 * 1000
# Named queues that a status shows.
QUEUES_MAX = 1_000
# Lua passes a few thousand values to one command; with more a script would fail half-way.
SCRIPT_ITEMS_MAX = 1_000
# A member renews its entry every second; an entry that is older than this is removed.
MEMBER_TTL_MS = 5_000


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
    traceback: str
    payload: bytes | None
    payload_bytes: int
    at_ms: int
    queue: str


@dataclass(frozen=True)
class PendingMessage:
    """`at_ms`: its last delivery, renewal or failure. `attempts` is the record of its failures."""

    at_ms: int
    attempts: bytes
    payload: bytes | None


class DispatchStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings = runtime.settings.group(DispatchSettings)
        self._limits = runtime.settings.limits
        self._payload_bytes_max = self._limits.frame_bytes_max - message_bytes(b"")
        self.partitions = runtime.settings.partitions
        self.items_max = min(self._limits.batch_items_max, SCRIPT_ITEMS_MAX)
        self.channel = runtime.keyspace.global_name(keys.MESSAGES_PUBLISHED)
        self.marker_channel = runtime.keyspace.global_name(keys.MESSAGES_EPOCHS)
        # Only on one node do all subscribers receive messages and markers in the same order.
        self.subscription_key = runtime.keyspace.name(keys.MESSAGES_EPOCH, 0)
        # Two stores of one process are two writers.
        self._writer = f"{runtime.actor}/{secrets.token_hex(3)}"
        self._writes: Counter[int] = Counter()  # calls of enqueue by partition
        self._enqueue = runtime.batch(transitions.ENQUEUE, self._enqueue_args)
        self.acknowledgements = runtime.batch(transitions.ACKNOWLEDGE)

    def lease_keys(self, partition: int) -> LeaseKeys:
        lock = self._runtime.keyspace.name(keys.LEADER_LOCK, partition)
        term = self._runtime.keyspace.name(keys.LEADER_LOCK_TERM, partition)
        return LeaseKeys(partition, lock, term)

    # The leader's transitions -----------------------------------------------------------------

    async def accept(
        self,
        partition: int,
        term: int,
        epoch: int,
        messages: Sequence[DispatchedMessage],
        digests: bytes,
        sent: int,
        queue: str = UNNAMED,
    ) -> Accepted | None:
        """How many messages are pending now, from the first; the others were spilled or refused.

        The caller sends the first `sent` messages; the others are due in Redis. Those of a named
        queue wait there, and `sent` is 0.
        """
        settings = self._settings
        args = AcceptArgs(
            term,
            epoch,
            settings.ack_timeout_ms,
            settings.pending_messages_max,
            settings.pending_full,
            settings.inbox_messages_max,
            self._payload_bytes_max,
            sent,
            digests,
            queue,
        )
        reply: Accepted | str = await self._runtime.call(
            transitions.ACCEPT, partition, args, messages
        )
        if isinstance(reply, Accepted):
            return reply
        # A repeated call does not return the number. Refused messages are not pending, so sending
        # them does no harm: their results are not stored.
        return Accepted(len(messages), 0) if reply == "repeated" else None

    async def claim(
        self,
        partition: int,
        term: int,
        count: int,
        *,
        held_too: bool = True,
        suspects_max: int = 0,
        queue: str = UNNAMED,
        sent_ms: int = 0,
    ) -> ClaimedBatch | None:
        """Due messages for one more delivery. Unless `held_too`, those that a worker may have are
        left out; also if Redis runs the claim long after `sent_ms`, its time when the call began.
        With `suspects_max`, suspects alone: messages that may have killed workers.
        With a `queue`, messages that wait in this named queue."""
        settings = self._settings
        args = ClaimArgs(
            term,
            settings.ack_timeout_ms,
            settings.deliveries_max,
            self._payload_bytes_max,
            self._limits.batch_bytes_max,
            count,
            held_too,
            suspects_max,
            queue,
            sent_ms,
        )
        reply: ClaimedBatch | str = await self._runtime.call(transitions.CLAIM, partition, args)
        return None if isinstance(reply, str) else reply

    async def trim_results(self, partition: int, keep_ms: int, entries_max: int) -> int:
        """Remove old results that every consumer group of the stream has read; their number."""
        args = TrimArgs(keep_ms, entries_max)
        found: Trimmed = await self._runtime.call(transitions.TRIM_RESULTS, partition, args)
        return found.entries

    async def return_unsent(self, partition: int, term: int, ids: Sequence[bytes]) -> bool:
        """Make accepted messages due that the leader never sent. False if a newer term exists."""
        args = ReturnArgs(term, self._settings.ack_timeout_ms)
        for start in range(0, len(ids), self.items_max):
            items = [UnsentItem(each) for each in ids[start : start + self.items_max]]
            reply = await self._runtime.call(transitions.RETURN, partition, args, items)
            if reply == "stale":
                return False
        return True

    async def accept_inbox(
        self, partition: int, term: int, count: int, sent: int
    ) -> InboxMessages | None:
        """Messages of the durable intake that are pending now; none if it is empty or the
        partition is full."""
        args = AcceptInboxArgs(
            term,
            self._settings.ack_timeout_ms,
            self._settings.pending_messages_max,
            self._payload_bytes_max,
            self._limits.batch_bytes_max,
            sent,
            partition,
            self.partitions,
        )
        ids = [NewId(each) for each in new_ids(count, partition, self.partitions)]
        reply = await self._runtime.call(transitions.ACCEPT_INBOX, partition, args, ids)
        if reply == "stale":
            return None
        return InboxMessages(0, []) if reply == "full" else reply

    async def wait_for_inbox(self, partition: int, block_ms: int) -> bool:
        """Wait up to `block_ms`; whether the durable intake has an entry."""
        name = self._name(keys.MESSAGES_INBOX, partition)
        reply = await self._runtime.redis.blocking(
            "XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", name, "0-0",
            key=name, block_ms=block_ms,
        )  # fmt: skip
        return bool(reply)

    async def publish_epoch_marker(self) -> int:
        reply = await self._runtime.call(transitions.PUBLISH_EPOCH_MARKER, 0, durable=False)
        return int(reply.epoch)

    async def cover_epochs(
        self, partition: int, term: int, epoch: int, finished: Sequence[int]
    ) -> bool:
        """Record that all messages before `epoch` are accepted, and delete the digests of the
        `finished` epochs. False if a newer term exists."""
        args, items = CoverArgs(term, epoch, partition), [FinishedEpoch(each) for each in finished]
        reply = await self._runtime.call(
            transitions.COVER_EPOCHS, partition, args, items, durable=False
        )
        return bool(reply == "covered")

    async def covered(self, partition: int) -> int:
        name = self._name(keys.MESSAGES_COVERED, partition)
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

    def completions(
        self, consumer: str, receive: Callable[[Sequence[ResultItem], Sequence[Any]], None]
    ) -> Batcher[ResultItem, str]:
        """Stores results and finishes their messages: `completed`, or `duplicate` for a message
        that was finished before."""
        args = CompleteArgs(consumer, self._settings.stream_entries_max or 0)
        return self._runtime.batch(transitions.COMPLETE, args, receive)

    def rejections(self, retry: RetryPolicy | None = None) -> Batcher[RejectItem, str]:
        """Rejects messages by the policy of a worker function. Without one: as the settings say
        for third-party workers, whose delay ends with the time-out."""
        settings = self._settings
        tries_max, backoff = settings.deliveries_max, "exponential"
        delay_ms_max = settings.ack_timeout_ms
        if retry is not None:
            tries_max = tries_max if retry.retries is None else retry.retries + 1
            backoff, delay_ms_max = retry.backoff, int(retry.delay_s_max * 1000)
        return self._runtime.batch(
            transitions.REJECT,
            RejectArgs(
                settings.ack_timeout_ms, tries_max, backoff, settings.retry_delay_ms, delay_ms_max
            ),
        )

    async def renew(self, partition: int, items: Sequence[HeldItem]) -> list[str]:
        """`renewed`, `lost` or `unknown` for each."""
        found: list[str] = []
        for start in range(0, len(items), self.items_max):
            part = items[start : start + self.items_max]
            # Not durable: a renewal lasts seconds.
            found += await self._runtime.call(
                transitions.RENEW, partition, None, part, durable=False
            )
        return found

    async def enqueue(
        self, payload: bytes, idempotency_key: str | None = None, queue: str = UNNAMED
    ) -> Enqueued:
        """Put one message into the durable intake. Concurrent calls share a batch."""
        (enqueued,) = await self.enqueue_all([(payload, idempotency_key)], [queue])
        return enqueued

    async def enqueue_all(
        self, messages: Sequence[tuple[bytes, str | None]], queues: Sequence[str] = ()
    ) -> list[Enqueued]:
        """Payload and idempotency key of each, and their `queues` if they have any. All are checked
        first: if one is invalid, none is added. Raises InboxFull if the intake has no space; some
        may have been added then."""
        names = queues or [UNNAMED] * len(messages)
        prepared = [
            self._intake(payload, key, check_queue_name(queue))
            for (payload, key), queue in zip(messages, names, strict=True)
        ]
        waiting: list[asyncio.Future[Any]] = []
        try:
            for partition, item in prepared:
                waiting.append(self._enqueue.submit(partition, item, None, len(item.payload)))
        except AngariumError:
            # No batch was sent yet, so cancelling is enough.
            for each in waiting:
                each.cancel()
            raise
        replies = await asyncio.gather(*waiting)
        if "full" in replies:
            raise InboxFull("dispatch.inbox_messages_max", self._settings.inbox_messages_max)
        return [
            Enqueued(reply.message_id, isinstance(reply, transitions.DuplicateMessage))
            for reply in replies
        ]

    def check_payload(self, payload: bytes) -> None:
        """Raise LimitExceeded for a payload that does not fit into a frame."""
        size, size_max = message_bytes(payload), self._limits.frame_bytes_max
        if size > size_max:
            raise LimitExceeded("frame_bytes_max", size, size_max)

    def _intake(
        self, payload: bytes, idempotency_key: str | None, queue: str
    ) -> tuple[int, EnqueueItem]:
        """The partition and the script's item."""
        self.check_payload(payload)
        if idempotency_key is None:
            (message_id,) = new_ids(1)
            partition = partition_of_id(message_id, self.partitions)
            return partition, EnqueueItem(message_id, payload, "", 0, queue)
        key_bytes, key_max = len(idempotency_key.encode()), self._limits.id_bytes_max
        if key_bytes > key_max:
            raise LimitExceeded("id_bytes_max", key_bytes, key_max)
        partition = self._runtime.keyspace.partition_of(idempotency_key)
        (message_id,) = new_ids(1, partition, self.partitions)
        return partition, EnqueueItem(message_id, payload, idempotency_key, ONCE_MS, queue)

    def _enqueue_args(self, partition: int) -> EnqueueArgs:
        self._writes[partition] += 1
        maximum = self._settings.inbox_messages_max
        return EnqueueArgs(self._writer, self._writes[partition], maximum)

    def channel_of(self, queue: str) -> str:
        """The channel of a queue; a dispatcher listens to those in `dispatch.queues`."""
        return f"{self.channel}:{check_queue_name(queue)}" if queue else self.channel

    async def publish(self, payload: bytes, queue: str = UNNAMED) -> int:
        """Publish on the channel; the number of subscribers that received the message."""
        (listeners,) = await self.publish_all([payload], queue)
        return listeners

    async def publish_all(self, payloads: Sequence[bytes], queue: str = UNNAMED) -> list[int]:
        """Publish in order; for each the number of subscribers. Not repeated if the reply is lost:
        subscribers may have received the messages."""
        channel = self.channel_of(queue)
        commands = [("PUBLISH", channel, payload) for payload in payloads]
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
        return await self._join(transitions.CONSUMER_LIST, consumer)

    async def leave_consumers(self, consumer: str) -> None:
        await self._leave(transitions.CONSUMER_LIST, consumer)

    async def consumers(self) -> list[str]:
        return await self._members(transitions.CONSUMER_LIST)

    async def join_named_consumers(self, queue: str, consumer: str) -> list[str]:
        return await self._join(transitions.NAMED_CONSUMER_LIST, f"{queue}@{consumer}")

    async def leave_named_consumers(self, queue: str, consumer: str) -> None:
        await self._leave(transitions.NAMED_CONSUMER_LIST, f"{queue}@{consumer}")

    async def named_consumers(self) -> list[tuple[str, str]]:
        """Queue and address of each. Dispatchers of earlier releases do not read this list, so
        they never send messages of the unnamed queue to these consumers."""
        found = await self._members(transitions.NAMED_CONSUMER_LIST)
        pairs = (each.partition("@")[::2] for each in found)
        return [(queue, address) for queue, address in pairs if address]

    async def join_dispatchers(self, dispatcher: str) -> list[str]:
        return await self._join(transitions.DISPATCHER_LIST, dispatcher)

    async def leave_dispatchers(self, dispatcher: str) -> None:
        await self._leave(transitions.DISPATCHER_LIST, dispatcher)

    async def dispatchers(self) -> list[str]:
        return await self._members(transitions.DISPATCHER_LIST)

    async def announce_free_partition(self, partition: int) -> None:
        """Tell the other dispatchers that a partition has no leader. A hint: they also poll."""
        await self._runtime.redis.call("PUBLISH", self.marker_channel, f"free {partition}")

    async def announce_finished(self, ids: Sequence[bytes]) -> None:
        """Tell the dispatchers that sent these messages that they are acknowledged. A hint: the
        slots become free after some time-outs too."""
        await self._runtime.redis.call("PUBLISH", self.marker_channel, b"done " + b" ".join(ids))

    async def leader(self, partition: int) -> tuple[str | None, int]:
        """The leader, and the milliseconds until its lock expires."""
        lock = self.lease_keys(partition).lock
        value, expiry_ms = await self._runtime.redis.execute(
            [("GET", lock), ("PTTL", lock)], key=lock, repeatable=True
        )
        return _holder(value), max(0, int(expiry_ms))

    # Status and dead letters ------------------------------------------------------------------

    async def waiting_in_queues(self, partition: int) -> list[WaitingQueueRow]:
        """The named queues in which messages wait for a worker."""
        found: WaitingQueueRows = await self._runtime.call(
            transitions.LIST_QUEUES, partition, ListQueuesArgs(QUEUES_MAX), durable=False
        )
        return found.rows

    async def pending_count(self, partition: int) -> int:
        name = self._name(keys.MESSAGES_PENDING, partition)
        return int(await self._runtime.redis.call("ZCARD", name, key=name))

    async def pending_message(self, message_id: str) -> PendingMessage | None:
        """An accepted, unfinished message."""
        partition = partition_of_id(message_id.encode(), self.partitions)
        pending = self._name(keys.MESSAGES_PENDING, partition)
        score, attempts, payload = await self._runtime.redis.execute(
            [
                ("ZSCORE", pending, message_id),
                ("HGET", self._name(keys.MESSAGES_ATTEMPTS, partition), message_id),
                ("HGET", self._name(keys.MESSAGES_PAYLOADS, partition), message_id),
            ],
            key=pending,
            repeatable=True,
        )
        return (
            None if score is None else PendingMessage(int(float(score)), attempts or b"", payload)
        )

    async def newest_result_id(self, partition: int) -> str:
        return await self._newest_entry_id(keys.MESSAGES_PROCESSED, partition) or "0-0"

    async def find_entry(
        self,
        transition: Transition[Any],
        message_id: str,
        entries_max: int,
        *,
        after: str = "-",
        until_id: str = "+",
    ) -> FoundEntry | Searched:
        """The newest entry of the message in the stream of FIND_RESULT or FIND_QUEUED."""
        partition = partition_of_id(message_id.encode(), self.partitions)
        args = FindEntryArgs(message_id, after, until_id, entries_max)
        found: FoundEntry | Searched = await self._runtime.call(
            transition, partition, args, durable=False
        )
        return found

    async def newest_results(self, partition: int, count: int) -> list[ResultRow]:
        args = ListResultsArgs(count)
        found = await self._runtime.call(transitions.LIST_RESULTS, partition, args, durable=False)
        rows: list[ResultRow] = found.rows
        return rows

    async def status(self, partition: int) -> PartitionStatus:
        lease, pending_name = (
            self.lease_keys(partition),
            self._name(keys.MESSAGES_PENDING, partition),
        )
        replies: list[Any] = await self._runtime.redis.execute(
            [
                ("GET", lease.lock),
                ("GET", lease.term),
                ("ZCARD", pending_name),
                ("ZRANGE", pending_name, 0, 0, "WITHSCORES"),
                ("XLEN", self._name(keys.MESSAGES_INBOX, partition)),
                ("XLEN", self._name(keys.MESSAGES_PROCESSED, partition)),
                ("XLEN", self._name(keys.MESSAGES_DEAD, partition)),
                ("GET", self._name(keys.MESSAGES_COVERED, partition)),
                ("TIME",),
            ],
            key=lease.lock,
            repeatable=True,
        )
        lock, term, pending, oldest, inbox, processed, dead, covered, time = replies
        now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
        oldest_ms = max(0, now_ms - int(float(oldest[1]))) if oldest else 0
        return PartitionStatus(
            partition, _holder(lock), int(term or 0), pending, oldest_ms, inbox, processed, dead,
            int(covered or 0),
        )  # fmt: skip

    async def dead_letters(
        self,
        partition: int,
        count: int,
        after: str = "",
        until: str = "+",
        payload_bytes_max: int | None = None,
    ) -> list[DispatchDeadLetter]:
        """Dead letters after the entry `after`, oldest first, up to the entry `until`; fewer than
        `count` if their payloads are large. `payload_bytes_max` cuts the payloads."""
        args = ListDeadLettersArgs(
            after,
            until,
            count,
            self._limits.batch_bytes_max,
            self._limits.frame_bytes_max if payload_bytes_max is None else payload_bytes_max,
        )
        found = await self._runtime.call(transitions.LIST_DEAD_LETTERS, partition, args)
        return [_dead_letter(partition, row) for row in found.rows]

    async def newest_dead_letter_id(self, partition: int) -> str | None:
        return await self._newest_entry_id(keys.MESSAGES_DEAD, partition)

    async def _newest_entry_id(self, key: Key, partition: int) -> str | None:
        name = self._name(key, partition)
        entries = await self._runtime.redis.call("XREVRANGE", name, "+", "-", "COUNT", 1, key=name)
        return entries[0][0].decode() if entries else None

    async def retry_dead_letters(self, partition: int, entry_ids: Sequence[str]) -> list[str]:
        args, items = RetryArgs(self._settings.ack_timeout_ms), list(map(DeadLetterItem, entry_ids))
        found: list[str] = await self._runtime.call(
            transitions.RETRY_DEAD_LETTERS, partition, args, items
        )
        return found

    async def drop_dead_letters(self, partition: int, entry_ids: Sequence[str]) -> list[str]:
        items = list(map(DeadLetterItem, entry_ids))
        found: list[str] = await self._runtime.call(
            transitions.DROP_DEAD_LETTERS, partition, None, items
        )
        return found

    def _name(self, key: Key, partition: int) -> str:
        return self._runtime.keyspace.name(key, partition)

    def _digests(self, partition: int, epoch: int) -> str:
        return self._runtime.keyspace.name(keys.MESSAGES_DIGESTS, partition, str(epoch))

    async def _join(self, members: MemberTransitions, member: str) -> list[str]:
        args = JoinArgs(member, MEMBER_TTL_MS)
        found: Members = await self._runtime.call(members.join, 0, args, durable=False)
        return found.names

    async def _leave(self, members: MemberTransitions, member: str) -> None:
        await self._runtime.call(members.leave, 0, LeaveArgs(member), durable=False)

    async def _members(self, members: MemberTransitions) -> list[str]:
        args = ListArgs(MEMBER_TTL_MS)
        found: Members = await self._runtime.call(members.show, 0, args, durable=False)
        return found.names


def _holder(lock: bytes | None) -> str | None:
    return lock.decode().partition(":")[2].partition("/")[0] if lock else None


def _dead_letter(partition: int, row: DeadLetterRow) -> DispatchDeadLetter:
    failures = [split_failure(e) for e in row.reasons.decode(errors="replace").split("\n") if e]
    return DispatchDeadLetter(
        row.entry_id,
        partition,
        row.message_id,
        row.deliveries,
        [reason for reason, _ in failures],
        failures[-1][1] if failures else "",
        row.payload if row.payload_bytes >= 0 else None,
        max(0, row.payload_bytes),
        int(row.entry_id.partition("-")[0]),
        row.queue,
    )
