"""Keys of the transactions module; the letter at the end of a name tells the type."""

from __future__ import annotations

from functools import partial

from angarium.runtime.keys.key import Key, Scope

_transactions = partial(Key, module="transactions")

PIPELINE = _transactions(
    "pipelineH:{pipeline}",
    "hash",
    meaning="Definition of a pipeline, its versions and node group; a copy in each partition",
)
PIPELINE_NAMES = _transactions(
    "pipelineNames",
    "set",
    meaning="Names of all pipelines; a copy in each partition",
)
STATE = _transactions(
    "stateH:{transaction_id}",
    "hash",
    meaning="State of a transaction as JSON, with the fields that scripts need beside it",
    expiry="when archived",
)
PROCESSING = _transactions(
    "processingZ",
    "zset",
    meaning="Ids of transactions that a node works on, scored by when it took them",
)
NODES = _transactions(
    "nodesZ",
    "zset",
    meaning="Nodes that run transactions, scored by their last sign of life",
)
STEP_TYPES = _transactions(
    "stepTypesZ",
    "zset",
    meaning="Step types that nodes can run, scored by when a node last said so",
)
QUEUE_IN = _transactions(
    "qInL:{node_group}",
    "list",
    meaning="Ids of transactions whose next event starts a pipeline; served last",
)
QUEUE_OUT = _transactions(
    "qOutL:{node_group}",
    "list",
    meaning="Ids of transactions whose next event ends a pipeline; served second",
)
QUEUE_ADMIN = _transactions(
    "qAdminL:{node_group}",
    "list",
    meaning="Ids of transactions with an administrative event; served first",
)
WAITING = _transactions(
    "qWaitZ:{place}",
    "zset",
    meaning="Ids of transactions that wait for a node with their next step type, scored by when "
    "they began to wait; a place is `queue|node group|step type`, with `queue` in, out or admin",
)
WAITING_DEADLINES = _transactions(
    "qWaitZ:deadlines",
    "zset",
    meaning="Ids of all transactions that wait for a step type, scored by when their time is over",
)
WAITING_PLACES = _transactions(
    "qWaitZ:places",
    "zset",
    meaning="Places where transactions wait for a step type, scored by when the first one came",
)
EXTERNAL_ID = _transactions(
    "externalId:{external_id}",
    "string",
    meaning="The client's own id, qualified by its owner → transaction id",
    expiry="`transactions.externalid_uniqueness_period`",
)
STATS_FINE = _transactions(
    "stats1H:{time}",
    "hash",
    meaning="Counters of one interval of 5 s",
    expiry="5 minutes",
)
STATS_MEDIUM = _transactions(
    "stats2H:{time}",
    "hash",
    meaning="Counters of one interval of 100 s",
    expiry="2 hours",
)
STATS_COARSE = _transactions(
    "stats3H:{time}",
    "hash",
    meaning="Counters of one interval of 1,000 s",
    expiry="24 hours",
)
SLEEPING = _transactions(
    "sleepingZ",
    "zset",
    meaning="Ids of sleeping transactions, scored by when they wake",
)
TO_ARCHIVE = _transactions(
    "toArchiveZ",
    "zset",
    meaning="Ids of completed transactions, scored by when they may be archived",
    expiry="a member goes when the archiver says that it is stored",
)
ARCHIVE_LOCK1 = _transactions(
    "toArchiveLock1",
    "string",
    meaning="The node that is given transactions to archive",
    expiry="`transactions.persisting_permission_lock1_period`",
)
ARCHIVE_LOCK2 = _transactions(
    "toArchiveLock2",
    "string",
    meaning="Outlives the first lock, so that the node can report before another takes the role",
    expiry="`transactions.persisting_permission_lock2_period`",
)
WEBHOOKS = _transactions(
    "webhooksZ",
    "zset",
    meaning="Ids of transactions with a webhook due, scored by the time of the next attempt",
    expiry="a member goes when it is delivered, cancelled or out of retries",
)
WEBHOOK_LOCK1 = _transactions(
    "webhooksLock1",
    "string",
    meaning="The node that is given webhooks to send",
    expiry="`transactions.persisting_permission_lock1_period`",
)
WEBHOOK_LOCK2 = _transactions(
    "webhooksLock2",
    "string",
    meaning="Outlives the first lock, so that the node can report before another takes the role",
    expiry="`transactions.persisting_permission_lock2_period`",
)
WEBHOOK_COUNTER = _transactions(
    "webhookCounter:{url}",
    "string",
    meaning="Failures of one URL in a row, over all transactions; or `disabled`",
    expiry="`transactions.webhook_fail_period`, or `transactions.webhook_disable_period`",
)
TRANSACTIONS_NOTIFY = _transactions(
    "transactions:notify",
    "channel",
    meaning="Ends: a line for each kind, with the ids it happened to; for long polls",
    scope=Scope.KEYSPACE,
)
TRANSACTIONS_EVENTS = _transactions(
    "transactions:notify:events",
    "channel",
    meaning="The same for every change; heard by an API that has, or had, an event stream",
    scope=Scope.KEYSPACE,
)
TRANSACTIONS_WORK = _transactions(
    "transactions:work",
    "channel",
    meaning="Hints to nodes: a queue that was empty has work, a transaction waits for a step type, "
    "a running transaction is cancelled",
    scope=Scope.KEYSPACE,
)
