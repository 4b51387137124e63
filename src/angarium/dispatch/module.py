"""The manifest of dispatch: Pub/Sub and a durable inbox, an elected leader, workers, results."""

from __future__ import annotations

from angarium.dispatch import keys
from angarium.dispatch.limits import DispatchLimits
from angarium.runtime.module import KeyName, Module, Rate, Role, life_cycle, other_events

DISPATCH = Module(
    "dispatch",
    keys=keys.KEYS,
    key_names=(
        KeyName(keys.MESSAGES_PUBLISHED, "channel"),
        KeyName(keys.MESSAGES_EPOCHS, "channel", ":epochs"),
        KeyName(keys.MESSAGES_PROCESSED, "stream"),
        KeyName(keys.MESSAGES_PENDING, "pending"),
        KeyName(keys.MESSAGES_PAYLOADS, "pending", ":payloads"),
        KeyName(keys.MESSAGES_ATTEMPTS, "pending", ":attempts"),
        KeyName(keys.MESSAGES_DEAD, "dead"),
        KeyName(keys.MESSAGES_INBOX, "inbox"),
        KeyName(keys.MESSAGES_ONCE, "inbox", ":once:{idempotency_key}"),
        KeyName(keys.CONSUMER_IDS, "consumer_ids"),
        KeyName(keys.CONSUMERS_SEEN, "consumer_ids", ":seen"),
        KeyName(keys.LEADER_LOCK, "lock"),
        KeyName(keys.LEADER_LOCK_TERM, "lock", ":term"),
    ),
    settings="angarium.dispatch.settings:DispatchSettings",
    limits=DispatchLimits,
    events=(
        *life_cycle(
            "message",
            announce="enqueued",
            accept="accepted",
            reopen="retried",
            step="redelivered rejected returned",
            end={"delivered": "completed acknowledged", "dead": "dead dropped"},
            beside="discarded",
            paused="rejected returned",
            retried="redelivered rejected returned",
            archived="discarded",
        ),
        *other_events("refused"),
    ),
    ids_once=("message",),
    roles=(
        Role("dispatcher", "angarium.dispatch.dispatcher"),
        Role("worker", "angarium.dispatch.worker", needs="worker"),
    ),
    rates=(
        Rate("accepted", "dispatcher", "accepted", "in"),
        Rate("completed", "dispatcher", "processed", "done"),
        Rate("redelivered", "dispatcher", "redelivered", "again"),
    ),
    http="angarium.dispatch.http",
    overview="angarium.dispatch.overview:DispatchSampler",
)
