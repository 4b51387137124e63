"""Keys of the routing room. Lists and topics begin with what `routing.topic_prefix` says."""

from __future__ import annotations

from functools import partial

from angarium.core.keys.key import Key

TOPIC_PREFIX = "acapy"
_routing = partial(Key, room="routing")

PENDING_COUNTS = _routing(
    "uid_recip_key_pending_msg_count",
    "hash",
    meaning="`{uid}_{recip_key}` → messages that wait for this key at this instance",
)
ROUND_ROBIN_ITERATOR = _routing(
    "round_robin_iterator",
    "string",
    meaning="Position in the list of instances of the next one to be given a key",
)
UID_RECIP_KEYS = _routing(
    "uid_recip_keys_map",
    "hash",
    meaning="Instance uid → the recipient keys it owns",
)
RECIP_KEY_UID = _routing(
    "recip_key_uid_map",
    "hash",
    meaning="Recipient key → uid of the instance that owns it",
)
UID_LAST_ACCESS = _routing(
    "uid_last_access_map",
    "hash",
    meaning="Instance uid → when it was last heard of; without a field it is not stale",
)
INBOUND = _routing(
    f"{TOPIC_PREFIX}_inbound_{{recip_key}}",
    "list",
    meaning="Messages for one recipient key, oldest first",
)
DIRECT_RESPONSES = _routing(
    f"{TOPIC_PREFIX}_inbound_direct_resp",
    "list",
    meaning="Answers to callers that wait at the relay, by `txn_id`",
)
OUTBOUND = _routing(
    f"{TOPIC_PREFIX}_outbound",
    "list",
    meaning="Messages for the deliverer: service URL, payload, headers",
)
OUTBOUND_RETRY = _routing(
    f"{TOPIC_PREFIX}_outbound_retry",
    "zset",
    meaning="Outbound messages that failed, scored by the time of the next try",
)
OUTBOUND_DEAD = _routing(
    f"{TOPIC_PREFIX}_outbound_dead",
    "list",
    meaning="Outbound messages that used up their retries or could not be read",
    expiry="until retried or dropped by an operator",
)
