"""Keys of the dispatch room. Most of their names can be set."""

from __future__ import annotations

from functools import partial

from angarium.core.keys.key import Key, Scope

_dispatch = partial(Key, room="dispatch")

MESSAGES_PUBLISHED = _dispatch(
    "messages:published",
    "channel",
    meaning="Where publishers send their JSON; every dispatcher listens",
    scope=Scope.KEYSPACE,
)
MESSAGES_INBOX = _dispatch(
    "messages:inbox",
    "stream",
    meaning="Durable intake: messages that wait for the leader even when no dispatcher runs",
    expiry="an entry goes when its message is accepted",
)
MESSAGES_PENDING = _dispatch(
    "messages:pending",
    "zset",
    meaning="Accepted and unfinished messages: id, scored by the time of the last dispatch in ms",
    expiry="a member goes when its message is finished or dead",
)
MESSAGES_PAYLOADS = _dispatch(
    "messages:pending:payloads",
    "hash",
    meaning="Message id → the published bytes, untouched",
    expiry="a field goes with its pending member",
)
MESSAGES_ATTEMPTS = _dispatch(
    "messages:pending:attempts",
    "hash",
    meaning="Message id → how often it was sent to a worker",
    expiry="a field goes with its pending member",
)
MESSAGES_DIGESTS = _dispatch(
    "messages:digests:{bucket}",
    "hash",
    meaning="Digest of a payload → how often it was accepted in this short span of time, for the "
    "takeover by a new leader",
    expiry="a few seconds after its span",
)
MESSAGES_PROCESSED = _dispatch(
    "messages:processed",
    "stream",
    meaning="Results of the workers: their fields, `message_id` and `consumer_id`",
)
MESSAGES_DEAD = _dispatch(
    "messages:dead",
    "stream",
    meaning="Messages that used up their deliveries, with the reasons",
    expiry="until retried or dropped by an operator",
)
CONSUMER_IDS = _dispatch(
    "consumer:ids",
    "list",
    meaning="Live consumers as `host:port`, in the order of their turns",
)
LEADER_LOCK = _dispatch(
    "distributed_leader_lock",
    "string",
    meaning="Who leads this partition, and under which term",
    expiry="`dispatch.lock_ms` after the last renewal",
)
LEADER_LOCK_TERM = _dispatch(
    "distributed_leader_lock:term",
    "string",
    meaning="The last term given out for `distributed_leader_lock`; only grows",
)
