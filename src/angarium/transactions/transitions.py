"""Declares every change of a transaction: keys, arguments, items and replies of each script."""

from __future__ import annotations

from typing import Any, NamedTuple

from angarium.runtime.transition import Transition
from angarium.transactions import keys

PACKAGE = "angarium.transactions"
CHANNELS = {
    "notify": keys.TRANSACTIONS_NOTIFY,
    "events": keys.TRANSACTIONS_EVENTS,
    "work": keys.TRANSACTIONS_WORK,
}
STATISTICS = {
    "stats_fine": keys.STATS_FINE,
    "stats_medium": keys.STATS_MEDIUM,
    "stats_coarse": keys.STATS_COARSE,
}
QUEUES = {"admin": keys.QUEUE_ADMIN, "out": keys.QUEUE_OUT, "in": keys.QUEUE_IN}
STATE = {"state": keys.STATE}
# What a script needs that can end a transaction.
ENDING_KEYS = {
    "processing": keys.PROCESSING,
    "sleeping": keys.SLEEPING,
    "to_archive": keys.TO_ARCHIVE,
    "webhooks": keys.WEBHOOKS,
    "dead": keys.DEAD_LETTERS,
}
ENDING_STEMS = {**STATISTICS, "out": keys.QUEUE_OUT, "states": keys.STATE}
# Why a call of a run was refused: the transaction belongs to another run, or has ended.
REFUSALS: dict[str, None] = dict.fromkeys(("no_state", "not_running", "stale_run"))


class TransactionItem(NamedTuple):
    transaction_id: str


class GroupItem(NamedTuple):
    node_group: str


class RunItem(NamedTuple):
    transaction_id: str
    run: str


class EndArgs(NamedTuple):
    """How long an ended transaction and a dead letter stay in Redis, and how many bytes of outputs
    of children its parent gets."""

    archive_ms: int
    dead_ms: int
    child_bytes_max: int


# Clients


class EnqueueArgs(NamedTuple):
    external_ms: int
    timeout_ms: int
    queue_max: int


class StartItem(NamedTuple):
    """`kind` is «pipeline|version, or nothing for the newest|owner»; empty texts are not set."""

    transaction_id: str
    kind: str
    data: bytes
    external_id: str = ""
    metadata: bytes = b""
    webhook: str = ""
    options: str = ""


class DuplicateStart(NamedTuple):
    transaction_id: str


ENQUEUE = Transition(
    PACKAGE,
    "enqueue_transactions",
    stems={
        **STATISTICS,
        "in": keys.QUEUE_IN,
        "admin": keys.QUEUE_ADMIN,
        "pipelines": keys.PIPELINE,
        "externals": keys.EXTERNAL_ID,
        "states": keys.STATE,
        "wait": keys.WAITING,
    },
    channels=CHANNELS,
    args=EnqueueArgs,
    item=StartItem,
    item_keys=STATE,
    replies={
        "started": None,
        "duplicate": DuplicateStart,
        "already_queued": None,
        "exists": None,
        "unknown_pipeline": None,
        "unknown_version": None,
        "queue_full": None,
    },
)


class StateFields(NamedTuple):
    """`fields` are names and values in turn."""

    now_ms: int
    fields: list[Any]


GET_STATES = Transition(
    PACKAGE,
    "get_states",
    item=TransactionItem,
    item_keys=STATE,
    replies={"found": StateFields, "no_state": None},
)
CANCEL = Transition(
    PACKAGE,
    "cancel_transactions",
    keys=ENDING_KEYS,
    stems={**ENDING_STEMS, "wait": keys.WAITING},
    channels=CHANNELS,
    args=EndArgs,
    item=TransactionItem,
    item_keys=STATE,
    replies=dict.fromkeys(("cancelled", "cancelling", "finished", "no_state")),
)


class SwitchArgs(NamedTuple):
    switches_max: int


class SwitchItem(NamedTuple):
    transaction_id: str
    switch: str
    value: str


SET_SWITCHES = Transition(
    PACKAGE,
    "set_switches",
    keys={"sleeping": keys.SLEEPING},
    stems={**STATISTICS, "out": keys.QUEUE_OUT},
    channels=CHANNELS,
    args=SwitchArgs,
    item=SwitchItem,
    item_keys=STATE,
    replies=dict.fromkeys(("woken", "set", "too_many", "finished", "no_state")),
)


class ReplyItem(NamedTuple):
    """`notified_ms` is the time in the response."""

    transaction_id: str
    notified_ms: str


RECORD_REPLIES = Transition(
    PACKAGE,
    "record_replies",
    keys={"webhooks": keys.WEBHOOKS},
    stems=STATISTICS,
    channels=CHANNELS,
    item=ReplyItem,
    item_keys=STATE,
    replies=dict.fromkeys(("recorded", "known", "not_ended", "no_state")),
)


# Runs


class DequeueArgs(NamedTuple):
    """Step types are « a b »; `pipelines` « name|version » are some of which the node has all
    steps. `waiting`: also take transactions that wait for a step type. Of the `plain_types`, the
    node has free `threads`. `alone`: it runs no transaction that must run alone."""

    node: str
    limit: int
    step_types: str
    pipelines: str
    waiting: bool
    plain_types: str
    threads: int
    alone: bool


class Dequeued(NamedTuple):
    """A row of `taken` is id, run, score in processingZ, label, version, data, remaining_ms, 1 if
    the step needs a thread, and only if the state has rare fields: externalId, checkpoint, cancel,
    switches, metadata, faults, flags ('w' webhook, 'p' parent), results of children. `refused`
    entries could not run, `waiting` ones wait for a node that can run their step."""

    taken: list[Any]
    refused: int
    waiting: int
    more: bool


DEQUEUE = Transition(
    PACKAGE,
    "dequeue_transactions",
    keys={"processing": keys.PROCESSING, "nodes": keys.NODES},
    stems={
        **STATISTICS,
        "states": keys.STATE,
        "pipelines": keys.PIPELINE,
        "wait": keys.WAITING,
    },
    channels=CHANNELS,
    args=DequeueArgs,
    item=GroupItem,
    item_keys=QUEUES,
    replies={"dequeued": Dequeued},
    one_reply=True,
)


class CompleteItem(NamedTuple):
    """`score` is the score in processingZ. `ending` is «status|run|flags|reason|label», with the
    reason of a dead letter, and the flags 'f' may have a checkpoint, 'w' has a webhook, 'p' has a
    parent, 'c' has children."""

    transaction_id: str
    score: bytes
    ending: str
    output: bytes
    remark: str


COMPLETE = Transition(
    PACKAGE,
    "complete_transactions",
    keys=ENDING_KEYS,
    stems=ENDING_STEMS,
    channels=CHANNELS,
    args=EndArgs,
    item=CompleteItem,
    item_keys=STATE,
    replies={"completed": None, "bad_status": None, **REFUSALS},
)


class CheckpointItem(NamedTuple):
    transaction_id: str
    run: str
    step: str
    checkpoint: bytes


CHECKPOINT = Transition(
    PACKAGE,
    "checkpoint_transactions",
    stems=STATISTICS,
    channels=CHANNELS,
    item=CheckpointItem,
    item_keys=STATE,
    replies={"saved": None, "cancelled": None, **REFUSALS},
)


class SleepItem(NamedTuple):
    """Without `sleep_ms`, until the switch is set or the transaction's deadline. With `tries`, the
    step failed that often, the last time with `error`."""

    transaction_id: str
    run: str
    checkpoint: bytes
    sleep_ms: str
    switch: str
    tries: str = ""
    error: str = ""


SLEEP = Transition(
    PACKAGE,
    "sleep_transactions",
    keys={"processing": keys.PROCESSING, "sleeping": keys.SLEEPING},
    stems={**STATISTICS, "out": keys.QUEUE_OUT},
    channels=CHANNELS,
    item=SleepItem,
    item_keys=STATE,
    replies={"sleeping": None, "awake": None, "cancelled": None, **REFUSALS},
)


class ProgressItem(NamedTuple):
    transaction_id: str
    run: str
    report: bytes


REPORT_PROGRESS = Transition(
    PACKAGE,
    "report_progress",
    keys={"webhooks": keys.WEBHOOKS},
    stems=STATISTICS,
    channels=CHANNELS,
    item=ProgressItem,
    item_keys=STATE,
    replies={"reported": None, **REFUSALS},
)
RETURN = Transition(
    PACKAGE,
    "return_transactions",
    keys={"processing": keys.PROCESSING},
    stems={**STATISTICS, **QUEUES},
    channels=CHANNELS,
    item=RunItem,
    item_keys=STATE,
    replies={"returned": None, **REFUSALS},
)


class HandOverItem(NamedTuple):
    transaction_id: str
    run: str
    step: str
    checkpoint: bytes
    step_type: str
    missing: bool


HAND_OVER = Transition(
    PACKAGE,
    "hand_over_transactions",
    keys={"processing": keys.PROCESSING},
    stems={**STATISTICS, "wait": keys.WAITING},
    channels=CHANNELS,
    item=HandOverItem,
    item_keys=STATE,
    replies={"waits": None, "cancelled": None, **REFUSALS},
)


class CallChildrenArgs(NamedTuple):
    transaction_id: str
    run: str
    checkpoint: bytes
    pipeline: str
    timeout_ms: int
    step: int


class ChildItem(NamedTuple):
    data: bytes


CALL_CHILDREN = Transition(
    PACKAGE,
    "call_children",
    keys={"processing": keys.PROCESSING, "sleeping": keys.SLEEPING, **STATE},
    stems={
        **STATISTICS,
        "in": keys.QUEUE_IN,
        "pipelines": keys.PIPELINE,
        "states": keys.STATE,
    },
    channels=CHANNELS,
    args=CallChildrenArgs,
    item=ChildItem,
    replies={"called": None, "cancelled": None, "unknown_pipeline": None, **REFUSALS},
    one_reply=True,
)


# Dead letters


class RerunArgs(NamedTuple):
    timeout_ms: int


class RerunItem(NamedTuple):
    """Without `data`, the step gets the data that it had."""

    transaction_id: str
    data: bytes


RERUN = Transition(
    PACKAGE,
    "rerun_transactions",
    keys={
        "dead": keys.DEAD_LETTERS,
        "to_archive": keys.TO_ARCHIVE,
        "webhooks": keys.WEBHOOKS,
    },
    stems={
        **STATISTICS,
        "out": keys.QUEUE_OUT,
        "admin": keys.QUEUE_ADMIN,
        "pipelines": keys.PIPELINE,
    },
    channels=CHANNELS,
    args=RerunArgs,
    item=RerunItem,
    item_keys=STATE,
    replies=dict.fromkeys(("queued", "not_dead", "unknown_version", "no_state")),
)
DROP = Transition(
    PACKAGE,
    "drop_dead_letters",
    keys={"dead": keys.DEAD_LETTERS, "to_archive": keys.TO_ARCHIVE},
    stems=STATISTICS,
    channels=CHANNELS,
    args=EndArgs,
    item=TransactionItem,
    item_keys=STATE,
    replies=dict.fromkeys(("dropped", "not_dead", "no_state")),
)
