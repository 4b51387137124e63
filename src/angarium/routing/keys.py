"""Keys of the routing module. Names of lists and topics begin with `routing.topic_prefix`."""

from __future__ import annotations

from angarium.runtime.keyspace import Key, Scope

TOPIC_PREFIX = "acapy"

PENDING_COUNTS = Key(
    "uid_recip_key_pending_msg_count",
    "hash",
    meaning="`{uid}_{recip_key}` → number of messages that wait for this key at this instance; the "
    "uid is empty if no instance owns the key yet",
)
ROUND_ROBIN_ITERATOR = Key(
    "round_robin_iterator",
    "string",
    meaning="Position in the list of instances; the instance there gets the next key",
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
    meaning="Instance uid → time of its last sign of life, and its number; in layout `acapy` a "
    "date, and an instance without a field is not stale",
)
MAIL = Key(
    f"{TOPIC_PREFIX}_mail",
    "zset",
    meaning="Recipient keys with messages. Each instance has a range of scores, first for ready "
    "keys, then for leased keys; range 0 contains keys that no instance owns yet",
)
INBOUND = Key(
    f"{TOPIC_PREFIX}_inbound_{{recip_key}}",
    "list",
    meaning="Messages for one recipient key, oldest first; a message is removed when it is handled",
)
ATTEMPTS = Key(
    f"{TOPIC_PREFIX}_attempts",
    "hash",
    meaning="Recipient key → attempts at its first message, when the next is due, how many "
    "messages are still taken one by one, the message's id, and the reason of the last failure",
    expiry="when the message is handled or dead",
)
SESSIONS = Key(
    f"{TOPIC_PREFIX}_sessions",
    "hash",
    meaning="Instance uid → the process that is this instance; another one's writes are refused",
    expiry="with the instance",
)
SWEEP = Key(
    f"{TOPIC_PREFIX}_sweep",
    "hash",
    meaning="How far the search for lost instances and for unused keys has come",
)
INBOUND_DEAD = Key(
    f"{TOPIC_PREFIX}_dead_inbound",
    "list",
    meaning="Dead letters: messages that an instance could not handle, with the reason",
    expiry="until dropped by an operator",
)
DIRECT_RESPONSES = Key(
    f"{TOPIC_PREFIX}_inbound_direct_resp",
    "list",
    meaning="Layout `acapy`: responses to callers that wait at any relay, by `txn_id`",
)
RELAY_RESPONSES = Key(
    f"{TOPIC_PREFIX}_responses_{{relay}}",
    "list",
    meaning="Responses to callers that wait at one relay, by `txn_id`",
    expiry="60 s after the last response",
)
OUTBOUND = Key(
    f"{TOPIC_PREFIX}_outbound",
    "list",
    meaning="Messages for the deliverer: service URL, payload, headers",
)
OUTBOUND_RETRY = Key(
    f"{TOPIC_PREFIX}_outbound_retry",
    "zset",
    meaning="Outbound messages that failed, scored by the time of the next attempt in seconds",
)
OUTBOUND_TAKEN = Key(
    f"{TOPIC_PREFIX}_outbound_taken",
    "hash",
    meaning="Lease → outbound message that a deliverer sends; `last` is the newest lease",
)
OUTBOUND_LOANS = Key(
    f"{TOPIC_PREFIX}_outbound_loans",
    "zset",
    meaning="Leases, scored by their end in ms; then another deliverer may take the message",
)
OUTBOUND_DEAD = Key(
    f"{TOPIC_PREFIX}_outbound_dead",
    "list",
    meaning="Dead letters: outbound messages without further retries or that could not be decoded",
    expiry="until retried or dropped by an operator",
)
RECORDED_RULES = Key(
    f"{TOPIC_PREFIX}_rules",
    "hash",
    meaning="`stale_after_ms` of the roles, for the ACA-Py plugin",
    scope=Scope.KEYSPACE,
)
INBOX_WAKE = Key(
    f"{TOPIC_PREFIX}_wake_{{uid}}",
    "channel",
    meaning="An instance has messages in the named partition; a hint, polling finds them too",
    scope=Scope.KEYSPACE,
)
RELAY_WAKE = Key(
    f"{TOPIC_PREFIX}_responses_wake_{{relay}}",
    "channel",
    meaning="A relay has responses for its callers; a hint, polling finds them too",
    scope=Scope.KEYSPACE,
)
OUTBOUND_WAKE = Key(
    f"{TOPIC_PREFIX}_outbound_wake",
    "channel",
    meaning="The named partition has messages to deliver; a hint, polling finds them too",
    scope=Scope.KEYSPACE,
)

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
