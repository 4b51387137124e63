"""Keys of the pickup module. A queue is a tenant's connection: `tenant:connectionId`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from angarium.runtime.keyspace import Key, Scope

PICKUP_QUEUE = Key(
    "pickup:queue:{queue}",
    "hash",
    meaning="Counters of a queue (`sequence`, `stored`, `bytes`, `archived`, `held`, `moving`, "
    "`moves`, `cleared`, `grace`, `tokened`, `token_bytes`), its live session (`session`, "
    "`gateway`, `socket`, `term`), the term of a session that another process `ended`, and the "
    "`dids` that its messages named",
    expiry="with its last message, unless a session is open",
)
PICKUP_MESSAGES = Key(
    "pickup:messages:{queue}",
    "hash",
    meaning="Message id → sequence, time of arrival, recipient DIDs, then the unchanged payload",
    expiry="a field is removed when its message is removed or stored in the database",
)
PICKUP_PENDING = Key(
    "pickup:pending:{queue}",
    "zset",
    meaning="Ids of messages that wait, scored by their sequence",
)
PICKUP_SENDING = Key(
    "pickup:sending:{queue}",
    "zset",
    meaning="Ids of messages that were sent and not acknowledged, scored by the time when they "
    "wait again; the score is 2^52 + sequence while their session is live",
)
PICKUP_RECIPIENTS = Key(
    "pickup:recipients:{queue}",
    "zset",
    meaning="`did sequence id` of messages that wait, in that order; an index by recipient",
)
PICKUP_DIDS = Key(
    "pickup:dids",
    "zset",
    meaning="`tenant:did queue`: the queues whose messages name a recipient; an index for callers "
    "that know the recipient only",
    expiry="a member some time after the end of its queue",
)
PICKUP_DID_SESSIONS = Key(
    "pickup:did_sessions",
    "hash",
    meaning="`tenant:did` → the gateway with the live session of that recipient",
    expiry="a field with its session, or some time after the end of its gateway",
)
PICKUP_REMOVED_IDS = Key(
    "pickup:buried:{queue}",
    "set",
    meaning="Ids of removed messages whose row in the database is not deleted yet",
)
PICKUP_ONCE = Key(
    "pickup:once:{message_id}",
    "string",
    meaning="A message with an id that the sender chose was added; a repeat adds nothing",
    expiry="`conversations.awaited_message_ttl`, the time in which a reply may be sent again",
)
PICKUP_AGES = Key(
    "pickup:ages",
    "zset",
    meaning="Queues that have messages in Redis, scored by the time of the oldest message or "
    "earlier",
)
PICKUP_DUE = Key(
    "pickup:due",
    "zset",
    meaning="Queues with sent messages, scored by the time when the first of them waits again, or "
    "earlier",
)
PICKUP_REMOVED_QUEUES = Key(
    "pickup:burials",
    "set",
    meaning="Queues with ids in `pickup:buried:{queue}`",
)
PICKUP_MOVING = Key(
    "pickup:moving",
    "hash",
    meaning="Message id → its queue, while the persister copies it to the database",
)
PICKUP_CHARTED = Key(
    "pickup:charted",
    "string",
    meaning="Set when every queue's `archived` agrees with the database; absent if Redis lost data",
)
PICKUP_GATEWAYS = Key(
    "pickup:gateways",
    "zset",
    meaning="Gateways, scored by the time until which their sessions count as live",
)
PICKUP_GATEWAY_SESSIONS = Key(
    "pickup:sessions:{gateway}",
    "set",
    meaning="Queues whose live session is at this gateway",
)
PICKUP_PERSISTER_LOCK = Key(
    "pickup:persister",
    "string",
    meaning="Term and name of the gateway that moves this partition's messages to the database",
    expiry="`pickup.lease_ms`",
)
PICKUP_PERSISTER_TERM = Key(
    "pickup:persister:term",
    "string",
    meaning="The last term of a persister; it only grows",
)
PICKUP_PUSHES_DUE = Key(
    "pickup:pushes",
    "zset",
    meaning="`hashed-token queue` of each push notification to send, scored by the time of its "
    "next attempt",
)
PICKUP_TOKENS = Key(
    "pickup:tokens:{queue}",
    "hash",
    meaning="Push tokens of a queue: message id → hashed token and time of arrival, for each "
    "message that is neither collected nor notified; `:` and hashed token → attempts and the "
    "notification",
    expiry="with its last message that is neither collected nor notified",
)
PICKUP_PUSHED = Key(
    "pickup:pushes:last",
    "zset",
    meaning="Hashed token, scored by the time of its last notification",
    expiry="a token is removed `pickup.push_interval_ms` after its last notification",
)
PICKUP_HINTS = Key(
    "pickup:hints:{gateway}",
    "channel",
    meaning="Tells a gateway which of its queues have messages, and which sessions were replaced",
    scope=Scope.KEYSPACE,
)

QUEUE: Mapping[str, Key] = MappingProxyType(
    {
        "meta": PICKUP_QUEUE,
        "messages": PICKUP_MESSAGES,
        "pending": PICKUP_PENDING,
        "sending": PICKUP_SENDING,
        "recipients": PICKUP_RECIPIENTS,
        "removed": PICKUP_REMOVED_IDS,
    }
)
"""The keys of one queue, by the names that scripts use."""

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
