"""Declares every change of a transaction: keys, arguments, items and replies of each script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from angarium.runtime.keyspace import Key
from angarium.runtime.transition import Transition
from angarium.transactions import keys

Item = TypeVar("Item", bound=tuple[Any, ...])
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
# What `write_batch` writes.
BATCH_STEMS = {**STATISTICS, "fair": keys.FAIR_QUEUE, "turns": keys.OWNER_TURNS}
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
ENDING_STEMS = {**BATCH_STEMS, "out": keys.QUEUE_OUT, "states": keys.STATE}
# Why a call of a run was refused: the transaction belongs to another run, or has ended.
REFUSALS: dict[str, None] = dict.fromkeys(("no_state", "not_running", "stale_run"))


def change(
    name: str,
    item: type[Item],
    replies: Mapping[str, type[tuple[Any, ...]] | None],
    *,
    keys: Mapping[str, Key] = {},
    stems: Mapping[str, Key] = {},
    args: type[tuple[Any, ...]] | None = None,
    admits: bool = False,
) -> Transition[Item]:
    """A change of transactions, one for each item, that `write_batch` ends."""
    return Transition(
        PACKAGE,
        name,
        keys=keys,
        stems={**BATCH_STEMS, **stems},
        channels=CHANNELS,
        args=args,
        item=item,
        item_keys=STATE,
        replies=replies,
        admits=admits,
    )


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


class StartArgs(NamedTuple):
    external_ms: int
    timeout_ms: int
    queue_max: int


class StartItem(NamedTuple):
    """`kind` is «pipeline|version, or nothing for the newest|owner», for an owner with a quota
    «|starts in a second|stored bytes» of this partition too; empty texts are not set."""

    transaction_id: str
    kind: str
    data: bytes
    external_id: str = ""
    metadata: bytes = b""
    webhook: str = ""
    options: str = ""


class DuplicateStart(NamedTuple):
    transaction_id: str


ENQUEUE = change(
    "enqueue_transactions",
    StartItem,
    {
        "started": None,
        "duplicate": DuplicateStart,
        "already_queued": None,
        "exists": None,
        "unknown_pipeline": None,
        "unknown_version": None,
        "queue_full": None,
        "too_many_starts": None,
        "too_many_bytes": None,
    },
    stems={
        "in": keys.QUEUE_IN,
        "admin": keys.QUEUE_ADMIN,
        "pipelines": keys.PIPELINE,
        "externals": keys.EXTERNAL_ID,
        "states": keys.STATE,
        "wait": keys.WAITING,
        "quota": keys.OWNER_QUOTA,
    },
    args=StartArgs,
    admits=True,
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
CANCEL = change(
    "cancel_transactions",
    TransactionItem,
    dict.fromkeys(("cancelled", "cancelling", "finished", "no_state")),
    keys=ENDING_KEYS,
    stems={**ENDING_STEMS, "wait": keys.WAITING},
    args=EndArgs,
)


class SwitchArgs(NamedTuple):
    switches_max: int


class SwitchItem(NamedTuple):
    transaction_id: str
    switch: str
    value: str


SET_SWITCHES = change(
    "set_switches",
    SwitchItem,
    dict.fromkeys(("woken", "set", "too_many", "finished", "no_state")),
    keys={"sleeping": keys.SLEEPING},
    stems={"out": keys.QUEUE_OUT},
    args=SwitchArgs,
)


class ReplyItem(NamedTuple):
    """`notified_ms` is the time in the response."""

    transaction_id: str
    notified_ms: str


RECORD_REPLIES = change(
    "record_replies",
    ReplyItem,
    dict.fromkeys(("recorded", "known", "not_ended", "no_state")),
    keys={"webhooks": keys.WEBHOOKS},
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
        **BATCH_STEMS,
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


COMPLETE = change(
    "complete_transactions",
    CompleteItem,
    {"completed": None, "bad_status": None, **REFUSALS},
    keys=ENDING_KEYS,
    stems=ENDING_STEMS,
    args=EndArgs,
)


class CheckpointItem(NamedTuple):
    transaction_id: str
    run: str
    step: str
    checkpoint: bytes


CHECKPOINT = change(
    "checkpoint_transactions",
    CheckpointItem,
    {"saved": None, "cancelled": None, **REFUSALS},
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


SLEEP = change(
    "sleep_transactions",
    SleepItem,
    {"sleeping": None, "awake": None, "cancelled": None, **REFUSALS},
    keys={"processing": keys.PROCESSING, "sleeping": keys.SLEEPING},
    stems={"out": keys.QUEUE_OUT},
)


class ProgressItem(NamedTuple):
    transaction_id: str
    run: str
    report: bytes


REPORT_PROGRESS = change(
    "report_progress",
    ProgressItem,
    {"reported": None, **REFUSALS},
    keys={"webhooks": keys.WEBHOOKS},
)
RETURN = change(
    "return_transactions",
    RunItem,
    {"returned": None, **REFUSALS},
    keys={"processing": keys.PROCESSING},
    stems={**QUEUES},
)


class HandOverItem(NamedTuple):
    transaction_id: str
    run: str
    step: str
    checkpoint: bytes
    step_type: str
    missing: bool


HAND_OVER = change(
    "hand_over_transactions",
    HandOverItem,
    {"waits": None, "cancelled": None, **REFUSALS},
    keys={"processing": keys.PROCESSING},
    stems={"wait": keys.WAITING},
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
        **BATCH_STEMS,
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


RERUN = change(
    "rerun_transactions",
    RerunItem,
    dict.fromkeys(("queued", "not_dead", "unknown_version", "no_state")),
    keys={
        "dead": keys.DEAD_LETTERS,
        "to_archive": keys.TO_ARCHIVE,
        "webhooks": keys.WEBHOOKS,
    },
    stems={
        "out": keys.QUEUE_OUT,
        "admin": keys.QUEUE_ADMIN,
        "pipelines": keys.PIPELINE,
    },
    args=RerunArgs,
)
DROP = change(
    "drop_dead_letters",
    TransactionItem,
    dict.fromkeys(("dropped", "not_dead", "no_state")),
    keys={"dead": keys.DEAD_LETTERS, "to_archive": keys.TO_ARCHIVE},
    args=EndArgs,
)
