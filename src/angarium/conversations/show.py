"""A conversation as a person looks at it: who waits for whom, and why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from angarium.conversations.order import OpenRequest, QueuedReply, Reason, explain
from angarium.conversations.store import ConversationStore

# Of each, requests and replies: more than anybody reads, and one short script call.
SHOWN_MAX = 200


class ShownReply(msgspec.Struct, frozen=True, rename="camel"):
    reply: QueuedReply
    reason: Reason


class Shown(msgspec.Struct, frozen=True, rename="camel"):
    """The first requests and replies of a conversation, in the order in which they leave."""

    conversation_id: str
    now_ms: int
    requests_total: int
    replies_total: int
    requests: Sequence[OpenRequest]
    replies: Sequence[ShownReply]


async def show(store: ConversationStore, conversation_id: str, most: int = SHOWN_MAX) -> Shown:
    found = await store.snapshot(conversation_id, most)
    reasons = explain(found.requests, found.replies, found.now_ms)
    return Shown(
        conversation_id,
        found.now_ms,
        found.requests_total,
        found.replies_total,
        found.requests,
        [ShownReply(*pair) for pair in zip(found.replies, reasons, strict=True)],
    )
