"""The module's state in Redis: one method for each transition, and the queries.

With `transitions.py` and `dead_replies.py` the only file that knows key names. A method turns a
script's reply into a value or an error; it makes no decision of its own. Each store has a name of
its own under which it holds replies: two stores in one process never send the same reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from angarium.conversations import keys
from angarium.conversations import transitions as t
from angarium.conversations.errors import (
    IdRefused,
    ReplyTaken,
    RequestTaken,
    RequestUnknown,
    WrongConversation,
)
from angarium.conversations.ids import ConversationIds
from angarium.conversations.limits import ConversationsLimits
from angarium.conversations.model import CanSend, ConversationMessage, MinMessageInfo, read_message
from angarium.conversations.script_values import (
    AcceptResult,
    CancelOptions,
    Claim,
    ConversationSnapshot,
    FinishReason,
    NewReply,
    TakeResult,
    read_infos,
    read_next,
    read_queued,
    read_sender_waits,
    read_take_result,
)
from angarium.conversations.settings import ConversationsSettings
from angarium.conversations.wait_reasons import OpenRequest, SenderWait
from angarium.redis.connection import Command
from angarium.runtime.errors import Overloaded
from angarium.runtime.process_report import read_processes
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text, valid_text
from angarium.runtime.transition import Item, Transition

# The claim on replies that `pop_waiting` returned.
WAITING = "waiting"
SIBLINGS_MAX = 500  # one script call blocks Redis for as long as it runs
SENDER_WAITS_MAX = 100  # senders that replies wait for, listed for people

WaitingKind = Literal["replies", "requests"]
_WAITING_KEYS = {"replies": keys.PENDING_MESSAGES, "requests": keys.OPEN_REQUESTS}


@dataclass(frozen=True)
class WaitingEntry:
    """A reply in flight and the time from which a process may claim it, or a request without a
    reply and the time at which it expires."""

    info: MinMessageInfo
    at_ms: int


class ConversationStore:
    def __init__(self, runtime: Runtime, senders: Sequence[str] | None = None) -> None:
        """`senders`: names of the senders this process has; None takes replies of any sender."""
        settings = runtime.settings.group(ConversationsSettings)
        self._limits = limits = runtime.settings.limits_of(ConversationsLimits)
        self._runtime = runtime
        self._name = runtime.keyspace.name
        self._ids = ConversationIds(runtime.keyspace, limits.id_bytes_max)
        self.partition_of = self._ids.partition_of
        self.partitions = range(runtime.settings.partitions)
        self.wake_channel = runtime.keyspace.global_name(keys.CONVERSATIONS_WAKE)
        self.holder = f"{runtime.actor}/{secrets.token_hex(2)}"
        self._dead_ttl = settings.dead_reply_ttl
        self._args = args = t.SharedArgs(
            settings.message_ttl,
            settings.awaited_message_ttl,
            settings.max_pending_ttl,
            settings.sent_message_ttl,
            limits.conversation_requests_max,
            limits.conversation_replies_max,
            b"" if senders is None else msgspec.json.encode(senders),
            self.holder,
        )
        self._create = runtime.batch(t.CREATE_REQUESTS, args)
        self._accept = runtime.batch(t.ACCEPT_REPLIES, args)
        self._check = runtime.batch(t.CHECK_REPLIES, args)
        self._sent = runtime.batch(t.REPORT_SENT, args)
        self._finish = runtime.batch(t.FINISH_REPLIES, args)
        self._take = runtime.batch(t.TAKE_REPLIES, args)
        self._await = runtime.batch(t.AWAIT_REPLIES, args)
        self._postpone = runtime.batch(t.POSTPONE_REPLIES, args)
        self._retire = runtime.batch(t.RETIRE_REPLIES, args)
        self._expire = runtime.batch(t.EXPIRE_REQUESTS, args)
        self._read = runtime.batch(t.READ_MESSAGES)
        self._acks = runtime.batch(t.READ_ACKS)

    # Accepting

    async def create_request(
        self, info: MinMessageInfo, origin: str, timestamp: int, corr: str
    ) -> tuple[str, int]:
        """('created' | 'duplicate', position)."""
        conversation_id, request_id = info.conversation_id, info.request_id
        partition = self.partition_of(conversation_id)
        self._ids.check("request", request_id)
        self._ids.check("origin", origin)
        self._ids.check_timestamp("request", timestamp)
        self._ids.check_optional("correlator", corr)
        item = t.RequestItem(conversation_id, origin, request_id, timestamp, corr, info.key())
        reply = await self._create.submit(partition, item, conversation_id)
        if reply == "taken":
            raise RequestTaken(
                f"request id {request_id!r} is in use in another conversation; a request id "
                "belongs to one conversation: use ids that are unique over all conversations"
            )
        if reply == "full":
            raise Overloaded("conversation_requests_max", self._limits.conversation_requests_max)
        return "created" if isinstance(reply, t.Created) else "duplicate", reply.position

    async def accept_reply(self, new: NewReply) -> AcceptResult:
        partition = self.partition_of(new.conversation_id)
        self._ids.check("request", new.request_id)
        self._ids.check("response", new.response_id)
        self._ids.check_optional("origin", new.origin)
        if new.required_sender:
            self._ids.check("sender", new.required_sender.partition(":")[2])
        self._ids.check_timestamp("response", new.response_timestamp)
        self._ids.check_optional("correlator", new.corr)
        info = MinMessageInfo(new.request_id, new.response_id, new.conversation_id)
        item = t.AcceptItem(
            new.conversation_id,
            new.request_id,
            new.response_id,
            new.response_timestamp,
            new.task,
            new.corr,
            info.key(),
            info.of_request().key(),
            new.hold,
            new.origin,
            new.required_sender,
        )
        reply = await self._accept.submit(partition, item, new.conversation_id, len(new.task))
        if isinstance(reply, t.Accepted):
            return AcceptResult(info, *reply)
        if reply != "duplicate":
            raise self._refusal(reply, new)
        return AcceptResult(info, 0, held=False, duplicate=True)

    def _refusal(self, status: str, new: NewReply) -> Exception:
        if status == "taken":
            return ReplyTaken(f"response {new.response_id!r} belongs to another request")
        if status == "wrong_conversation":
            return WrongConversation(f"request {new.request_id!r} is of another conversation")
        if status == "full":
            return Overloaded("conversation_replies_max", self._limits.conversation_replies_max)
        return RequestUnknown(f"request {new.request_id!r} does not exist or has expired")

    # Sending

    async def check_reply(self, info: MinMessageInfo, *, only_mine: bool = False) -> CanSend:
        """`only_mine`: 'send' only if this store holds the reply; its hold is then renewed if it
        would end soon. Otherwise 'gone'."""
        partition = self.partition_of(info.conversation_id)
        item = t.CheckItem(*_ids(info), info.key(), only_mine)
        reply = await self._check.submit(partition, item)
        if isinstance(reply, t.MaySend):
            return CanSend("send", info.response_id, hold_ms=reply.hold_ms)
        if isinstance(reply, t.BehindReply):
            first = MinMessageInfo.read(reply.member).response_id
            return CanSend("wait_response", first, None, reply.left_ms, reply.holder)
        if isinstance(reply, t.BehindRequest):
            return CanSend("wait_request", info.response_id, reply.request_key, reply.left_ms)
        return CanSend("gone")

    async def report_sent(self, info: MinMessageInfo, ack_id: str | None) -> str:
        """'sent' | 'ack_taken' (sent, but another reply has this ACK id) | 'repeated' | 'gone'."""
        if ack_id is not None:
            self._ids.check("ACK", ack_id)
        item = t.SentItem(info.conversation_id, info.response_id, info.key(), ack_id or "")
        status: str = await self._sent.submit(self.partition_of(info.conversation_id), item)
        return status

    async def finish(
        self, info: MinMessageInfo, reason: FinishReason, ack_id: str | None = None
    ) -> tuple[str, MinMessageInfo | None]:
        """('delivered' | 'cancelled' | 'gone', the next reply if this store holds it)."""
        item = t.FinishItem(*_ids(info), info.key(), reason, ack_id or "")
        reply = await self._finish.submit(self.partition_of(info.conversation_id), item)
        if reply == "gone":
            return "gone", None
        status = "delivered" if isinstance(reply, t.Delivered) else "cancelled"
        return status, read_next(reply.next_member)

    # Claiming and taking

    async def claim_awaited(self, partition: int, most: int) -> Claim:
        """The due replies; the claim covers them until it expires."""
        (reply,) = await self._run(t.CLAIM_AWAITED, partition, t.Most(most))
        due_in_ms = None if not reply.next_due else round(reply.next_due * 1000) - reply.now_ms
        return Claim(reply.claim, read_infos(reply.members), due_in_ms)

    async def pop_waiting(self, partition: int, most: int) -> list[MinMessageInfo]:
        """Replies that wait for a sender of this process; take them with the claim `WAITING`."""
        (reply,) = await self._run(t.POP_WAITING, partition, t.Most(most))
        return read_infos(reply.members)

    async def take(self, infos: Sequence[MinMessageInfo], claim: str) -> list[TakeResult]:
        replies = await asyncio.gather(
            *(
                self._take.submit(
                    self.partition_of(info.conversation_id),
                    t.TakeItem(*_ids(info), info.key(), claim),
                )
                for info in infos
            )
        )
        return [read_take_result(*pair) for pair in zip(infos, replies, strict=True)]

    # Waiting, expiring and cancelling

    async def await_replies(
        self,
        infos: Iterable[MinMessageInfo],
        wait_ms: int,
        retry_ms: int,
        why: str,
        *,
        tried: bool = True,
    ) -> list[str]:
        """Give replies back: 'awaited' | 'sent' | 'held' (by another) | 'gone', each.

        `retry_ms` is waited for each retry so far. `tried`: sending was attempted and failed, which
        counts as a retry of the conversation's first reply.
        """
        why = valid_text(why)
        replies = await asyncio.gather(
            *(
                self._await.submit(
                    self.partition_of(info.conversation_id),
                    t.AwaitItem(
                        info.conversation_id, info.response_id, info.key(), wait_ms, retry_ms, why,
                        tried,
                    ),
                )
                for info in infos
            )
        )  # fmt: skip
        words = {t.DueAt: "awaited", t.HeldBy: "held"}
        return [words.get(type(reply)) or reply for reply in replies]

    async def postpone(
        self, info: MinMessageInfo, wait_ms: int, retry_ms: int, *, renew_only: bool = False
    ) -> str:
        """'renewed' (this store holds it) | 'postponed' | 'held' (by another) | 'sent' | 'gone'."""
        item = t.PostponeItem(
            info.conversation_id, info.response_id, info.key(), wait_ms, retry_ms, renew_only
        )
        reply = await self._postpone.submit(self.partition_of(info.conversation_id), item)
        words = {t.Renewed: "renewed", t.DueAt: "postponed", t.HeldBy: "held"}
        return words.get(type(reply)) or str(reply)

    async def renew(self, infos: Iterable[MinMessageInfo]) -> list[str]:
        """Renew holds: 'renewed', or why this store does not hold the reply any more."""
        return await asyncio.gather(*(self.postpone(info, 0, 0, renew_only=True) for info in infos))

    async def retire(self, info: MinMessageInfo, after_ms: int) -> str:
        item = t.RetireItem(info.conversation_id, info.response_id, info.key(), after_ms)
        reply = await self._retire.submit(self.partition_of(info.conversation_id), item)
        return "gone" if reply == "gone" else "retiring"

    async def expire_requests(self, partition: int, most: int) -> int:
        """End the requests that expired without a reply; the number of them."""
        (expired,) = await self._run(t.LIST_EXPIRED_REQUESTS, partition, t.Most(most))
        replies = await asyncio.gather(
            *(
                self._expire.submit(
                    partition, t.ExpireItem(info.conversation_id, info.request_id, info.key())
                )
                for info in read_infos(expired.members)
            )
        )
        return replies.count("expired")

    async def cancel(
        self,
        request: MinMessageInfo,
        replies: Sequence[MinMessageInfo],
        options: CancelOptions,
        *,
        whole_group: bool,
    ) -> tuple[int, MinMessageInfo | None] | None:
        """Number of cancelled replies, and the next reply if this store holds it.

        None if the group has grown since it was listed. `request` has no response id; `replies`
        has the last reply first.
        """
        args = t.CancelArgs(
            *self._args,
            request.conversation_id,
            request.request_id,
            request.key(),
            replies[0].key() if replies else b"",
            options.close,
            whole_group,
            check_text(options.status, "status"),
            check_text(options.except_origin, "origin"),
            valid_text(options.why),
            self._dead_ttl if options.dead else 0,
            self._limits.conversation_dead_replies_max,
        )
        items = [t.CancelItem(info.response_id, info.key()) for info in replies]
        partition = self.partition_of(request.conversation_id)
        reply = await self._runtime.call(t.CANCEL_REPLIES, partition, args, items)
        return None if reply == "again" else (reply.cancelled, read_next(reply.next_member))

    # Reading

    async def siblings(
        self, info: MinMessageInfo, most: int = SIBLINGS_MAX, *, last_first: bool = False
    ) -> list[MinMessageInfo]:
        """Replies in flight to the same request. `info` may lack the response id."""
        member = info.key() if info.response_id else b""
        item = t.SiblingsItem(info.conversation_id, info.request_id, member, most, last_first)
        (reply,) = await self._run(t.LIST_SIBLINGS, self.partition_of(info.conversation_id), item)
        return read_infos(reply.members)

    async def read_reply(
        self, response_id: str, conversation_id: str | None
    ) -> ConversationMessage | None:
        """Without a conversation id, every partition is asked."""
        self._ids.check("response", response_id)
        return await self._read_message(t.MessageItem("", response_id), conversation_id)

    async def read_request(
        self, request_id: str, conversation_id: str | None
    ) -> ConversationMessage | None:
        """Without a conversation id, every partition is asked."""
        self._ids.check("request", request_id)
        return await self._read_message(t.MessageItem(request_id, ""), conversation_id)

    async def read_by_key(self, key: str) -> ConversationMessage | None:
        """The reply whose hash has this key in Redis."""
        found = self._runtime.keyspace.explain(key)
        if found is None or found.key is not keys.CONVERSATION_RESPONSE:
            raise IdRefused(f"{key!r} is not the key of a reply in Redis")
        return _message(
            await self._read.submit(found.partition, t.MessageItem("", found.part or ""))
        )

    async def find_ack(self, ack_id: str, conversation_id: str | None) -> MinMessageInfo | None:
        """The reply that the client acknowledges by this id."""
        self._ids.check("ACK", ack_id)
        partitions = self._partitions_of(conversation_id)
        replies = await asyncio.gather(
            *(self._acks.submit(partition, t.AckItem(ack_id)) for partition in partitions)
        )
        found = read_infos(reply.member for reply in replies if reply != "unknown")
        matching = (info for info in found if conversation_id in (None, info.conversation_id))
        return next(matching, None)

    async def snapshot(self, conversation_id: str, most: int) -> ConversationSnapshot:
        """The first requests and replies of a conversation in order, with each reply's state."""
        partition = self.partition_of(conversation_id)
        (found,) = await self._run(
            t.DESCRIBE_CONVERSATION, partition, t.DescribeItem(conversation_id, most)
        )
        rows = [(info, row) for row in found.replies for info in read_infos([row.member])]
        stored = await self._statuses([info for info, _ in rows], partition)
        prefix = len(self._name(keys.CONVERSATION_REQUEST, partition, ""))
        return ConversationSnapshot(
            found.now_ms,
            found.requests_total,
            found.replies_total,
            [OpenRequest(row.key[prefix:], *row[1:]) for row in found.requests],
            [
                read_queued(info, row, fields)
                for (info, row), fields in zip(rows, stored, strict=True)
            ],
        )

    async def in_flight(self, partition: int) -> tuple[int, int]:
        """Counts: replies in flight, requests without a reply."""
        pending = self._name(keys.PENDING_MESSAGES, partition)
        opened = self._name(keys.OPEN_REQUESTS, partition)
        replies, requests = await self._runtime.redis.execute(
            [("ZCARD", pending), ("ZCARD", opened)], key=pending, repeatable=True
        )
        return replies, requests

    async def sender_waits(
        self, partition: int, most: int = SENDER_WAITS_MAX
    ) -> tuple[int, list[SenderWait]]:
        """Redis time (ms), and the replies that wait for a process with their sender."""
        (found,) = await self._run(t.LIST_SENDER_WAITS, partition, t.Most(most))
        return found.now_ms, read_sender_waits(found.rows)

    async def running_senders(self) -> Mapping[str, int]:
        """Sender name → number of running processes that have it, from their reports."""
        found: dict[str, int] = {}
        for process in await read_processes(self._runtime):
            with contextlib.suppress(msgspec.MsgspecError):
                names = process.figures.get("senders", "[]")
                for name in msgspec.json.decode(str(names), type=tuple[str, ...]):
                    found[name] = found.get(name, 0) + 1
        return found

    async def waiting(
        self, kind: WaitingKind, partition: int, first: int, count: int
    ) -> list[WaitingEntry]:
        """A page of what waits, the earliest time first."""
        name = self._name(_WAITING_KEYS[kind], partition)
        found = await self._runtime.redis.call(
            "ZRANGE", name, first, first + count - 1, "WITHSCORES", key=name
        )
        return [
            WaitingEntry(info, int(float(score) * 1000))
            for member, score in zip(found[::2], found[1::2], strict=True)
            for info in read_infos([member])
        ]

    async def _read_message(
        self, item: t.MessageItem, conversation_id: str | None
    ) -> ConversationMessage | None:
        partitions = self._partitions_of(conversation_id)
        for reply in await asyncio.gather(*(self._read.submit(p, item) for p in partitions)):
            message = _message(reply)
            # The id may be in use in another conversation of the partition.
            if message and conversation_id in (None, message.conversation_id):
                return message
        return None

    async def _statuses(
        self, infos: Sequence[MinMessageInfo], partition: int
    ) -> Sequence[Sequence[bytes | None]]:
        """Status and retries of each reply, without its task: a task may have megabytes."""
        if not infos:
            return []
        names = [self._name(keys.CONVERSATION_RESPONSE, partition, i.response_id) for i in infos]
        commands: list[Command] = [("HMGET", name, "status", "awaitedRetries") for name in names]
        return await self._runtime.redis.execute(commands, key=names[0], repeatable=True)

    def _partitions_of(self, conversation_id: str | None) -> Iterable[int]:
        return self.partitions if conversation_id is None else [self.partition_of(conversation_id)]

    async def _run(self, transition: Transition[Item], partition: int, item: Item) -> Any:
        return await self._runtime.call(transition, partition, self._args, [item])


def _ids(info: MinMessageInfo) -> tuple[str, str, str]:
    return info.conversation_id, info.request_id, info.response_id


def _message(reply: t.Fields | str) -> ConversationMessage | None:
    return read_message(reply.fields) if isinstance(reply, t.Fields) else None
