"""Declares what nodes do for all transactions: heartbeats, waking, expiry and recovery."""

from __future__ import annotations

from typing import Any, NamedTuple

from angarium.runtime.transition import Transition
from angarium.transactions import keys
from angarium.transactions.transitions import (
    BATCH_STEMS,
    CHANNELS,
    ENDING_KEYS,
    ENDING_STEMS,
    PACKAGE,
    QUEUES,
    GroupItem,
    TransactionItem,
)


class Counted(NamedTuple):
    number: int


class WakeArgs(NamedTuple):
    limit: int


WAKE: Transition[Any] = Transition(
    PACKAGE,
    "wake_transactions",
    keys={"sleeping": keys.SLEEPING},
    stems={**BATCH_STEMS, "states": keys.STATE, "out": keys.QUEUE_OUT},
    channels=CHANNELS,
    args=WakeArgs,
    replies={"woken": Counted},
)


class ExpireArgs(NamedTuple):
    archive_ms: int
    dead_ms: int
    child_bytes_max: int
    limit: int


EXPIRE_WAITING: Transition[Any] = Transition(
    PACKAGE,
    "expire_waiting",
    keys=ENDING_KEYS,
    stems={**ENDING_STEMS, "wait": keys.WAITING},
    channels=CHANNELS,
    args=ExpireArgs,
    replies={"expired": Counted},
)


class TouchArgs(NamedTuple):
    node: str
    leaving: bool
    step_types: str
    fair_owners: bool


class NodeTime(NamedTuple):
    now_ms: int


TOUCH_NODE = Transition(
    PACKAGE,
    "touch_node",
    keys={"nodes": keys.NODES, "step_types": keys.STEP_TYPES, "groups": keys.NODE_GROUPS},
    stems={**BATCH_STEMS, "wait": keys.WAITING},
    channels=CHANNELS,
    args=TouchArgs,
    item=GroupItem,
    item_keys=QUEUES,
    replies={"alive": NodeTime, "left": None},
    one_reply=True,
)


class RecoverArgs(NamedTuple):
    """The items are all that the caller took before `as_of_ms`, unless a reply was lost."""

    node: str
    timeout_ms: int
    offset: int
    limit: int
    as_of_ms: int
    recovers_others: bool
    max_runs: int
    archive_ms: int
    dead_ms: int
    child_bytes_max: int


class RecoveredPart(NamedTuple):
    """How many left processingZ, where the next part begins or -1, the caller's transactions that
    must be cancelled, and in turn ids and reasons of those that became dead letters."""

    number: int
    offset: int
    to_cancel: list[str]
    dead: list[str]


RECOVER = Transition(
    PACKAGE,
    "recover_orphans",
    keys={**ENDING_KEYS, "nodes": keys.NODES},
    stems={**BATCH_STEMS, **QUEUES, "states": keys.STATE},
    channels=CHANNELS,
    args=RecoverArgs,
    item=TransactionItem,
    replies={"recovered": RecoveredPart},
    one_reply=True,
)
