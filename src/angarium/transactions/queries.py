"""Queries for people and dashboards: statistics and the health report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition
from angarium.transactions import keys
from angarium.transactions.model import pairs_of
from angarium.transactions.settings import TransactionsSettings
from angarium.transactions.statistics import StatisticsInterval, StatisticsLevel, merge_intervals
from angarium.transactions.transitions import PACKAGE, QUEUES, STATISTICS, GroupItem


class StatisticsArgs(NamedTuple):
    level: str
    interval_s: int
    intervals: int


class StatisticsRows(NamedTuple):
    """The start of an interval and its fields in turn, newest first, without empty ones."""

    rows: list[Any]


READ_STATISTICS: Transition[Any] = Transition(
    PACKAGE,
    "read_statistics",
    stems=STATISTICS,
    args=StatisticsArgs,
    replies={"found": StatisticsRows},
)


class HealthArgs(NamedTuple):
    longest_running: int


class LongestRow(NamedTuple):
    transaction_id: str
    score: float
    node: str
    label: str


class NodeRow(NamedTuple):
    node: str
    seen_ms: float


class QueueRow(NamedTuple):
    node_group: str
    kind: str
    length: int
    since_ms: float


class WaitingRow(NamedTuple):
    place: str
    length: int
    since_ms: float
    node_seen_ms: float


class HealthReply(NamedTuple):
    """`lengths`: running, sleeping, to archive, webhooks due, dead letters."""

    now_ms: int
    lengths: list[int]
    longest: list[LongestRow]
    nodes: list[NodeRow]
    queues: list[QueueRow]
    waiting: list[WaitingRow]


READ_HEALTH = Transition(
    PACKAGE,
    "read_health",
    keys={
        "processing": keys.PROCESSING,
        "nodes": keys.NODES,
        "sleeping": keys.SLEEPING,
        "to_archive": keys.TO_ARCHIVE,
        "webhooks": keys.WEBHOOKS,
        "dead": keys.DEAD_LETTERS,
        "step_types": keys.STEP_TYPES,
    },
    stems={"states": keys.STATE, "wait": keys.WAITING, "fair": keys.FAIR_QUEUE},
    args=HealthArgs,
    item=GroupItem,
    item_keys=QUEUES,
    replies={"health": HealthReply},
    one_reply=True,
)


class LongRunningTransaction(msgspec.Struct, frozen=True):
    transaction_id: str
    taken_ms: int
    age_ms: int
    node: str
    pipeline: str


class TransactionQueue(msgspec.Struct, frozen=True):
    """`kind`: admin, out and in, or `waiting` for the transactions that wait for a step type.
    `waiting_ms`: how long the first entry has been waiting."""

    node_group: str
    kind: str
    length: int
    waiting_ms: int


class AwaitedStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step type that transactions wait for, and that no live node of the group has.
    `waiting_ms`: how long the first of them has been waiting."""

    node_group: str
    step_type: str
    transactions: int
    waiting_ms: int
    has_node: bool = False  # then they only wait for a free slot, and no report lists them


class NodeLiveness(msgspec.Struct, frozen=True):
    node: str
    silent_ms: int
    alive: bool


class TransactionHealthReport(msgspec.Struct, frozen=True):
    """The answer of `/v1/transaction-watch`, where the longest running are named `elders`."""

    running: int
    sleeping: int
    to_archive: int
    webhooks: int
    longest_running: list[LongRunningTransaction] = msgspec.field(name="elders")
    queues: list[TransactionQueue]
    nodes: list[NodeLiveness]
    awaited_steps: list[AwaitedStep] = []
    dead_letters: int = 0


class TransactionQueries:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._partitions = range(runtime.settings.partitions)
        self._settings = runtime.settings.group(TransactionsSettings)
        self._timeout_ms = self._settings.node_timeout_ms

    async def groups(self) -> list[str]:
        """The node groups of pipelines, of nodes, and of this process's settings."""
        name = self._runtime.keyspace.name(keys.NODE_GROUPS, 0)
        known = {
            each.decode() for each in await self._runtime.redis.call("SMEMBERS", name, key=name)
        }
        return sorted(known | set(self._settings.node_groups))

    async def statistics(self, level: StatisticsLevel, intervals: int) -> list[StatisticsInterval]:
        """Newest interval first, summed over partitions."""
        parts: list[tuple[int, Mapping[bytes, bytes]]] = []
        for partition in self._partitions:
            args = StatisticsArgs(level.value, level.interval_s, intervals)
            found = (await self._runtime.call(READ_STATISTICS, partition, args)).rows
            for start_s, fields in zip(found[::2], found[1::2], strict=True):
                parts.append((int(start_s), pairs_of(fields)))
        return merge_intervals(parts)

    async def health_report(
        self, groups: Sequence[str], longest_running: int
    ) -> TransactionHealthReport:
        parts = [
            await self._read_health(partition, groups, longest_running)
            for partition in self._partitions
        ]
        steps = _awaited_steps(parts)
        longest = [each for part in parts for each in part.longest_running]
        return TransactionHealthReport(
            running=sum(part.running for part in parts),
            sleeping=sum(part.sleeping for part in parts),
            to_archive=sum(part.to_archive for part in parts),
            webhooks=sum(part.webhooks for part in parts),
            longest_running=sorted(longest, key=lambda e: e.taken_ms)[:longest_running],
            queues=[*_waiting_queues(groups, steps), *_queues(parts)],
            nodes=_nodes(parts),
            awaited_steps=sorted(
                (each for each in steps if not each.has_node), key=lambda each: -each.waiting_ms
            ),
            dead_letters=sum(part.dead_letters for part in parts),
        )

    async def _read_health(
        self, partition: int, groups: Sequence[str], longest_running: int
    ) -> TransactionHealthReport:
        items = [GroupItem(each) for each in groups]
        args = HealthArgs(longest_running)
        found: HealthReply = await self._runtime.call(READ_HEALTH, partition, args, items)
        now_ms = found.now_ms
        running, sleeping, to_archive, webhooks, dead_letters = found.lengths
        return TransactionHealthReport(
            running,
            sleeping,
            to_archive,
            webhooks,
            longest_running=[_long_running(now_ms, each) for each in found.longest],
            nodes=[_liveness(now_ms, each, self._timeout_ms) for each in found.nodes],
            queues=[_queue(now_ms, each) for each in found.queues],
            awaited_steps=[_awaited_step(now_ms, each, self._timeout_ms) for each in found.waiting],
            dead_letters=dead_letters,
        )


def _awaited_step(now_ms: int, row: WaitingRow, timeout_ms: int) -> AwaitedStep:
    _, group, step_type = row.place.split("|")
    has_node = now_ms - row.node_seen_ms < timeout_ms
    waiting_ms = max(0, now_ms - int(row.since_ms))
    return AwaitedStep(group, step_type, row.length, waiting_ms, has_node)


def _liveness(now_ms: int, row: NodeRow, timeout_ms: int) -> NodeLiveness:
    silent_ms = now_ms - int(row.seen_ms)
    return NodeLiveness(row.node, silent_ms, silent_ms < timeout_ms)


def _queue(now_ms: int, row: QueueRow) -> TransactionQueue:
    waiting_ms = now_ms - int(row.since_ms) if row.length else 0
    return TransactionQueue(row.node_group, row.kind, row.length, waiting_ms)


def _long_running(now_ms: int, row: LongestRow) -> LongRunningTransaction:
    taken_ms = int(row.score)  # the fraction belongs to the run number
    pipeline = row.label.split("|")[1] if row.label else ""
    return LongRunningTransaction(
        row.transaction_id, taken_ms, now_ms - taken_ms, row.node, pipeline
    )


# Sums over partitions


def _nodes(parts: Sequence[TransactionHealthReport]) -> list[NodeLiveness]:
    """Each node once, with its newest heartbeat."""
    nodes: dict[str, NodeLiveness] = {}
    for node in (each for part in parts for each in part.nodes):
        known = nodes.get(node.node)
        if known is None or node.silent_ms < known.silent_ms:
            nodes[node.node] = node
    return sorted(nodes.values(), key=lambda each: each.node)


def _queues(parts: Sequence[TransactionHealthReport]) -> list[TransactionQueue]:
    sums: dict[tuple[str, str], TransactionQueue] = {}
    for queue in (each for part in parts for each in part.queues):
        name = (queue.node_group, queue.kind)
        other = sums.get(name, TransactionQueue(*name, 0, 0))
        waiting_ms = max(queue.waiting_ms, other.waiting_ms)
        sums[name] = TransactionQueue(*name, queue.length + other.length, waiting_ms)
    return list(sums.values())


def _awaited_steps(parts: Sequence[TransactionHealthReport]) -> list[AwaitedStep]:
    sums: dict[tuple[str, str], AwaitedStep] = {}
    for step in (each for part in parts for each in part.awaited_steps):
        name = (step.node_group, step.step_type)
        other = sums.get(name, AwaitedStep(*name, 0, 0))
        waiting_ms = max(step.waiting_ms, other.waiting_ms)
        count, has_node = step.transactions + other.transactions, step.has_node or other.has_node
        sums[name] = AwaitedStep(*name, count, waiting_ms, has_node)
    return list(sums.values())


def _waiting_queues(
    groups: Sequence[str], steps: Sequence[AwaitedStep]
) -> Iterator[TransactionQueue]:
    """For each group the transactions whose next step no running node has, as a queue of the kind
    `waiting`."""
    for group in dict.fromkeys([*groups, *(step.node_group for step in steps)]):
        own = [step for step in steps if step.node_group == group]
        longest_ms = max((step.waiting_ms for step in own), default=0)
        length = sum(step.transactions for step in own)
        yield TransactionQueue(group, "waiting", length, longest_ms)
