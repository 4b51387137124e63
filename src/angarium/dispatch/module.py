"""The manifest of dispatch: Pub/Sub and a durable inbox, an elected leader, workers, results."""

from __future__ import annotations

from angarium.dispatch import keys
from angarium.dispatch.limits import DispatchLimits
from angarium.runtime.module import (
    KeyName,
    Module,
    Rate,
    Role,
    life_cycle,
    other_events,
    reported_metrics,
)

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
        KeyName(keys.MESSAGES_QUEUES, "pending", ":queues"),
        KeyName(keys.MESSAGES_WAITING, "pending", ":waiting"),
        KeyName(keys.MESSAGES_DEAD, "dead"),
        KeyName(keys.MESSAGES_INBOX, "inbox"),
        KeyName(keys.MESSAGES_ONCE, "inbox", ":once:{idempotency_key}"),
        KeyName(keys.MESSAGES_WRITER, "inbox", ":writer:{writer}"),
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
    metrics=(
        *reported_metrics(
            "dispatcher",
            counters="""
                received messages Heard on the channel.
                accepted messages Stored for delivery.
                refused messages Refused because the pending list is full.
                sent messages Sent to workers.
                redelivered messages Sent to a worker again.
                processed messages Completed or acknowledged.
                rejected messages Given back by a worker after a failure.
                dead messages Became dead letters.
                acks_unknown acknowledgements Named a message that is not pending.
                acks_foreign acknowledgements Of messages led elsewhere or held by another worker.
                acks_repeated acknowledgements Sent to Redis again after an error.
                acks_paused times Reading paused because acknowledgements or renewals waited.
                renewed messages Whose workers renewed them.
                renewals_lost messages Whose renewal came too late.
                stalls times The process or Redis stood still for a third of a lease.
                overflowed messages That did not fit into the leader's queue.
                spilled messages Put into the durable intake because the partition was full.
                lost messages Of the channel that were dropped from the full ring unaccepted.
                protocol_errors errors Of peers that broke the protocol.
                frames_cut frames That ended before their last byte.
                too_large messages Larger than a frame.
                takeovers partitions That this dispatcher took over.
                gap_accepted messages Accepted from the ring after a takeover.
                ring_dropped messages Dropped from the full ring.
            """,
            gauges="""
                pending messages That wait for a result.
                messages_per_s messages/s Completed per second.
                partitions_led partitions That this dispatcher leads.
                workers connections To workers.
                queued messages That wait to be accepted.
                ring_messages messages In the ring.
            """,
        ),
        *reported_metrics(
            "worker",
            counters="""
                received messages From dispatchers.
                completed messages Whose result was stored.
                duplicates messages Received again.
                failed messages Whose function failed.
                dead messages Whose last try failed.
                lost messages Given to another worker meanwhile.
                renewed messages Renewed while their function ran.
                returned messages Given back without a try.
                protocol_errors errors Of peers that broke the protocol.
                frames_cut frames That ended before their last byte.
            """,
            gauges="""
                in_hand messages That this worker has.
                dispatchers connections Of dispatchers.
            """,
        ),
    ),
    http="angarium.dispatch.http",
    overview="angarium.dispatch.overview:DispatchSampler",
)
