"""The manifest of pickup: live sessions, queues of those who are away, push notifications."""

from __future__ import annotations

from angarium.pickup import keys
from angarium.pickup.limits import PickupLimits
from angarium.runtime.module import Module, Rate, Role, life_cycle, other_events

PICKUP = Module(
    "pickup",
    keys=keys.KEYS,
    settings="angarium.pickup.settings:PickupSettings",
    limits=PickupLimits,
    events=(
        *life_cycle(
            "message",
            accept="accepted",
            step="sent returned archived",
            end={"delivered": "delivered", "cancelled": "cancelled"},
            paused="returned",
            retried="returned",
            archived="archived",
        ),
        *other_events(
            "session_opened session_replaced session_closed push_scheduled pushed push_failed"
        ),
    ),
    ids_once=("message",),
    roles=(Role("gateway", "angarium.pickup.gateway"),),
    rates=(
        Rate("accepted", "gateway", "added", "in"),
        Rate("sent", "gateway", "delivered", "live"),
        Rate("delivered", "gateway", "removed", "picked up"),
    ),
    http="angarium.pickup.http",
    overview="angarium.pickup.overview:PickupSampler",
)
