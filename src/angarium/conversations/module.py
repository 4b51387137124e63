"""The manifest of conversations: replies leave in order, across instances."""

from __future__ import annotations

from angarium.conversations import keys
from angarium.conversations.limits import ConversationsLimits
from angarium.runtime.module import KeyName, Module, Rate, Role, life_cycle, reported_metrics

CONVERSATIONS = Module(
    "conversations",
    keys=keys.KEYS,
    key_names=tuple(
        KeyName(key, "prefix", key.name.removeprefix(keys.CONVERSATIONS_PREFIX))
        for key in keys.KEYS
    ),
    settings="angarium.conversations.settings:ConversationsSettings",
    limits=ConversationsLimits,
    events=(
        *life_cycle(
            "request",
            accept="requested",
            end={
                "delivered": "answered",
                "expired": "request_expired",
                "cancelled": "request_removed",
            },
        ),
        *life_cycle(
            "reply",
            accept="accepted",
            step="taken awaited sent",
            end={
                "delivered": "delivered",
                "expired": "expired",
                "cancelled": "cancelled",
                "dead": "dead",
            },
            beside="discarded",
            paused="awaited",
            retried="awaited",
        ),
    ),
    roles=(Role("conversations", "angarium.conversations.instance"),),
    rates=(
        Rate("sent", "conversations", "sent", "sent"),
        Rate("delivered", "conversations", "acknowledged", "acknowledged"),
    ),
    metrics=(
        *reported_metrics(
            "conversations",
            counters="""
                sent replies Sent.
                acknowledged replies Acknowledged by clients.
                awaited replies Given back to wait in Redis.
                cancelled replies Cancelled.
                turns turns Of the agent that takes waiting replies.
            """,
            gauges="""
                queue replies In the memory queue.
                queue_bytes bytes In the memory queue.
                parked groups That wait for an earlier reply.
                executing replies That are being sent.
                replies replies In flight in all conversations.
                requests requests Open in all conversations.
                dead replies Kept after they failed.
                without_sender replies That no running process can send.
                without_sender_ms ms That the first of them has waited.
            """,
        ),
    ),
    http="angarium.conversations.http",
    overview="angarium.conversations.overview:ConversationsSampler",
)
