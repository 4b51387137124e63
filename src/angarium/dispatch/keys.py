"""Keys of the dispatch module. Most of their names can be set."""

from __future__ import annotations

from angarium.runtime.keyspace import Key, Scope

MESSAGES_PUBLISHED = Key(
    "messages:published",
    "channel",
    meaning="Publishers send their JSON here; every dispatcher subscribes",
    scope=Scope.KEYSPACE,
)
MESSAGES_INBOX = Key(
    "messages:inbox",
    "stream",
    meaning="Durable intake: messages that wait for the leader, also while no dispatcher runs",
    expiry="an entry is removed when its message is accepted",
)
MESSAGES_PENDING = Key(
    "messages:pending",
    "zset",
    meaning="Ids of accepted, unfinished messages, scored by the time of the last dispatch or "
    "renewal in ms",
    expiry="a member is removed when its message is finished or a dead letter",
)
MESSAGES_PAYLOADS = Key(
    "messages:pending:payloads",
    "hash",
    meaning="Message id → the published bytes, unchanged",
    expiry="a field is removed with its pending member",
)
MESSAGES_ATTEMPTS = Key(
    "messages:pending:attempts",
    "hash",
    meaning="Message id → how often it was sent to a worker, the worker that renewed it, and a "
    "line for each failure; no field means that it was sent once",
    expiry="a field is removed with its pending member",
)
MESSAGES_QUEUES = Key(
    "messages:pending:queues",
    "hash",
    meaning="Message id → its named queue, and its place there while it waits; no field for the "
    "unnamed queue",
    expiry="a field is removed with its pending member",
)
MESSAGES_WAITING = Key(
    "messages:pending:waiting",
    "zset",
    meaning="Messages that wait for a worker of their named queue: queue, time and message id, all "
    "with score 0, in this order",
    expiry="a member is removed when its message is sent or has ended",
)
MESSAGES_EPOCH = Key(
    "messages:epoch",
    "string",
    meaning="Number of the last epoch. An epoch contains the messages between two epoch markers in "
    "the channel, the same for every dispatcher. In the first partition only",
)
MESSAGES_EPOCHS = Key(
    "messages:published:epochs",
    "channel",
    meaning="Epoch markers, progress of leaders, released partitions, and messages that were "
    "acknowledged to another dispatcher than the one that sent them",
    scope=Scope.KEYSPACE,
)
MESSAGES_DIGESTS = Key(
    "messages:digests:{epoch}",
    "hash",
    meaning="First message of a batch → digests of the payloads accepted with it, so that the next "
    "leader does not accept them again",
    expiry="when the epoch is covered, at the latest after ten minutes",
)
MESSAGES_COVERED = Key(
    "messages:covered",
    "string",
    meaning="Number of an epoch; every message of the epochs before it was accepted",
)
MESSAGES_ONCE = Key(
    "messages:inbox:once:{idempotency_key}",
    "string",
    meaning="A sender's idempotency key → id of its message",
    expiry="a day",
)
MESSAGES_WRITER = Key(
    "messages:inbox:writer:{writer}",
    "set",
    meaning="Numbers of the last calls of one process that wrote to the durable intake, so that a "
    "repeated call adds nothing",
    expiry="ten minutes after the last call",
)
MESSAGES_PROCESSED = Key(
    "messages:processed",
    "stream",
    meaning="Results of the workers: their fields, `message_id` and `consumer_id`",
    expiry="`dispatch.results_keep_s` after the result, unless a consumer group has not read it",
)
MESSAGES_DEAD = Key(
    "messages:dead",
    "stream",
    meaning="Dead letters: messages without further deliveries, with the reasons",
    expiry="until retried or dropped by an operator",
)
CONSUMER_IDS = Key(
    "consumer:ids",
    "list",
    meaning="Live consumers as `host:port`, in round-robin order; in the first partition only",
    expiry="an entry is removed when its consumer has been silent for some seconds",
)
CONSUMERS_SEEN = Key(
    "consumer:ids:seen",
    "zset",
    meaning="Consumers, scored by the time of their last heartbeat in ms",
)
CONSUMER_QUEUES = Key(
    "consumer:queues",
    "list",
    meaning="Live consumers of named queues as `queue@host:port`; in the first partition only",
    expiry="an entry is removed when its consumer has been silent for some seconds",
)
CONSUMER_QUEUES_SEEN = Key(
    "consumer:queues:seen",
    "zset",
    meaning="Consumers of named queues, scored by the time of their last heartbeat in ms",
)
DISPATCHER_IDS = Key(
    "dispatcher:ids",
    "list",
    meaning="Live dispatchers, which share the partitions; in the first partition only",
    expiry="an entry is removed when its dispatcher has been silent for some seconds",
)
DISPATCHERS_SEEN = Key(
    "dispatcher:ids:seen",
    "zset",
    meaning="Dispatchers, scored by the time of their last heartbeat in ms",
)
LEADER_LOCK = Key(
    "distributed_leader_lock",
    "string",
    meaning="Term and name of the leader of this partition",
    expiry="`dispatch.lock_ms` after the last renewal",
)
LEADER_LOCK_TERM = Key(
    "distributed_leader_lock:term",
    "string",
    meaning="The last term of `distributed_leader_lock`; it only grows",
)

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
