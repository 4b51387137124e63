"""The transitions of requests and replies: one method for each script that writes.

All keys of a conversation are in the partition of its id. A method turns the script's reply into a
value or an error; it makes no decision of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from angarium.conversations import keys
from angarium.conversations.errors import (
    ReplyTaken,
    RequestTaken,
    RequestUnknown,
    WrongConversation,
)
from angarium.conversations.limits import ConversationsLimits
from angarium.conversations.model import CanSend, MinMessageInfo
from angarium.conversations.queries import ConversationQueries
from angarium.conversations.script_calls import load
from angarium.conversations.script_values import (
    AcceptResult,
    CancelOptions,
    FinishReason,
    NewReply,
    TakeResult,
    read_infos,
    read_next,
    read_take_result,
)
from angarium.redis.connection import Argument
from angarium.runtime.batching import BatchItem
from angarium.runtime.errors import Overloaded
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import status_of
from angarium.runtime.text import check_text, valid_text

CREATE_REQUESTS = load("create_requests")
ACCEPT_REPLIES = load("accept_replies")
CHECK_REPLIES = load("check_replies")
REPORT_SENT = load("report_sent")
FINISH_REPLIES = load("finish_replies")
CLAIM_AWAITED = load("claim_awaited")
POP_NEW = load("pop_new")
POP_WAITING = load("pop_waiting")
TAKE_REPLIES = load("take_replies")
AWAIT_REPLIES = load("await_replies")
CANCEL_REPLIES = load("cancel_replies")
POSTPONE_REPLIES = load("postpone_replies")
RETIRE_REPLIES = load("retire_replies")
LIST_EXPIRED_REQUESTS = load("list_expired_requests")
EXPIRE_REQUESTS = load("expire_requests")

HINT_DUE = b'{"due":true}'
# The claim on replies that `pop_waiting` returned.
WAITING = "waiting"


class ConversationStore(ConversationQueries):
    def __init__(self, runtime: Runtime, senders: Sequence[str] | None = None) -> None:
        """`senders`: names of the senders this process has; None takes replies of any sender."""
        super().__init__(runtime, senders)
        self.wake_channel = self._calls.wake_channel
        # True while a process of 0.1.0 runs: it does not find replies by their sender.
        self.old_version_runs = False
        limits = runtime.settings.limits_of(ConversationsLimits)
        self._requests_max = limits.conversation_requests_max
        self._replies_max = limits.conversation_replies_max
        batched = self._calls.batched
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

    # Accepting

    async def create_request(
        self, info: MinMessageInfo, origin: str, timestamp: int, corr: str
    ) -> tuple[str, int]:
        """('created' | 'duplicate', position)."""
        conversation_id = info.conversation_id
        partition = self.partition_of(conversation_id)
        self._ids.check("request", info.request_id)
        self._ids.check("origin", origin)
        self._ids.check_timestamp("request", timestamp)
        self._ids.check_optional("correlator", corr)
        item: BatchItem = (
            self._calls.request_keys(info, partition),
            (conversation_id, origin, info.request_id, timestamp, corr, info.key()),
        )
        reply = await self._create.submit(partition, item, conversation_id)
        status = status_of(reply)
        if status == "taken":
            raise RequestTaken(f"request {info.request_id!r} belongs to another conversation")
        if status == "full":
            raise Overloaded("conversation_requests_max", self._requests_max)
        return status, int(reply[1])

    async def accept_reply(self, new: NewReply) -> AcceptResult:
        """A reply far behind in its conversation is not held, even if `new.held` asks for it."""
        partition = self.partition_of(new.conversation_id)
        self._ids.check("request", new.request_id)
        self._ids.check("response", new.response_id)
        self._ids.check_optional("origin", new.origin)
        if new.required_sender:
            self._ids.check("sender", new.required_sender.partition(":")[2])
        self._ids.check_timestamp("response", new.response_timestamp)
        self._ids.check_optional("correlator", new.corr)
        info = MinMessageInfo(new.request_id, new.response_id, new.conversation_id)
        item: BatchItem = (
            self._calls.all_keys(info, partition),
            (
                new.conversation_id,
                new.request_id,
                new.response_id,
                new.response_timestamp,
                new.task,
                new.corr,
                info.key(),
                info.of_request().key(),
                1 if new.held else 0,
                new.origin,
                new.required_sender,
            ),
        )
        reply = await self._accept.submit(partition, item, new.conversation_id, len(new.task))
        status = status_of(reply)
        if status == "accepted":
            _, score, held, origin, requested = reply
            return AcceptResult(info, int(score), held == 1, origin.decode(), int(requested))
        if status != "duplicate":
            raise self._refusal(status, new)
        return AcceptResult(info, 0, held=False, duplicate=True)

    def _refusal(self, status: str, new: NewReply) -> Exception:
        if status == "taken":
            return ReplyTaken(f"response {new.response_id!r} belongs to another request")
        if status == "wrong_conversation":
            return WrongConversation(f"request {new.request_id!r} is of another conversation")
        if status == "full":
            return Overloaded("conversation_replies_max", self._replies_max)
        return RequestUnknown(f"request {new.request_id!r} does not exist or has expired")

    # Sending

    async def check_reply(self, info: MinMessageInfo, *, only_mine: bool = False) -> CanSend:
        """`only_mine`: also 'gone' if this process does not hold the reply any more."""
        conversation_id = info.conversation_id
        partition = self.partition_of(conversation_id)
        item: BatchItem = (
            (
                self._calls.request_key(info, partition),
                *self._calls.conversation_keys(conversation_id, partition),
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
        """'sent' | 'ack_taken' (sent, but another reply has this ACK id) | 'repeated' | 'gone'."""
        if ack_id is not None:
            self._ids.check("ACK", ack_id)
        partition = self.partition_of(info.conversation_id)
        item: BatchItem = (
            (
                *self._calls.response_keys(info, partition),
                self._calls.name(keys.ASYNC_REQUEST, partition, ack_id or ""),
            ),
            (info.conversation_id, info.response_id, info.key(), ack_id or ""),
        )
        return status_of(await self._sent.submit(partition, item))

    async def finish(
        self, info: MinMessageInfo, reason: FinishReason, ack_id: str | None = None
    ) -> tuple[str, MinMessageInfo | None]:
        """('delivered' | 'cancelled' | 'gone', the next reply if this process holds it)."""
        partition = self.partition_of(info.conversation_id)
        item: BatchItem = (
            (
                *self._calls.all_keys(info, partition),
                self._calls.name(keys.ASYNC_REQUEST, partition, ack_id or ""),
            ),
            (info.conversation_id, info.response_id, info.key(), reason),
        )
        reply = await self._finish.submit(partition, item)
        status = status_of(reply)
        return status, read_next(reply) if status != "gone" else None

    # Claiming and taking

    async def claim_awaited(self, partition: int, most: int) -> tuple[str, list[MinMessageInfo]]:
        """The claim, and the due replies it covers until it expires."""
        reply = await self._calls.run(CLAIM_AWAITED, partition, (), (most,))
        return reply[0].decode(), read_infos(reply[1:])

    async def pop_new(self, partition: int, most: int) -> list[MinMessageInfo]:
        return read_infos(await self._calls.run(POP_NEW, partition, (), (most,)))

    async def pop_waiting(self, partition: int, most: int) -> list[MinMessageInfo]:
        """Replies that wait for a sender of this process; take them with the claim `WAITING`."""
        return read_infos(await self._calls.run(POP_WAITING, partition, (), (most,)))

    async def take(self, infos: Sequence[MinMessageInfo], claim: str = "") -> list[TakeResult]:
        submitted = []
        for info in infos:
            partition = self.partition_of(info.conversation_id)
            item: BatchItem = (
                self._calls.all_keys(info, partition),
                (info.conversation_id, info.key(), claim, 1 if self.old_version_runs else 0),
            )
            submitted.append(self._take.submit(partition, item))
        replies = await asyncio.gather(*submitted)
        return [read_take_result(*pair) for pair in zip(infos, replies, strict=True)]

    async def hint_due(self) -> None:
        """Tell other processes that a reply is due; without the hint their next turn finds it."""
        await self._runtime.redis.call("PUBLISH", self.wake_channel, HINT_DUE)

    # Waiting, expiring and cancelling

    async def await_replies(
        self,
        infos: Iterable[MinMessageInfo],
        wait_ms: int,
        per_retry_ms: int,
        why: str,
        *,
        tried: bool = True,
    ) -> list[str]:
        """`tried`: sending was attempted and failed, so the next attempt counts as a retry."""
        submitted, why = [], valid_text(why)
        for info in infos:
            partition = self.partition_of(info.conversation_id)
            item: BatchItem = (
                self._calls.response_keys(info, partition),
                (
                    info.conversation_id, info.response_id, info.key(), wait_ms, per_retry_ms, why,
                    0 if tried else 1,
                ),
            )  # fmt: skip
            submitted.append(self._await.submit(partition, item))
        return [status_of(reply) for reply in await asyncio.gather(*submitted)]

    async def postpone(self, info: MinMessageInfo, wait_ms: int, per_retry_ms: int) -> str:
        return await self._change(self._postpone, info, wait_ms, per_retry_ms)

    async def retire(self, info: MinMessageInfo, after_ms: int) -> str:
        return await self._change(self._retire, info, after_ms)

    async def _change(self, batcher: Any, info: MinMessageInfo, *args: int) -> str:
        partition = self.partition_of(info.conversation_id)
        item: BatchItem = (self._calls.response_keys(info, partition), (info.key(), *args))
        return status_of(await batcher.submit(partition, item))

    async def expire_requests(self, partition: int, most: int) -> int:
        """End the requests that expired without a reply; the number of them."""
        submitted = []
        expired = await self._calls.run(LIST_EXPIRED_REQUESTS, partition, (), (most,))
        for info in read_infos(expired):
            item: BatchItem = (
                self._calls.request_keys(info, partition),
                (info.conversation_id, info.request_id, info.key()),
            )
            submitted.append(self._expire.submit(partition, item))
        return sum(status_of(reply) == "expired" for reply in await asyncio.gather(*submitted))

    async def cancel(
        self,
        request: MinMessageInfo,
        replies: Sequence[MinMessageInfo],
        options: CancelOptions,
        *,
        whole_group: bool,
    ) -> tuple[int, MinMessageInfo | None] | None:
        """Number of cancelled replies, and the next reply if this process holds it.

        None if the group has grown since it was listed. `request` has no response id; `replies`
        has the last reply first.
        """
        conversation_id = request.conversation_id
        partition = self.partition_of(conversation_id)
        names = [
            self._calls.request_key(request, partition),
            *self._calls.conversation_keys(conversation_id, partition),
            *(self._calls.response_key(info, partition) for info in replies),
        ]
        args: tuple[Argument, ...] = (
            len(replies),
            conversation_id,
            request.request_id,
            request.key(),
            1 if options.close else 0,
            1 if whole_group else 0,
            check_text(options.status, "status"),
            check_text(options.except_origin, "origin"),
            valid_text(options.why),
            *(info.key() for info in replies),
        )
        reply = await self._calls.run(CANCEL_REPLIES, partition, names, args)
        if status_of(reply) == "again":
            return None
        return int(reply[1]), MinMessageInfo.read(reply[2]) if reply[2] else None
