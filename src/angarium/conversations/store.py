"""The module's state in Redis: one method for each transition. `queries.py` has what only reads.

With that, `transitions.py` and `dead_replies.py` the only file that knows key names. A method turns
a reply into a value or an error; it makes no decision of its own. Each store has a name of
its own under which it holds replies: two stores in one process never send the same reply.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence

import msgspec

from angarium.conversations import keys
from angarium.conversations import transitions as t
from angarium.conversations.errors import (
    ReplyTaken,
    RequestTaken,
    RequestUnknown,
    WrongConversation,
)
from angarium.conversations.limits import ConversationsLimits
from angarium.conversations.model import CanSend, MinMessageInfo
from angarium.conversations.queries import ConversationQueries
from angarium.conversations.script_values import (
    AcceptResult,
    CancelOptions,
    Claim,
    FinishReason,
    NewReply,
    TakeResult,
    read_infos,
    read_next,
    read_take_result,
)
from angarium.conversations.settings import ConversationsSettings
from angarium.runtime.errors import Overloaded
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text, valid_text

# The claim on replies that `pop_waiting` returned.
WAITING = "waiting"


class ConversationStore(ConversationQueries):
    def __init__(self, runtime: Runtime, senders: Sequence[str] | None = None) -> None:
        """`senders`: names of the senders this process has; None takes replies of any sender."""
        settings = runtime.settings.group(ConversationsSettings)
        self._limits = limits = runtime.settings.limits_of(ConversationsLimits)
        self.wake_channel = runtime.keyspace.global_name(keys.CONVERSATIONS_WAKE)
        self.holder = f"{runtime.actor}/{secrets.token_hex(2)}"
        self._dead_ttl = settings.dead_reply_ttl
        args = t.SharedArgs(
            settings.message_ttl,
            settings.awaited_message_ttl,
            settings.max_pending_ttl,
            settings.sent_message_ttl,
            limits.conversation_requests_max,
            limits.conversation_replies_max,
            b"" if senders is None else msgspec.json.encode(senders),
            self.holder,
        )
        super().__init__(runtime, args)
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
        if isinstance(reply, t.AcceptedReplies):
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


def _ids(info: MinMessageInfo) -> tuple[str, str, str]:
    return info.conversation_id, info.request_id, info.response_id
