"""The manifest of pickup: live sessions, queues of those who are away, push notifications."""

from __future__ import annotations

from angarium.pickup import keys
from angarium.pickup.limits import PickupLimits
from angarium.runtime.module import Module, Rate, Role, life_cycle, other_events, reported_metrics

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
            end={"delivered": "delivered", "cancelled": "cancelled", "expired": "expired"},
            paused="returned",
            retried="returned",
            archived="archived",
        ),
        *other_events(
            "session_opened session_replaced session_closed "
            "push_scheduled pushed push_retried push_failed"
        ),
    ),
    ids_once=("message",),
    roles=(Role("gateway", "angarium.pickup.gateway"),),
    rates=(
        Rate("accepted", "gateway", "added", "in"),
        Rate("sent", "gateway", "delivered", "live"),
        Rate("delivered", "gateway", "removed", "picked up"),
    ),
    metrics=(
        *reported_metrics(
            "gateway",
            counters="""
                added messages Added to queues.
                delivered messages Sent to live sessions.
                removed messages Acknowledged by their recipients.
                refused calls Refused.
                pushes_sent pushes Sent.
                pushes_failed pushes That failed.
            """,
            gauges="""
                clients connections Of clients.
                sessions sessions Live at this gateway.
                added_per_s messages/s Added per second.
                delivered_per_s messages/s Sent to live sessions per second.
                removed_per_s messages/s Acknowledged per second.
                answer_bytes bytes Of answers that clients have not read.
                request_bytes bytes Of calls without an answer.
            """,
        ),
    ),
    http="angarium.pickup.http",
    overview="angarium.pickup.overview:PickupSampler",
)
