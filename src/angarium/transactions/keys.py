"""Keys of the transactions module. The capital letter at the end of a name is the type."""

from __future__ import annotations

from angarium.runtime.keyspace import Key, Scope

PIPELINE = Key(
    "pipelineH:{pipeline}",
    "hash",
    meaning="Definition of a pipeline, its versions and node group; a copy in each partition",
)
PIPELINE_NAMES = Key(
    "pipelineNames",
    "set",
    meaning="Names of all pipelines; a copy in each partition",
)
STATE = Key(
    "stateH:{transaction_id}",
    "hash",
    meaning="State of a transaction: a field for each value, such as status, label, data, output",
    expiry="when archived",
)
PROCESSING = Key(
    "processingZ",
    "zset",
    meaning="Ids of running transactions, scored by the time when a node took them",
)
NODES = Key(
    "nodesZ",
    "zset",
    meaning="Nodes that run transactions, scored by the time of their last heartbeat",
)
STEP_TYPES = Key(
    "stepTypesZ",
    "zset",
    meaning="Step types that nodes have, alone and as `node group|step type`, scored by the last "
    "heartbeat of a node that has them",
    expiry="30 days without such a node",
)
QUEUE_IN = Key(
    "qInL:{node_group}",
    "list",
    meaning="Ids of new transactions of a node group; served last",
)
QUEUE_OUT = Key(
    "qOutL:{node_group}",
    "list",
    meaning="Ids of transactions that continue: woken or resumed; served second",
)
QUEUE_ADMIN = Key(
    "qAdminL:{node_group}",
    "list",
    meaning="Ids of administrative transactions (`--admin`); served first",
)
WAITING = Key(
    "qWaitZ:{place}",
    "zset",
    meaning="Ids of transactions that wait for a node with their next step, scored by the start "
    "of the wait; `place` is `queue|node group|step type`, with `queue` in, out, admin or alone",
)
WAITING_DEADLINES = Key(
    "qWaitZ:deadlines",
    "zset",
    meaning="Ids of all transactions that wait for a step type, scored by their deadline",
)
WAITING_PLACES = Key(
    "qWaitZ:places",
    "zset",
    meaning="Names of all waiting lists, scored by the time when each was created",
)
FAIR_QUEUE = Key(
    "qFairZ:{queue}",
    "zset",
    meaning="Ids of transactions in a queue whose owners take turns, in this order; `queue` is "
    "`in|node group` or `out|node group`; see `transactions.node_fair_owners`",
)
OWNER_TURNS = Key(
    "ownerTurnsH:{queue}",
    "hash",
    meaning="Owner → the place of its last transaction in such a queue or waiting list; `on` "
    "exists while nodes ask for turns",
    expiry="with the last entry of the queue; `on` 1 hour after the last heartbeat of such a node",
)
OWNER_QUOTA = Key(
    "quotaH:{owner}",
    "hash",
    meaning="Owner with a quota: the starts that are left, the time of this number, and the bytes "
    "of its transactions in this partition",
    expiry="60 s after the last start, or after the last of its transactions is archived",
)
NODE_GROUPS = Key(
    "nodeGroups",
    "set",
    meaning="Node groups of pipelines and nodes; a copy in each partition",
)
DEAD_LETTERS = Key(
    "deadLettersZ",
    "zset",
    meaning="Ids of transactions that ended because a step failed too often, scored by their end",
    expiry="a member is removed when it is rerun, dropped or archived, after "
    "`transactions.dead_letter_retention`",
)
EXTERNAL_ID = Key(
    "externalId:{external_id}",
    "string",
    meaning="Owner and the client's own id (`owner|id`) → transaction id",
    expiry="`transactions.externalid_uniqueness_period`, or later while the transaction is open",
)
STATS_FINE = Key(
    "stats1H:{time}",
    "hash",
    meaning="Counters of one interval of 5 s",
    expiry="5 minutes",
)
STATS_MEDIUM = Key(
    "stats2H:{time}",
    "hash",
    meaning="Counters of one interval of 100 s",
    expiry="2 hours",
)
STATS_COARSE = Key(
    "stats3H:{time}",
    "hash",
    meaning="Counters of one interval of 1,000 s",
    expiry="24 hours",
)
SLEEPING = Key(
    "sleepingZ",
    "zset",
    meaning="Ids of sleeping transactions, scored by the time when they wake",
)
TO_ARCHIVE = Key(
    "toArchiveZ",
    "zset",
    meaning="Ids of ended transactions, scored by the time when they may be archived",
    expiry="a member is removed when the archiver reports it as stored",
)
ARCHIVE_LOCK1 = Key(
    "toArchiveLock1",
    "string",
    meaning="The process that leases transactions to archive",
    expiry="`transactions.persisting_permission_lock1_period`",
)
ARCHIVE_LOCK2 = Key(
    "toArchiveLock2",
    "string",
    meaning="Outlives the first lock, so that the process can report before another takes the role",
    expiry="`transactions.persisting_permission_lock2_period`",
)
WEBHOOKS = Key(
    "webhooksZ",
    "zset",
    meaning="Ids of transactions with a webhook to send, scored by the time of the next attempt",
    expiry="a member is removed when it is delivered, cancelled or out of attempts",
)
WEBHOOK_LOCK1 = Key(
    "webhooksLock1",
    "string",
    meaning="The process that leases webhooks to send",
    expiry="`transactions.persisting_permission_lock1_period`",
)
WEBHOOK_LOCK2 = Key(
    "webhooksLock2",
    "string",
    meaning="Outlives the first lock, so that the process can report before another takes the role",
    expiry="`transactions.persisting_permission_lock2_period`",
)
WEBHOOK_COUNTER = Key(
    "webhookCounter:{url}",
    "string",
    meaning="Failures of one URL since its last success, over all transactions; or `disabled`",
    expiry="`transactions.webhook_fail_period`, or `transactions.webhook_disable_period`",
)
TRANSACTIONS_NOTIFY = Key(
    "transactions:notify",
    "channel",
    meaning="Ends, for long polls: one line per event with its transaction ids",
    scope=Scope.KEYSPACE,
)
TRANSACTIONS_EVENTS = Key(
    "transactions:notify:events",
    "channel",
    meaning="All events in the same form; an API process subscribes with its first event stream",
    scope=Scope.KEYSPACE,
)
TRANSACTIONS_WORK = Key(
    "transactions:work",
    "channel",
    meaning="Hints to nodes: an empty queue got work, a transaction waits for a step type, a "
    "running transaction must be cancelled",
    scope=Scope.KEYSPACE,
)

KEYS: tuple[Key, ...] = tuple(value for value in globals().values() if isinstance(value, Key))
