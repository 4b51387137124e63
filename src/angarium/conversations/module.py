"""The manifest of conversations: replies leave in order, across instances."""

from __future__ import annotations

from angarium.conversations import keys
from angarium.conversations.limits import ConversationsLimits
from angarium.runtime.module import KeyName, Module, Rate, Role, life_cycle

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
            end={"delivered": "delivered", "expired": "expired", "cancelled": "cancelled"},
            paused="awaited",
            retried="awaited",
        ),
    ),
    roles=(Role("conversations", "angarium.conversations.instance"),),
    rates=(
        Rate("sent", "conversations", "sent", "sent"),
        Rate("delivered", "conversations", "acknowledged", "acknowledged"),
    ),
    http="angarium.conversations.http",
    overview="angarium.conversations.overview:ConversationsSampler",
)
