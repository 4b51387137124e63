"""The manifest of routing: recipient keys shared out over instances; relay, inbox, deliverer."""

from __future__ import annotations

from angarium.routing import keys
from angarium.routing.limits import RoutingLimits
from angarium.runtime.module import (
    KeyName,
    Module,
    Rate,
    Role,
    life_cycle,
    other_events,
    reported_metrics,
)

ROUTING = Module(
    "routing",
    keys=keys.KEYS,
    key_names=tuple(
        KeyName(key, "topic_prefix", key.name.removeprefix(keys.TOPIC_PREFIX))
        for key in keys.KEYS
        if key.name.startswith(keys.TOPIC_PREFIX)
    ),
    settings="angarium.routing.settings:RoutingSettings",
    limits=RoutingLimits,
    events=(
        *life_cycle("inbound", accept="accepted", end={"delivered": "handled", "dead": "dead"}),
        *life_cycle(
            "outbound",
            accept="outbound_accepted",
            step="outbound_retried",
            end={"delivered": "outbound_delivered", "dead": "outbound_dead"},
            paused="outbound_retried",
            retried="outbound_retried",
        ),
        *other_events(
            "assigned reassigned registered retired removed forgotten "
            "dead_dropped outbound_dead_dropped"
        ),
    ),
    roles=(
        Role("relay", "angarium.routing.relay"),
        Role("inbox", "angarium.routing.inbox", needs="inbox"),
        Role("deliverer", "angarium.routing.deliverer"),
    ),
    rates=(
        Rate("accepted", "relay", "queued", "in"),
        Rate("delivered", "inbox", "handled", "done"),
    ),
    metrics=(
        *reported_metrics(
            "relay",
            counters="""
                queued messages Stored for their recipients.
            """,
            gauges="""
                connections connections Of senders.
                waiting_callers callers That wait for a response.
                waiting_bytes bytes Not stored in Redis yet.
                queued_per_s messages/s Stored per second.
            """,
        ),
        *reported_metrics(
            "inbox",
            counters="""
                handled messages Whose function succeeded.
                failed_attempts attempts That failed.
                dead messages Became dead letters.
                let_go keys Released to other instances.
            """,
            gauges="""
                keys_in_hand keys Whose messages are handled.
                handled_per_s messages/s Handled per second.
            """,
        ),
        *reported_metrics(
            "deliverer",
            counters="""
                delivered deliveries That succeeded.
                retried deliveries To be tried again.
                dead deliveries Became dead letters.
                deferred deliveries Put off because their host is slow.
            """,
            gauges="""
                in_hand deliveries In progress.
                delivered_per_s deliveries/s Succeeded per second.
            """,
        ),
    ),
    http="angarium.routing.http",
    overview="angarium.routing.overview:RoutingSampler",
)
