"""Keys of the routing module. Lists and topics begin with what `routing.topic_prefix` says."""

from __future__ import annotations

from angarium.runtime.key import Key, Scope

TOPIC_PREFIX = "acapy"

PENDING_COUNTS = Key(
    "uid_recip_key_pending_msg_count",
    "hash",
    meaning="`{uid}_{recip_key}` → messages that wait for this key at this instance; with an empty "
    "uid those of a key that nobody owns yet",
)
ROUND_ROBIN_ITERATOR = Key(
    "round_robin_iterator",
    "string",
    meaning="Position in the list of instances of the next one to be given a key",
)
UID_RECIP_KEYS = Key(
    "uid_recip_keys_map",
    "zset",
    meaning="Recipient keys, scored by the number of the instance that owns them; in layout "
    "`acapy` a hash, instance uid → base64url of a JSON list of keys",
)
RECIP_KEY_UID = Key(
    "recip_key_uid_map",
    "hash",
    meaning="Recipient key → uid of the instance that owns it",
)
UID_LAST_ACCESS = Key(
    "uid_last_access_map",
    "hash",
    meaning="Instance uid → when it was last heard of, and its number; in layout `acapy` a date, "
    "and without a field it is not stale",
)
MAIL = Key(
    f"{TOPIC_PREFIX}_mail",
    "zset",
    meaning="Recipient keys that have mail, in one band of scores for each instance: ready, then "
    "in hand; the band of number 0 has keys that nobody owns yet",
)
INBOUND = Key(
    f"{TOPIC_PREFIX}_inbound_{{recip_key}}",
    "list",
    meaning="Messages for one recipient key, oldest first; one leaves when it has been handled",
)
INBOUND_DEAD = Key(
    f"{TOPIC_PREFIX}_dead_inbound",
    "list",
    meaning="Messages that an instance could not handle, with the reason",
    expiry="until dropped by an operator",
)
DIRECT_RESPONSES = Key(
    f"{TOPIC_PREFIX}_inbound_direct_resp",
    "list",
    meaning="Layout `acapy`: answers to callers that wait at any relay, by `txn_id`",
)
RELAY_RESPONSES = Key(
    f"{TOPIC_PREFIX}_responses_{{relay}}",
    "list",
    meaning="Answers to callers that wait at one relay, by `txn_id`",
    expiry="60 s after the last answer",
)
OUTBOUND = Key(
    f"{TOPIC_PREFIX}_outbound",
    "list",
    meaning="Messages for the deliverer: service URL, payload, headers",
)
OUTBOUND_RETRY = Key(
    f"{TOPIC_PREFIX}_outbound_retry",
    "zset",
    meaning="Outbound messages that failed, scored by the time of the next try in seconds",
)
OUTBOUND_TAKEN = Key(
    f"{TOPIC_PREFIX}_outbound_taken",
    "hash",
    meaning="Loan → outbound message that a deliverer has in hand; `last` is the newest loan",
)
OUTBOUND_LOANS = Key(
    f"{TOPIC_PREFIX}_outbound_loans",
    "zset",
    meaning="Loans, scored by when another deliverer may have the message, in ms",
)
OUTBOUND_DEAD = Key(
    f"{TOPIC_PREFIX}_outbound_dead",
    "list",
    meaning="Outbound messages that used up their retries or could not be read",
    expiry="until retried or dropped by an operator",
)
INBOX_WAKE = Key(
    f"{TOPIC_PREFIX}_wake_{{uid}}",
    "channel",
    meaning="An instance has mail in the partition named; a hint, polling finds it too",
    scope=Scope.KEYSPACE,
)
RELAY_WAKE = Key(
    f"{TOPIC_PREFIX}_responses_wake_{{relay}}",
    "channel",
    meaning="A relay has answers for its callers; a hint, polling finds them too",
    scope=Scope.KEYSPACE,
)
OUTBOUND_WAKE = Key(
    f"{TOPIC_PREFIX}_outbound_wake",
    "channel",
    meaning="Something to deliver in the partition named; a hint, polling finds it too",
    scope=Scope.KEYSPACE,
)

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
