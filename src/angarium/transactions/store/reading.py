"""What people and dashboards ask: lists, statistics, and what needs an eye on it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from angarium.runtime import keyspace as keys
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script
from angarium.transactions.model import Status, Transaction, pairs_of, transaction_of
from angarium.transactions.statistics import Interval, Level, merged
from angarium.transactions.store.places import Places

LIST = load_script("angarium.transactions", "list_transactions")
READ_STATISTICS = load_script("angarium.transactions", "read_statistics")
READ_WATCH = load_script("angarium.transactions", "read_watch")
# A list that filters looks at no more than this in each partition: it holds up Redis meanwhile.
LOOKED_MAX = 2_000
_LEVEL_KEYS = {
    Level.FINE: keys.STATS_FINE,
    Level.MEDIUM: keys.STATS_MEDIUM,
    Level.COARSE: keys.STATS_COARSE,
}


class Elder(msgspec.Struct, frozen=True):
    """A transaction that was taken long ago and has not ended."""

    transaction_id: str
    taken_ms: int
    age_ms: int
    node: str
    pipeline: str


class Queue(msgspec.Struct, frozen=True):
    """`kind`: admin, out and in as they are served, and `waiting` for those that wait for a step
    type. `waiting_ms`: how long its first entry has been waiting."""

    node_group: str
    kind: str
    length: int
    waiting_ms: int


class AwaitedStep(msgspec.Struct, frozen=True):
    """A step type that no node had when its transactions were looked at; `waiting_ms`: how long the
    first of them has been waiting."""

    node_group: str
    step_type: str
    transactions: int
    waiting_ms: int


class NodeSeen(msgspec.Struct, frozen=True):
    node: str
    silent_ms: int
    alive: bool


class Watch(msgspec.Struct, frozen=True):
    running: int
    sleeping: int
    to_archive: int
    webhooks: int
    elders: list[Elder]
    queues: list[Queue]
    nodes: list[NodeSeen]
    awaited_steps: list[AwaitedStep] = []


class ReadingStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._places = Places(runtime)
        self._timeout_ms = runtime.settings.transactions.node_timeout_ms

    async def listed(
        self,
        status: Status,
        groups: Sequence[str],
        count: int,
        *,
        pipeline: str = "",
        owner: str = "",
    ) -> list[Transaction]:
        """Those that have been in this status longest; of completed ones, the newest."""
        found: list[Transaction] = []
        for partition in self._places.partitions:
            for kind, sources in self._sources(status, partition, groups):
                names = [self._places.stem(keys.STATE, partition), *sources]
                args = (kind, count, LOOKED_MAX, pipeline, owner, str(status))
                rows = await self._runtime.run(LIST, partition, names, args)
                found += [transaction_of(row[0].decode(), pairs_of(row, 1)) for row in rows]
        return found[:count]

    def _sources(
        self, status: Status, partition: int, groups: Sequence[str]
    ) -> list[tuple[str, Sequence[str]]]:
        """Where transactions of a status are, and how that is read."""
        places = self._places
        if status is Status.QUEUED:
            waiting = places.name(keys.WAITING_DEADLINES, partition)
            return [("zset", [waiting]), ("list", places.queues(partition, groups))]
        if status is Status.RUNNING:
            return [("zset", [places.name(keys.PROCESSING, partition)])]
        if status is Status.SLEEPING:
            return [("zset", [places.name(keys.SLEEPING, partition)])]
        return [("newest", [places.name(keys.TO_ARCHIVE, partition)])]

    async def statistics(self, level: Level, intervals: int) -> list[Interval]:
        """Newest first, summed over partitions."""
        replies = []
        for partition in self._places.partitions:
            stem = self._places.stem(_LEVEL_KEYS[level], partition)
            args = (level.interval_s, intervals)
            replies.append(await self._runtime.run(READ_STATISTICS, partition, [stem], args))
        return merged(
            [
                (int(start_s), pairs_of(fields))
                for reply in replies
                for start_s, fields in zip(reply[::2], reply[1::2], strict=True)
            ]
        )

    async def watch(self, groups: Sequence[str], elders: int) -> Watch:
        parts = [await self._watch(p, groups, elders) for p in self._places.partitions]
        nodes: dict[str, NodeSeen] = {}
        queues: dict[tuple[str, str], Queue] = {}
        for part in parts:
            for node in part.nodes:
                known = nodes.get(node.node)
                if known is None or node.silent_ms < known.silent_ms:
                    nodes[node.node] = node
            for queue in part.queues:
                place = (queue.node_group, queue.kind)
                other = queues.get(place)
                length = queue.length + (other.length if other else 0)
                waiting_ms = max(queue.waiting_ms, other.waiting_ms if other else 0)
                queues[place] = Queue(*place, length, waiting_ms)
        steps: dict[tuple[str, str], AwaitedStep] = {}
        for step in (each for part in parts for each in part.awaited_steps):
            name = (step.node_group, step.step_type)
            same = steps.get(name, AwaitedStep(*name, 0, 0))
            steps[name] = AwaitedStep(
                *name,
                step.transactions + same.transactions,
                max(step.waiting_ms, same.waiting_ms),
            )
        waiting: list[Queue] = []
        for group in dict.fromkeys([*groups, *(group for group, _ in steps)]):
            waits = [step for step in steps.values() if step.node_group == group]
            longest_ms = max((step.waiting_ms for step in waits), default=0)
            length = sum(step.transactions for step in waits)
            waiting.append(Queue(group, "waiting", length, longest_ms))
        oldest = sorted((e for part in parts for e in part.elders), key=lambda e: e.taken_ms)
        return Watch(
            running=sum(part.running for part in parts),
            sleeping=sum(part.sleeping for part in parts),
            to_archive=sum(part.to_archive for part in parts),
            webhooks=sum(part.webhooks for part in parts),
            elders=oldest[:elders],
            queues=[*waiting, *queues.values()],
            nodes=sorted(nodes.values(), key=lambda each: each.node),
            awaited_steps=sorted(steps.values(), key=lambda each: -each.waiting_ms),
        )

    async def _watch(self, partition: int, groups: Sequence[str], elders: int) -> Watch:
        places = self._places
        names = [
            places.stem(keys.STATE, partition),
            places.name(keys.PROCESSING, partition),
            places.name(keys.NODES, partition),
            places.name(keys.SLEEPING, partition),
            places.name(keys.TO_ARCHIVE, partition),
            places.name(keys.WEBHOOKS, partition),
            places.stem(keys.WAITING, partition),
            *places.queues(partition, groups),
        ]
        reply = await self._runtime.run(READ_WATCH, partition, names, (elders,))
        now_ms = int(reply[0])
        counts, old, nodes, queues, waiting = reply[1:]
        running, sleeping, to_archive, webhooks = counts
        kinds = [(group, kind) for group in groups for kind in ("admin", "out", "in")]
        return Watch(
            running,
            sleeping,
            to_archive,
            webhooks,
            elders=[
                _elder(now_ms, id, at, node, label)
                for id, at, node, label in zip(*[iter(old)] * 4, strict=True)
            ],
            nodes=[
                NodeSeen(node.decode(), now_ms - int(at), now_ms - int(at) < self._timeout_ms)
                for node, at in zip(nodes[::2], nodes[1::2], strict=True)
            ],
            queues=[
                Queue(group, kind, length, now_ms - int(since) if length else 0)
                for (group, kind), length, since in zip(
                    kinds, queues[::2], queues[1::2], strict=True
                )
            ],
            awaited_steps=[
                _awaited_step(now_ms, place, length, since)
                for place, length, since in zip(*[iter(waiting)] * 3, strict=True)
            ],
        )


def _awaited_step(now_ms: int, place: bytes, length: int, since: bytes) -> AwaitedStep:
    _, group, step_type = place.decode().split("|")
    return AwaitedStep(group, step_type, length, max(0, now_ms - int(float(since))))


def _elder(now_ms: int, id: bytes, place: bytes, node: bytes, label: bytes) -> Elder:
    taken_ms = int(float(place))  # the fraction is the run's
    pipeline = label.decode().split("|")[1] if label else ""
    return Elder(id.decode(), taken_ms, now_ms - taken_ms, node.decode(), pipeline)
