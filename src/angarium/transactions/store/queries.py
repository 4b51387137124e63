"""Queries for people and dashboards: lists by status, statistics, and the health report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script
from angarium.transactions import keys as transactions_keys
from angarium.transactions.model import Transaction, TransactionStatus, pairs_of, transaction_of
from angarium.transactions.settings import TransactionsSettings
from angarium.transactions.statistics import StatisticsInterval, StatisticsLevel, merge_intervals
from angarium.transactions.store.keys import TransactionKeys

LIST = load_script("angarium.transactions", "list_transactions")
READ_STATISTICS = load_script("angarium.transactions", "read_statistics")
READ_HEALTH = load_script("angarium.transactions", "read_health")
# A filtered list reads at most this many entries per partition, because its script blocks Redis.
READ_MAX = 2_000
_LEVEL_KEYS = {
    StatisticsLevel.FINE: transactions_keys.STATS_FINE,
    StatisticsLevel.MEDIUM: transactions_keys.STATS_MEDIUM,
    StatisticsLevel.COARSE: transactions_keys.STATS_COARSE,
}


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


class AwaitedStep(msgspec.Struct, frozen=True):
    """A step type that transactions wait for, because the node that looked at them lacks it.
    `waiting_ms`: how long the first of them has been waiting."""

    node_group: str
    step_type: str
    transactions: int
    waiting_ms: int


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


class TransactionQueries:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._keys = TransactionKeys(runtime)
        self._timeout_ms = runtime.settings.group(TransactionsSettings).node_timeout_ms

    async def list_by_status(
        self,
        status: TransactionStatus,
        groups: Sequence[str],
        count: int,
        *,
        pipeline: str = "",
        owner: str = "",
    ) -> list[Transaction]:
        """In the order of their queue or sorted set; for a final status, last completed first."""
        found: list[Transaction] = []
        for partition in self._keys.partitions:
            for kind, sources in self._sources(status, partition, groups):
                names = [self._keys.stem(transactions_keys.STATE, partition), *sources]
                args = (kind, count, READ_MAX, pipeline, owner, str(status))
                rows = await self._runtime.run(LIST, partition, names, args)
                found += [transaction_of(row[0].decode(), pairs_of(row, 1)) for row in rows]
        return found[:count]

    def _sources(
        self, status: TransactionStatus, partition: int, groups: Sequence[str]
    ) -> list[tuple[str, Sequence[str]]]:
        """(kind, key names) of the lists and sorted sets with transactions of a status."""
        keys = self._keys
        if status is TransactionStatus.QUEUED:
            waiting = keys.name(transactions_keys.WAITING_DEADLINES, partition)
            return [("zset", [waiting]), ("list", keys.queues(partition, groups))]
        if status is TransactionStatus.RUNNING:
            return [("zset", [keys.name(transactions_keys.PROCESSING, partition)])]
        if status is TransactionStatus.SLEEPING:
            return [("zset", [keys.name(transactions_keys.SLEEPING, partition)])]
        return [("newest", [keys.name(transactions_keys.TO_ARCHIVE, partition)])]

    async def statistics(self, level: StatisticsLevel, intervals: int) -> list[StatisticsInterval]:
        """Newest interval first, summed over partitions."""
        replies = []
        for partition in self._keys.partitions:
            stem = self._keys.stem(_LEVEL_KEYS[level], partition)
            args = (level.interval_s, intervals)
            replies.append(await self._runtime.run(READ_STATISTICS, partition, [stem], args))
        return merge_intervals(
            [
                (int(start_s), pairs_of(fields))
                for reply in replies
                for start_s, fields in zip(reply[::2], reply[1::2], strict=True)
            ]
        )

    async def health_report(
        self, groups: Sequence[str], longest_running: int
    ) -> TransactionHealthReport:
        parts = [
            await self._read_health(partition, groups, longest_running)
            for partition in self._keys.partitions
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
            awaited_steps=sorted(steps, key=lambda each: -each.waiting_ms),
        )

    async def _read_health(
        self, partition: int, groups: Sequence[str], longest_running: int
    ) -> TransactionHealthReport:
        keys = self._keys
        names = [
            keys.stem(transactions_keys.STATE, partition),
            keys.name(transactions_keys.PROCESSING, partition),
            keys.name(transactions_keys.NODES, partition),
            keys.name(transactions_keys.SLEEPING, partition),
            keys.name(transactions_keys.TO_ARCHIVE, partition),
            keys.name(transactions_keys.WEBHOOKS, partition),
            keys.stem(transactions_keys.WAITING, partition),
            *keys.queues(partition, groups),
        ]
        reply = await self._runtime.run(READ_HEALTH, partition, names, (longest_running,))
        now_ms = int(reply[0])
        counts, longest, nodes, queues, waiting = reply[1:]
        running, sleeping, to_archive, webhooks = counts
        kinds = [(group, kind) for group in groups for kind in ("admin", "out", "in")]
        return TransactionHealthReport(
            running,
            sleeping,
            to_archive,
            webhooks,
            longest_running=[
                _long_running(now_ms, *each) for each in zip(*[iter(longest)] * 4, strict=True)
            ],
            nodes=[
                NodeLiveness(node.decode(), now_ms - int(at), now_ms - int(at) < self._timeout_ms)
                for node, at in zip(nodes[::2], nodes[1::2], strict=True)
            ],
            queues=[
                TransactionQueue(group, kind, length, now_ms - int(since) if length else 0)
                for (group, kind), length, since in zip(
                    kinds, queues[::2], queues[1::2], strict=True
                )
            ],
            awaited_steps=[
                _awaited_step(now_ms, *each) for each in zip(*[iter(waiting)] * 3, strict=True)
            ],
        )


def _awaited_step(now_ms: int, waiting_list: bytes, length: int, since: bytes) -> AwaitedStep:
    _, group, step_type = waiting_list.decode().split("|")
    return AwaitedStep(group, step_type, length, max(0, now_ms - int(float(since))))


def _long_running(
    now_ms: int, id: bytes, score: bytes, node: bytes, label: bytes
) -> LongRunningTransaction:
    taken_ms = int(float(score))  # the fraction belongs to the run number
    pipeline = label.decode().split("|")[1] if label else ""
    return LongRunningTransaction(id.decode(), taken_ms, now_ms - taken_ms, node.decode(), pipeline)


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
        sums[name] = AwaitedStep(*name, step.transactions + other.transactions, waiting_ms)
    return list(sums.values())


def _waiting_queues(
    groups: Sequence[str], steps: Sequence[AwaitedStep]
) -> Iterator[TransactionQueue]:
    """A queue of the kind `waiting` for each group."""
    for group in dict.fromkeys([*groups, *(step.node_group for step in steps)]):
        own = [step for step in steps if step.node_group == group]
        longest_ms = max((step.waiting_ms for step in own), default=0)
        length = sum(step.transactions for step in own)
        yield TransactionQueue(group, "waiting", length, longest_ms)
