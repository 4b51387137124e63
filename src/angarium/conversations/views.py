"""Conversations as a person looks at them: who waits for whom, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from angarium.conversations.store import ConversationStore
from angarium.conversations.wait_reasons import (
    OpenRequest,
    QueuedReply,
    SenderWait,
    WaitReason,
    explain,
    unmet,
)

# Of each, requests and replies: more than anybody reads, and one short script call.
SHOWN_MAX = 200


class ReplyView(msgspec.Struct, frozen=True, rename="camel"):
    reply: QueuedReply
    reason: WaitReason


class ConversationView(msgspec.Struct, frozen=True, rename="camel"):
    """The first requests and replies of a conversation, in the order in which they leave.

    `needs`: those of the replies for whose sender no process runs.
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


async def view_conversation(
    store: ConversationStore, conversation_id: str, most: int = SHOWN_MAX
) -> ConversationView:
    found = await store.snapshot(conversation_id, most)
    live = await store.senders.live()
    reasons = explain(found.requests, found.replies, found.now_ms, live)
    needs = [
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
        unmet(needs, live),
    )


async def view_senders(store: ConversationStore) -> SendersView:
    found = await asyncio.gather(*(store.needs(partition) for partition in store.partitions))
    live = await store.senders.live()
    needs = [need for _, needs in found for need in needs]
    return SendersView(max(now_ms for now_ms, _ in found), live, unmet(needs, live))
