"""Conversations and senders as people see them: which reply waits, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from angarium.conversations.queries import ConversationQueries
from angarium.conversations.wait_reasons import (
    OpenRequest,
    QueuedReply,
    SenderWait,
    WaitReason,
    explain,
    without_process,
)

# Requests and replies that a view has, each: more than people read, and one short script call.
VIEW_ITEMS_MAX = 200


class ReplyView(msgspec.Struct, frozen=True, rename="camel"):
    reply: QueuedReply
    reason: WaitReason


class ConversationView(msgspec.Struct, frozen=True, rename="camel"):
    """The first requests and replies of a conversation, in sending order.

    `needs`: the replies for whose sender no process runs.
    """

    conversation_id: str
    now_ms: int
    requests_total: int
    replies_total: int
    requests: Sequence[OpenRequest]
    replies: Sequence[ReplyView]
    needs: Sequence[SenderWait] = ()


class SendersView(msgspec.Struct, frozen=True, rename="camel"):
    """How many processes have each sender, and the replies for whose sender no process runs."""

    now_ms: int
    senders: Mapping[str, int]
    needs: Sequence[SenderWait]

    def metrics(self) -> dict[str, int]:
        """Number of replies without a running sender, and how long the first has waited."""
        since_ms = min((wait.since_ms for wait in self.needs), default=self.now_ms)
        return {
            "without_sender": sum(wait.replies for wait in self.needs),
            "without_sender_ms": max(0, self.now_ms - since_ms),
        }


async def view_conversation(
    queries: ConversationQueries, conversation_id: str, most: int = VIEW_ITEMS_MAX
) -> ConversationView:
    found = await queries.snapshot(conversation_id, most)
    running = await queries.senders.running()
    reasons = explain(found.requests, found.replies, found.now_ms, running)
    waits = [
        SenderWait(reply.senders, 1, reply.without_sender_since_ms or found.now_ms)
        for reply in found.replies
        if reply.senders and reply.until_ms > found.now_ms
    ]
    return ConversationView(
        conversation_id,
        found.now_ms,
        found.requests_total,
        found.replies_total,
        found.requests,
        [ReplyView(*pair) for pair in zip(found.replies, reasons, strict=True)],
        without_process(waits, running),
    )


async def view_senders(queries: ConversationQueries) -> SendersView:
    found = await asyncio.gather(*(queries.sender_waits(p) for p in queries.partitions))
    running = await queries.senders.running()
    waits = [wait for _, some in found for wait in some]
    return SendersView(max(now_ms for now_ms, _ in found), running, without_process(waits, running))
