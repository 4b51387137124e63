"""Keys of the dispatch module. Most of their names can be set."""

from __future__ import annotations

from angarium.runtime.key import Key, Scope

MESSAGES_PUBLISHED = Key(
    "messages:published",
    "channel",
    meaning="Where publishers send their JSON; every dispatcher listens",
    scope=Scope.KEYSPACE,
)
MESSAGES_INBOX = Key(
    "messages:inbox",
    "stream",
    meaning="Durable intake: messages that wait for the leader even when no dispatcher runs",
    expiry="an entry goes when its message is accepted",
)
MESSAGES_PENDING = Key(
    "messages:pending",
    "zset",
    meaning="Accepted and unfinished messages: id, scored by the time of the last dispatch in ms",
    expiry="a member goes when its message is finished or dead",
)
MESSAGES_PAYLOADS = Key(
    "messages:pending:payloads",
    "hash",
    meaning="Message id → the published bytes, untouched",
    expiry="a field goes with its pending member",
)
MESSAGES_ATTEMPTS = Key(
    "messages:pending:attempts",
    "hash",
    meaning="Message id → how often it was sent to a worker, and a line for each failure; without "
    "a field it was sent once",
    expiry="a field goes with its pending member",
)
MESSAGES_EPOCH = Key(
    "messages:epoch",
    "string",
    meaning="Number of the last epoch; an epoch is what was published between two marks, the same "
    "for every dispatcher. In the first partition only",
)
MESSAGES_EPOCHS = Key(
    "messages:published:epochs",
    "channel",
    meaning="Marks between epochs, how far leaders have come, partitions that were given back, and "
    "messages acknowledged at another dispatcher than the one that sent them",
    scope=Scope.KEYSPACE,
)
MESSAGES_DIGESTS = Key(
    "messages:digests:{epoch}",
    "hash",
    meaning="First message of a batch → digests of the payloads accepted with it, so that the next "
    "leader knows what it need not accept",
    expiry="when the epoch is covered, at the latest after ten minutes",
)
MESSAGES_COVERED = Key(
    "messages:covered",
    "string",
    meaning="Every message of the epochs before this one was accepted",
)
MESSAGES_ONCE = Key(
    "messages:inbox:once:{idempotency_key}",
    "string",
    meaning="A sender's idempotency key → id of the message it stands for; without one, the "
    "message's own id",
    expiry="a day; ten minutes without a key",
)
MESSAGES_PROCESSED = Key(
    "messages:processed",
    "stream",
    meaning="Results of the workers: their fields, `message_id` and `consumer_id`",
)
MESSAGES_DEAD = Key(
    "messages:dead",
    "stream",
    meaning="Messages that used up their deliveries, with the reasons",
    expiry="until retried or dropped by an operator",
)
CONSUMER_IDS = Key(
    "consumer:ids",
    "list",
    meaning="Live consumers as `host:port`, in the order of their turns; in the first partition "
    "only",
    expiry="an entry goes when its consumer has been silent for some seconds",
)
CONSUMERS_SEEN = Key(
    "consumer:ids:seen",
    "zset",
    meaning="Consumer → when it last said that it lives, in ms",
)
DISPATCHER_IDS = Key(
    "dispatcher:ids",
    "list",
    meaning="Live dispatchers, among which the partitions are shared out; in the first partition "
    "only",
    expiry="an entry goes when its dispatcher has been silent for some seconds",
)
DISPATCHERS_SEEN = Key(
    "dispatcher:ids:seen",
    "zset",
    meaning="Dispatcher → when it last said that it lives, in ms",
)
LEADER_LOCK = Key(
    "distributed_leader_lock",
    "string",
    meaning="Who leads this partition, and under which term",
    expiry="`dispatch.lock_ms` after the last renewal",
)
LEADER_LOCK_TERM = Key(
    "distributed_leader_lock:term",
    "string",
    meaning="The last term given out for `distributed_leader_lock`; only grows",
)

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
