"""Sends replies of conversations to pickup queues.

`PickupSender` is a sender of the conversations module. It adds a reply to the recipient's queue
under an id derived from the reply's, so a reply that is sent twice is queued once. A stored reply
is delivered as far as its conversation is concerned: pickup keeps it, in order, until the recipient
comes. With `conversations.pickup_delivered` = `removed` the next reply waits for the removal:
`AckFollower` reads removals from the journal and acknowledges the replies. One script makes the
removal and writes its event, so a killed process can't lose an ACK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from angarium.conversations import instance
from angarium.conversations.errors import AckUnknown, Fatal, Recoverable
from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import OutgoingReply
from angarium.conversations.settings import ConversationsSettings
from angarium.pickup.deduplicated_add import (
    NewMessage,
    PickupAddress,
    derived_id,
    is_derived_id,
)
from angarium.pickup.errors import QueueFull
from angarium.pickup.queues import CANCELLED, DELIVERED
from angarium.pickup.service import PickupService
from angarium.runtime import keys, log
from angarium.runtime.application import Application
from angarium.runtime.errors import InputInvalid, LimitExceeded
from angarium.runtime.journal import EntryUnreadable, Journal, decode_entry
from angarium.runtime.lease import Lease, LeaseKeys, LeaseOutcome
from angarium.runtime.runtime import Runtime
from angarium.runtime.trace import Trace, current_trace, read_traceparent
from angarium.settings import Settings

PICKUP = "pickup"
LEASE_MS = 5_000
ENTRIES_PER_READ = 200
# The shortest and the longest pause between two reads: nothing notifies readers of the journal.
PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 0.25
# A recipient can remove a message before its reply is recorded as sent, so an unknown ACK is tried
# again. After the last attempt it belongs to no conversation, or its time has passed.
ATTEMPTS_AFTER_S = (0.0, 0.05, 0.25)
# Acknowledged concurrently, in a few batches.
CONCURRENT_ACKS = 1_000


class PickupSender:
    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings.group(ConversationsSettings)
        self._pickup = PickupService(runtime, remembered_ms=settings.awaited_message_ttl)
        self._waits_for_removal = settings.pickup_delivered == "removed"
        self._prefix = runtime.settings.prefix
        self._tracing = runtime.tracing

    async def close(self) -> None:
        await self._pickup.close()

    async def __call__(self, reply: OutgoingReply) -> str | None:
        """The id of the expected ACK; None if no removal is waited for."""
        message = self._message(reply)
        try:
            status = await self._add(message)
        except QueueFull as error:
            raise Recoverable(str(error)) from error
        except (InputInvalid, LimitExceeded) as error:
            raise Fatal(str(error)) from error
        return message.message_id if self._waits_for_removal and status != "removed" else None

    async def _add(self, message: NewMessage) -> str:
        trace = None if self._tracing is None else current_trace()
        if self._tracing is None or trace is None:
            return await self._pickup.add(message)
        values = {
            "angarium.connection_id": message.connection_id,
            "angarium.id": message.message_id,
        }
        with self._tracing.span("pickup add", trace, values, kind="producer"):
            return await self._pickup.add(message)

    def _message(self, reply: OutgoingReply) -> NewMessage:
        try:
            address = PickupAddress.read(reply.task_item.message_options.address)
        except InputInvalid as error:
            raise Fatal(str(error)) from error
        return NewMessage(
            connection_id=address.connection_id or reply.conversation_id,
            payload=msgspec.json.encode(reply.payload),
            message_id=reply_message_id(self._prefix, reply.conversation_id, reply.response_id),
            recipients=address.recipients,
            tenant=address.tenant,
            push_token=address.push_token,
            stands_for=reply.response_id,
        )


def reply_message_id(prefix: str, conversation_id: str, response_id: str) -> str:
    """A reply's message id in pickup. Several prefixes may share the database."""
    return derived_id(prefix, conversation_id, response_id)


@dataclass(frozen=True)
class Removal:
    """A message that was removed from pickup; `gateway` is the event's actor."""

    ack_id: str
    at_ms: int
    gateway: str


@dataclass(frozen=True)
class _PendingAck:
    """An ACK whose reply was not known at the last attempt."""

    removal: Removal
    attempts: int
    next_attempt_s: float


class AckFollower:
    """Follows one partition's journal. One process at a time does so, under a lease.

    It stores no position. An ACK is valid until `sent_message_ttl` after its reply was sent, so a
    new follower starts that far back and misses no valid ACK. A repeated ACK changes nothing.
    """

    def __init__(
        self, runtime: Runtime, partition: int, acknowledge: Callable[[Removal], Awaitable[bool]]
    ) -> None:
        """`acknowledge` returns whether a reply waited for the ACK."""
        name = runtime.keyspace.name
        self._runtime = runtime
        self._clock = runtime.clock
        self._partition = partition
        self._acknowledge_one = acknowledge
        self._ended = False
        self._journal = Journal(runtime)
        lease = LeaseKeys(
            partition,
            name(keys.FOLLOWER_LOCK, partition, "acks"),
            name(keys.FOLLOWER_TERM, partition, "acks"),
        )
        self._lease = Lease(runtime, lease, LEASE_MS)
        self._past_ms = 2 * runtime.settings.group(ConversationsSettings).sent_message_ttl
        self._turn_s = 0.0
        self._position = "0-0"
        self._pending: list[_PendingAck] = []
        self._log = log.logger("angarium.acks", partition=partition)

    async def run(self) -> None:
        pause_s = PAUSE_S_MIN
        while not self._ended:
            busy = await self.run_once()
            pause_s = PAUSE_S_MIN if busy else min(PAUSE_S_MAX, pause_s * 1.5)
            await self._clock.sleep(0 if busy == ENTRIES_PER_READ else pause_s)

    async def run_once(self) -> int:
        """Returns the amount of work done; 0 if idle."""
        if not await self._holds():
            return 0
        entries = await self._journal.read(self._partition, self._position, ENTRIES_PER_READ)
        now_s = self._clock.monotonic()
        fresh = [_PendingAck(each, 0, now_s) for entry in entries for each in self._removed(entry)]
        due = [each for each in self._pending if each.next_attempt_s <= now_s]
        later = [each for each in self._pending if each.next_attempt_s > now_s]
        unknown = await self._acknowledge([*due, *fresh])
        # Set after the acknowledgements: after an error they are repeated.
        self._pending = later + unknown
        if entries:
            self._position = entries[-1][0].decode()
        return len(entries) or len(self._pending)

    async def release(self) -> None:
        """Release the lease, so that another process follows at once."""
        self._ended = True
        await self._lease.release()

    async def _holds(self) -> bool:
        now_s = self._clock.monotonic()
        if now_s >= self._turn_s:
            if await self._lease.run_once() is LeaseOutcome.GAINED:
                await self._begin()
            self._turn_s = now_s + self._lease.pause_s
        return self._lease.trusted

    async def _begin(self) -> None:
        journal = self._runtime.keyspace.name(keys.JOURNAL, self._partition)
        seconds, micros = await self._runtime.redis.call("TIME", key=journal)
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        self._position = f"{max(0, now_ms - self._past_ms)}-0"
        self._pending = []

    def _removed(self, entry: Sequence[Any]) -> list[Removal]:
        """The messages that this journal entry removed from pickup."""
        entry_id, fields = entry
        # Entries of other modules are not decoded.
        named = dict(zip(fields[::2], fields[1::2], strict=False))
        if named.get(b"module", named.get(b"room")) != PICKUP.encode():
            return []
        try:
            decoded = decode_entry(entry_id, fields)
        except EntryUnreadable as error:
            self._log.warning("entry_unreadable", error=str(error))
            return []
        return [
            Removal(each.subject, decoded.at_ms, decoded.actor)
            for each in decoded.events
            if each.event in (DELIVERED, CANCELLED) and is_derived_id(each.subject)
        ]

    async def _acknowledge(self, pending: Sequence[_PendingAck]) -> list[_PendingAck]:
        """Returns the ACKs to try again."""
        unknown: list[_PendingAck] = []
        for start in range(0, len(pending), CONCURRENT_ACKS):
            part = pending[start : start + CONCURRENT_ACKS]
            known = await asyncio.gather(*(self._acknowledge_one(each.removal) for each in part))
            unknown += [each for each, is_known in zip(part, known, strict=True) if not is_known]
        now_s = self._clock.monotonic()
        return [
            _PendingAck(
                each.removal, each.attempts + 1, now_s + ATTEMPTS_AFTER_S[each.attempts + 1]
            )
            for each in unknown
            if each.attempts + 1 < len(ATTEMPTS_AFTER_S)
        ]


class ReplyAcknowledger:
    """Acknowledges the replies of removed messages in the role."""

    def __init__(self, role: ConversationsInstance) -> None:
        self._role = role
        self._tracing = role.runtime.tracing

    async def acknowledge(self, removal: Removal) -> bool:
        """Whether a reply waited for the removal."""
        trace: Trace | None = None
        try:
            if self._tracing is not None:
                trace = await self._trace_of(removal.ack_id)
            status = await self._role.manager.acknowledge_now(removal.ack_id)
        except AckUnknown:
            return False
        if self._tracing is not None and trace is not None and status == "delivered":
            values = {"angarium.id": removal.ack_id, "angarium.gateway": removal.gateway}
            self._tracing.record(
                "pickup delivered", trace, removal.at_ms * 1_000_000, values, kind="consumer"
            )
        return True

    async def _trace_of(self, ack_id: str) -> Trace | None:
        """Costs a call to Redis; used only with a collector."""
        info = await self._role.manager.find_ack(ack_id)
        reply = await self._role.store.read_reply(info.response_id, info.conversation_id)
        return None if reply is None else read_traceparent(reply.corr)


def check(settings: Settings, app: Application) -> None:
    instance.check(settings, app)


def build(runtime: Runtime, app: Application) -> ConversationsInstance:
    """The role `conversations` with a sender to pickup, and followers of removals if it needs
    them."""
    sender = PickupSender(runtime)
    role = instance.build(runtime, app, {PICKUP: sender})
    role.call_at_end(sender.close)
    if runtime.settings.group(ConversationsSettings).pickup_delivered == "removed":
        acknowledger = ReplyAcknowledger(role)
        for partition in range(runtime.settings.partitions):
            follower = AckFollower(runtime, partition, acknowledger.acknowledge)
            role.run_beside(f"acks-{partition}", follower.run)
            role.call_at_end(follower.release)
    return role
