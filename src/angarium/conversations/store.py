"""The module's transitions: the only place that knows its keys and calls its scripts.

Everything of a conversation lives in the partition of its id. What the scripts answer becomes a
value or an error here, in one place. No decisions are made here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from angarium.conversations.errors import (
    IdRefused,
    ReplyTaken,
    RequestTaken,
    RequestUnknown,
    WrongConversation,
)
from angarium.conversations.model import (
    CanSend,
    ConversationMessage,
    MinMessageInfo,
    read_message,
)
from angarium.conversations.script_values import (
    AcceptResult,
    CancelOptions,
    ConversationSnapshot,
    FinishReason,
    NewReply,
    TakeResult,
    read_infos,
    read_next,
    read_outcome,
    read_queued,
    read_sender_waits,
)
from angarium.conversations.sender_registry import SenderRegistry
from angarium.conversations.wait_reasons import OpenRequest, SenderWait
from angarium.redis.connection import Argument, Command
from angarium.redis.scripts import Script
from angarium.runtime import keyspace as keys
from angarium.runtime.batching import BatchItem
from angarium.runtime.errors import InputInvalid, Overloaded
from angarium.runtime.keys.key import Shape
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of
from angarium.runtime.text import check_text, valid_text


def _load(name: str) -> Script:
    return load_script("angarium.conversations", name)


CREATE_REQUESTS = _load("create_requests")
ACCEPT_REPLIES = _load("accept_replies")
CHECK_REPLIES = _load("check_replies")
REPORT_SENT = _load("report_sent")
FINISH_REPLIES = _load("finish_replies")
CLAIM_AWAITED = _load("claim_awaited")
POP_NEW = _load("pop_new")
POP_WAITING = _load("pop_waiting")
TAKE_REPLIES = _load("take_replies")
AWAIT_REPLIES = _load("await_replies")
CANCEL_REPLIES = _load("cancel_replies")
POSTPONE_REPLIES = _load("postpone_replies")
RETIRE_REPLIES = _load("retire_replies")
LIST_OVERDUE = _load("list_overdue")
EXPIRE_REQUESTS = _load("expire_requests")
LIST_SIBLINGS = _load("list_siblings")
READ_MESSAGES = _load("read_messages")
READ_ACKS = _load("read_acks")
DESCRIBE_CONVERSATION = _load("describe_conversation")
LIST_NEEDS = _load("list_needs")

# One script call holds up Redis for as long as it runs; a group larger than this leaves in parts.
GROUP_PART = 500
HINT_DUE = b'{"due":true}'
# The claim of what `pop_waiting` gave.
WAITING = "waiting"
NEEDS_MAX = 100  # senders that are waited for, listed for people
TIMESTAMP_MAX = 2**53  # numbers are exact up to here in Redis' scripts
IDS_REMEMBERED = 16_384  # checked ids; a conversation comes back many times


class ConversationStore:
    def __init__(self, runtime: Runtime, senders: Sequence[str] | None = None) -> None:
        """`senders` are those of the process that takes replies here; None can send any."""
        self._runtime = runtime
        # Set while processes run that do not look for their replies by sender.
        self.older_beside = False
        self.senders = SenderRegistry(runtime)
        self._name = runtime.keyspace.name
        self._partition_of = runtime.keyspace.partition_of
        self.partitions = range(runtime.settings.partitions)
        settings, limits = runtime.settings.conversations, runtime.settings.limits
        self.wake_channel = runtime.keyspace.global_name(keys.CONVERSATIONS_WAKE)
        self._args: tuple[Argument, ...] = (
            settings.message_ttl,
            settings.awaited_message_ttl,
            settings.max_pending_ttl,
            settings.sent_message_ttl,
            self.wake_channel,
            limits.conversation_requests_max,
            limits.conversation_replies_max,
            "" if senders is None else msgspec.json.encode(senders),
        )
        self._shared = [
            [
                self._name(keys.PENDING_MESSAGES, partition),
                self._name(keys.OPEN_REQUESTS, partition),
                self._name(keys.NEW_MESSAGES, partition),
                self._name(keys.WAITING_SENDER, partition, ""),
            ]
            for partition in self.partitions
        ]
        self._id_bytes_max = limits.id_bytes_max
        self._request_head = [
            len(self._name(keys.CONVERSATION_REQUEST, partition, ""))
            for partition in self.partitions
        ]
        self._words = self._reserved_words()
        self._check_conversation = lru_cache(IDS_REMEMBERED)(self._conversation_partition)
        batched = self._batched
        self._create = batched(CREATE_REQUESTS)
        self._accept = batched(ACCEPT_REPLIES)
        self._check = batched(CHECK_REPLIES)
        self._sent = batched(REPORT_SENT)
        self._finish = batched(FINISH_REPLIES)
        self._take = batched(TAKE_REPLIES)
        self._await = batched(AWAIT_REPLIES)
        self._postpone = batched(POSTPONE_REPLIES)
        self._retire = batched(RETIRE_REPLIES)
        self._expire = batched(EXPIRE_REQUESTS)
        self._read = batched(READ_MESSAGES)
        self._acks = batched(READ_ACKS)

    # Names

    def partition_of(self, conversation_id: str) -> int:
        """The partition, once the id is known to be fit for a name."""
        return self._check_conversation(conversation_id)

    def _conversation_partition(self, conversation_id: str) -> int:
        self.check_id("conversation", conversation_id)
        partition = self._partition_of(conversation_id)
        if ":" in conversation_id or conversation_id in self._words:
            self._refuse_spelling(conversation_id, partition)
        return partition

    def _refuse_spelling(self, conversation_id: str, partition: int) -> None:
        for key in (
            keys.CONVERSATION_RESPONSES,
            keys.CONVERSATION_REQUESTS,
            keys.CONVERSATION_ORDER,
        ):
            name = self._name(key, partition, conversation_id)
            found = self._runtime.keyspace.explain(name)
            if found is None or found.key is not key:
                spelled = "another key" if found is None else f"a key of «{found.key.name}»"
                raise IdRefused(f"conversation id {conversation_id!r} would spell {spelled}")

    def _reserved_words(self) -> frozenset[str]:
        """What stands first behind the module's prefix in any key's name.

        An id without a colon can spell another key only by being one of these.
        """
        head = self._name(keys.CONVERSATION_RESPONSES, 0, "")
        names = (
            self._name(key, 0, *("",) * Shape.of(key.name).parts)
            for key in keys.KEYS
            if key.scope is keys.Scope.PARTITION
        )
        return frozenset(
            name.removeprefix(head).partition(":")[0] for name in names if name.startswith(head)
        )

    def check_id(self, what: str, value: str) -> None:
        try:
            size = len(check_text(value, f"{what} id {value!r}").encode())
        except InputInvalid as error:
            raise IdRefused(str(error)) from None
        if not 0 < size <= self._id_bytes_max:
            raise IdRefused(f"a {what} id has 1 to {self._id_bytes_max} bytes, not {size}")

    def check_corr(self, corr: str) -> None:
        if corr:
            self.check_id("correlator", corr)

    def check_timestamp(self, what: str, value: int) -> None:
        if type(value) is not int or not 0 <= value <= TIMESTAMP_MAX:
            raise InputInvalid(f"a {what} timestamp is a whole number of ms, not {value!r}")

    def request_id_of(self, request_key: str, partition: int) -> str:
        return request_key[self._request_head[partition] :]

    # Requests and replies come in

    async def create_request(
        self, info: MinMessageInfo, origin: str, timestamp: int, corr: str
    ) -> tuple[str, int]:
        """('created' | 'duplicate', position)."""
        conversation_id = info.conversation_id
        partition = self.partition_of(conversation_id)
        self.check_id("request", info.request_id)
        self.check_id("origin", origin)
        self.check_timestamp("request", timestamp)
        self.check_corr(corr)
        item: BatchItem = (
            (
                self._name(keys.CONVERSATION_REQUEST, partition, info.request_id),
                self._name(keys.CONVERSATION_REQUESTS, partition, conversation_id),
                self._name(keys.CONVERSATION_ORDER, partition, conversation_id),
            ),
            (conversation_id, origin, info.request_id, timestamp, corr, info.key()),
        )
        reply = await self._create.submit(partition, item, conversation_id)
        status = status_of(reply)
        if status == "taken":
            raise RequestTaken(f"request {info.request_id!r} belongs to another conversation")
        if status == "full":
            raise Overloaded("conversation_requests_max", int(self._args[5]))
        return status, int(reply[1])

    async def accept_reply(self, new: NewReply) -> AcceptResult:
        """One that is far behind in its conversation is not held, though asked for."""
        partition = self.partition_of(new.conversation_id)
        self.check_id("request", new.request_id)
        self.check_id("response", new.response_id)
        if new.origin:
            self.check_id("origin", new.origin)
        if new.need:
            self.check_id("sender", new.need.partition(":")[2])
        self.check_timestamp("response", new.response_timestamp)
        self.check_corr(new.corr)
        info = MinMessageInfo(new.request_id, new.response_id, new.conversation_id)
        of_request = MinMessageInfo(new.request_id, "", new.conversation_id)
        name, conversation_id = self._name, new.conversation_id
        item: BatchItem = (
            (
                name(keys.CONVERSATION_REQUEST, partition, new.request_id),
                name(keys.CONVERSATION_RESPONSE, partition, new.response_id),
                name(keys.CONVERSATION_REQUESTS, partition, conversation_id),
                name(keys.CONVERSATION_RESPONSES, partition, conversation_id),
                name(keys.CONVERSATION_ORDER, partition, conversation_id),
            ),
            (
                conversation_id,
                new.request_id,
                new.response_id,
                new.response_timestamp,
                new.task,
                new.corr,
                info.key(),
                of_request.key(),
                1 if new.held else 0,
                new.origin,
                new.need,
            ),
        )
        reply = await self._accept.submit(partition, item, conversation_id, len(new.task))
        status = status_of(reply)
        if status == "accepted":
            return AcceptResult(
                info, int(reply[1]), reply[2] == 1, reply[3].decode(), int(reply[4])
            )
        if status != "duplicate":
            raise self._refusal(status, new)
        return AcceptResult(info, 0, held=False, duplicate=True)

    def _refusal(self, status: str, new: NewReply) -> Exception:
        if status == "taken":
            return ReplyTaken(f"response {new.response_id!r} belongs to another request")
        if status == "wrong_conversation":
            return WrongConversation(f"request {new.request_id!r} is of another conversation")
        if status == "full":
            return Overloaded("conversation_replies_max", int(self._args[6]))
        return RequestUnknown(f"there is no request {new.request_id!r}, or its time is over")

    # Replies leave

    async def check_reply(self, info: MinMessageInfo, *, only_mine: bool = False) -> CanSend:
        """`only_mine`: 'gone' as well when another process holds it by now."""
        conversation_id = info.conversation_id
        partition = self.partition_of(conversation_id)
        item: BatchItem = (
            (
                self._name(keys.CONVERSATION_REQUEST, partition, info.request_id),
                self._name(keys.CONVERSATION_REQUESTS, partition, conversation_id),
                self._name(keys.CONVERSATION_RESPONSES, partition, conversation_id),
                self._name(keys.CONVERSATION_ORDER, partition, conversation_id),
            ),
            (conversation_id, info.key(), 1 if only_mine else 0),
        )
        reply = await self._check.submit(partition, item)
        status: Any = status_of(reply)
        if status == "send":
            return CanSend("send", info.response_id)
        if status == "wait_response":
            first = MinMessageInfo.read(reply[1]).response_id
            return CanSend(status, first, None, int(reply[2]), reply[3].decode())
        if status == "wait_request":
            return CanSend(status, None, reply[1].decode(), int(reply[2]))
        return CanSend("gone")

    async def report_sent(self, info: MinMessageInfo, ack_id: str | None) -> str:
        """'sent' | 'ack_taken': sent, but the ACK's id is another's | 'repeated' | 'gone'."""
        if ack_id is not None:
            self.check_id("ACK", ack_id)
        partition = self.partition_of(info.conversation_id)
        name = self._name
        item: BatchItem = (
            (
                name(keys.CONVERSATION_RESPONSE, partition, info.response_id),
                name(keys.CONVERSATION_RESPONSES, partition, info.conversation_id),
                name(keys.CONVERSATION_ORDER, partition, info.conversation_id),
                name(keys.ASYNC_REQUEST, partition, ack_id or ""),
            ),
            (info.conversation_id, info.response_id, info.key(), ack_id or ""),
        )
        reply = await self._sent.submit(partition, item)
        return status_of(reply)

    async def finish(
        self, info: MinMessageInfo, how: FinishReason, ack_id: str | None = None
    ) -> tuple[str, MinMessageInfo | None]:
        """('delivered' | 'cancelled' | 'gone', the next reply if this process holds it)."""
        partition = self.partition_of(info.conversation_id)
        name = self._name
        item: BatchItem = (
            (
                *self._reply_keys(info, partition),
                name(keys.ASYNC_REQUEST, partition, ack_id or ""),
            ),
            (info.conversation_id, info.response_id, info.key(), how),
        )
        reply = await self._finish.submit(partition, item)
        status = status_of(reply)
        return status, read_next(reply) if status != "gone" else None

    # Replies are claimed

    async def claim_awaited(self, partition: int, most: int) -> tuple[str, list[MinMessageInfo]]:
        """The claim, and the due replies that are ours as long as it lasts."""
        reply = await self._run(CLAIM_AWAITED, partition, (), (most,))
        return reply[0].decode(), read_infos(reply[1:])

    async def pop_new(self, partition: int, most: int) -> list[MinMessageInfo]:
        return read_infos(await self._run(POP_NEW, partition, (), (most,)))

    async def pop_waiting(self, partition: int, most: int) -> list[MinMessageInfo]:
        """Those that wait for one of this process's senders; to be taken with `WAITING`."""
        return read_infos(await self._run(POP_WAITING, partition, (), (most,)))

    async def take(self, infos: Sequence[MinMessageInfo], claim: str = "") -> list[TakeResult]:
        waiting, older = [], 1 if self.older_beside else 0
        for info in infos:
            partition = self.partition_of(info.conversation_id)
            item: BatchItem = (
                self._reply_keys(info, partition),
                (info.conversation_id, info.key(), claim, older),
            )
            waiting.append(self._take.submit(partition, item))
        replies = await asyncio.gather(*waiting)
        return [read_outcome(*pair) for pair in zip(infos, replies, strict=True)]

    async def hint_due(self) -> None:
        """Tell the others that something can be claimed; they would find it at their next turn."""
        await self._runtime.redis.call("PUBLISH", self.wake_channel, HINT_DUE)

    async def expire_requests(self, partition: int, most: int) -> int:
        name = self._name
        waiting = []
        for info in read_infos(await self._run(LIST_OVERDUE, partition, (), (most,))):
            item: BatchItem = (
                (
                    name(keys.CONVERSATION_REQUEST, partition, info.request_id),
                    name(keys.CONVERSATION_REQUESTS, partition, info.conversation_id),
                    name(keys.CONVERSATION_ORDER, partition, info.conversation_id),
                ),
                (info.conversation_id, info.request_id, info.key()),
            )
            waiting.append(self._expire.submit(partition, item))
        return sum(status_of(reply) == "expired" for reply in await asyncio.gather(*waiting))

    async def in_flight(self, partition: int) -> tuple[int, int, int]:
        """Replies in flight, requests without a reply, replies that nobody holds yet."""
        pending, opened, new, _ = self._shared[partition]
        replies, requests, fresh = await self._runtime.redis.execute(
            [("ZCARD", pending), ("ZCARD", opened), ("LLEN", new)], key=pending, repeatable=True
        )
        return replies, requests, fresh

    async def needs(self, partition: int, most: int = NEEDS_MAX) -> tuple[int, list[SenderWait]]:
        """Now (ms), and what waits for a process with its sender."""
        return read_sender_waits(await self._run(LIST_NEEDS, partition, (), (most,)))

    # Replies wait, are put off or are given up

    async def await_replies(
        self,
        infos: Iterable[MinMessageInfo],
        wait_ms: int,
        per_retry_ms: int,
        why: str,
        *,
        tried: bool = True,
    ) -> list[str]:
        """`tried`: sending it has failed, so that the next time is a retry."""
        waiting, why = [], valid_text(why)
        for info in infos:
            partition = self.partition_of(info.conversation_id)
            item: BatchItem = (
                self._place_keys(info, partition),
                (
                    info.conversation_id, info.response_id, info.key(), wait_ms, per_retry_ms, why,
                    0 if tried else 1,
                ),
            )  # fmt: skip
            waiting.append(self._await.submit(partition, item))
        return [status_of(reply) for reply in await asyncio.gather(*waiting)]

    async def postpone(self, info: MinMessageInfo, wait_ms: int, per_retry_ms: int) -> str:
        partition = self.partition_of(info.conversation_id)
        item: BatchItem = (
            self._place_keys(info, partition), (info.key(), wait_ms, per_retry_ms)
        )  # fmt: skip
        return status_of(await self._postpone.submit(partition, item))

    async def retire(self, info: MinMessageInfo, after_ms: int) -> str:
        partition = self.partition_of(info.conversation_id)
        item: BatchItem = (self._place_keys(info, partition), (info.key(), after_ms))
        return status_of(await self._retire.submit(partition, item))

    async def cancel(
        self,
        request: MinMessageInfo,
        replies: Sequence[MinMessageInfo],
        what: CancelOptions,
        *,
        whole_group: bool,
    ) -> tuple[int, MinMessageInfo | None] | None:
        """How many went, and the next reply if ours; None when the group has grown meanwhile.

        `request` has no response id; `replies` are listed the last first.
        """
        conversation_id = request.conversation_id
        partition = self.partition_of(conversation_id)
        name = self._name
        names = [
            name(keys.CONVERSATION_REQUEST, partition, request.request_id),
            name(keys.CONVERSATION_REQUESTS, partition, conversation_id),
            name(keys.CONVERSATION_RESPONSES, partition, conversation_id),
            name(keys.CONVERSATION_ORDER, partition, conversation_id),
        ]
        for info in replies:
            names.append(name(keys.CONVERSATION_RESPONSE, partition, info.response_id))
        args: tuple[Argument, ...] = (
            len(replies),
            conversation_id,
            request.request_id,
            request.key(),
            1 if what.close else 0,
            1 if whole_group else 0,
            check_text(what.status, "status"),
            check_text(what.except_origin, "origin"),
            valid_text(what.why),
            *(info.key() for info in replies),
        )
        reply = await self._run(CANCEL_REPLIES, partition, names, args)
        if status_of(reply) == "again":
            return None
        return int(reply[1]), MinMessageInfo.read(reply[2]) if reply[2] else None

    # Looking

    async def siblings(
        self, info: MinMessageInfo, most: int = GROUP_PART, *, last_first: bool = False
    ) -> list[MinMessageInfo]:
        """Replies in flight of the same request; without a response id, of that request."""
        partition = self.partition_of(info.conversation_id)
        names = [
            self._name(keys.CONVERSATION_REQUEST, partition, info.request_id),
            self._name(keys.CONVERSATION_RESPONSES, partition, info.conversation_id),
        ]
        args: tuple[Argument, ...] = (
            most,
            info.key() if info.response_id else "",
            1 if last_first else 0,
        )
        return read_infos(await self._run(LIST_SIBLINGS, partition, names, args))

    async def read_reply(
        self, response_id: str, conversation_id: str | None
    ) -> ConversationMessage | None:
        """Without a conversation every partition is asked."""
        self.check_id("response", response_id)
        found = await self._ask(keys.CONVERSATION_RESPONSE, response_id, conversation_id)
        return self._of_conversation(found, conversation_id)

    async def read_request(
        self, request_id: str, conversation_id: str | None
    ) -> ConversationMessage | None:
        self.check_id("request", request_id)
        found = await self._ask(keys.CONVERSATION_REQUEST, request_id, conversation_id)
        return self._of_conversation(found, conversation_id)

    async def read_named(self, key: str) -> ConversationMessage | None:
        """The reply whose hash has this name in Redis."""
        found = self._runtime.keyspace.explain(key)
        if found is None or found.key is not keys.CONVERSATION_RESPONSE:
            raise IdRefused(f"{key!r} is not the name of a reply in Redis")
        item: BatchItem = ((key,), ())
        return read_message(await self._read.submit(found.partition, item))

    async def find_ack(self, ack_id: str, conversation_id: str | None) -> MinMessageInfo | None:
        self.check_id("ACK", ack_id)
        partitions = self._where(conversation_id)
        replies = await asyncio.gather(
            *(
                self._acks.submit(p, ((self._name(keys.ASYNC_REQUEST, p, ack_id),), ()))
                for p in partitions
            )
        )
        found = read_infos(reply[1] for reply in replies if status_of(reply) == "found")
        wanted = (info for info in found if conversation_id in (None, info.conversation_id))
        return next(wanted, None)

    async def snapshot(self, conversation_id: str, most: int) -> ConversationSnapshot:
        """A conversation's order, and the state of each reply in it."""
        partition = self.partition_of(conversation_id)
        names = [
            self._name(keys.CONVERSATION_REQUESTS, partition, conversation_id),
            self._name(keys.CONVERSATION_RESPONSES, partition, conversation_id),
            self._name(keys.CONVERSATION_ORDER, partition, conversation_id),
        ]
        reply = await self._run(DESCRIBE_CONVERSATION, partition, names, (most,))
        now_ms, requests_total, replies_total, requests, replies = reply
        rows = [replies[number : number + 8] for number in range(0, len(replies), 8)]
        infos = read_infos(row[0] for row in rows)
        stored = await self._states(infos, partition)
        return ConversationSnapshot(
            int(now_ms),
            requests_total,
            replies_total,
            [
                OpenRequest(
                    self.request_id_of(requests[n].decode(), partition),
                    int(requests[n + 1]),
                    int(requests[n + 2]),
                    requests[n + 3] == 1,
                )
                for n in range(0, len(requests), 4)
            ],
            [
                read_queued(info, row, fields)
                for info, row, fields in zip(infos, rows, stored, strict=True)
            ],
        )

    async def _states(
        self, infos: Sequence[MinMessageInfo], partition: int
    ) -> Sequence[Sequence[bytes | None]]:
        """Without their tasks, of which each may have megabytes."""
        if not infos:
            return []
        name = self._name
        commands: list[Command] = [
            (
                "HMGET",
                name(keys.CONVERSATION_RESPONSE, partition, info.response_id),
                "status",
                "awaitedRetries",
            )
            for info in infos
        ]
        return await self._runtime.redis.execute(
            commands, key=self._shared[partition][0], repeatable=True
        )

    # Plumbing

    def _batched(self, script: Script) -> Any:
        return self._runtime.batched(script, self._shared.__getitem__, self._args)

    async def _run(
        self, script: Script, partition: int, names: Sequence[str], args: Sequence[Argument]
    ) -> Any:
        return await self._runtime.run(
            script, partition, [*self._shared[partition], *names], [*self._args, *args]
        )

    def _reply_keys(self, info: MinMessageInfo, partition: int) -> tuple[str, ...]:
        name, conversation_id = self._name, info.conversation_id
        return (
            name(keys.CONVERSATION_REQUEST, partition, info.request_id),
            name(keys.CONVERSATION_RESPONSE, partition, info.response_id),
            name(keys.CONVERSATION_REQUESTS, partition, conversation_id),
            name(keys.CONVERSATION_RESPONSES, partition, conversation_id),
            name(keys.CONVERSATION_ORDER, partition, conversation_id),
        )

    def _place_keys(self, info: MinMessageInfo, partition: int) -> tuple[str, ...]:
        return (
            self._name(keys.CONVERSATION_RESPONSE, partition, info.response_id),
            self._name(keys.CONVERSATION_RESPONSES, partition, info.conversation_id),
            self._name(keys.CONVERSATION_ORDER, partition, info.conversation_id),
        )

    def _where(self, conversation_id: str | None) -> Iterable[int]:
        return self.partitions if conversation_id is None else [self.partition_of(conversation_id)]

    @staticmethod
    def _of_conversation(
        found: Iterable[Any], conversation_id: str | None
    ) -> ConversationMessage | None:
        """A partition knows an id once, which may be that of another conversation."""
        for fields in found:
            message = read_message(fields)
            if message and conversation_id in (None, message.conversation_id):
                return message
        return None

    async def _ask(self, key: keys.Key, part: str, conversation_id: str | None) -> Sequence[Any]:
        return await asyncio.gather(
            *(
                self._read.submit(partition, ((self._name(key, partition, part),), ()))
                for partition in self._where(conversation_id)
            )
        )
