"""The manifest of routing: recipient keys shared out over instances; relay, inbox, deliverer."""

from __future__ import annotations

from angarium.routing import keys
from angarium.routing.limits import RoutingLimits
from angarium.runtime.module import KeyName, Module, Rate, Role, life_cycle, other_events

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
        *other_events("assigned reassigned registered retired removed"),
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
    http="angarium.routing.http",
    overview="angarium.routing.overview:RoutingSampler",
)
