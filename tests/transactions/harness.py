"""The stores of the module on a test runtime with sample pipelines, and a node on request."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from angarium.runtime.application import Application
from angarium.runtime.clock import Clock
from angarium.runtime.journal import Event, Journal, decode_entry
from angarium.runtime.keyspace import Key
from angarium.runtime.runtime import Runtime
from angarium.transactions.keys import STATE
from angarium.transactions.leases import TransactionLeases
from angarium.transactions.model import (
    TakenTransaction,
    Transaction,
    TransactionStart,
    TransactionStatus,
    encode_step_types,
)
from angarium.transactions.node import TransactionNode
from angarium.transactions.node_work import NodeCapabilities, NodeWork
from angarium.transactions.pages import TransactionFilter
from angarium.transactions.pipeline import pipeline_of
from angarium.transactions.pipeline_store import PipelineStore
from angarium.transactions.queries import TransactionQueries
from angarium.transactions.service import TransactionsService
from angarium.transactions.statistics import StatisticsLevel
from angarium.transactions.store import TransactionStore
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.transactions.app import app

DEADLINE_S = 30.0
FAR_MS = 4_000_000_000_000
STEP_TYPES = encode_step_types(app.handlers("step"))
PLAIN_TYPES = encode_step_types(n for n, each in app.handlers("step").items() if not each.is_async)
STEPS: Mapping[str, list[dict[str, Any]]] = {
    "one": [{"type": "echo"}],
    "two": [{"type": "add"}, {"type": "add", "parameters": {"n": 10}}],
    "five": [{"type": "logged"}] * 5,
}


class Harness:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.store = TransactionStore(runtime)
        self.pipelines = PipelineStore(runtime)
        self.leases = TransactionLeases(runtime)
        self.queries = TransactionQueries(runtime)
        self.client = TransactionsService(runtime, app)

    async def completed(self, count: int = 1, **more: Any) -> list[str]:
        """Start and complete `count` transactions. Returns their ids."""
        ids = [await self.start(**more) for _ in range(count)]
        for taken in await self.take(count=count):
            await self.store.complete(taken, "success", b"{}", "")
        return ids

    async def define(self, name: str, *steps: dict[str, Any], **more: Any) -> int:
        return await self.pipelines.put(pipeline_of({"name": name, "steps": [*steps], **more}))

    async def start(self, pipeline: str = "one", data: Any = None, **more: Any) -> str:
        start = TransactionStart(
            pipeline, msgspec.json.encode({} if data is None else data), **more
        )
        return (await self.store.start(start)).transaction_id

    async def take(
        self,
        node: str = "n1",
        count: int = 10,
        group: str = "default",
        step_types: str = STEP_TYPES,
    ) -> list[TakenTransaction]:
        """Take up to `count` transactions from all partitions."""
        found: list[TakenTransaction] = []
        for partition in self.store.partitions:
            left = count - len(found)
            batch = await self.store.dequeue(
                partition,
                node,
                [group],
                left,
                NodeCapabilities(step_types, plain_types=PLAIN_TYPES, threads=count),
            )
            found += batch.taken
            if len(found) >= count:
                break
        return found

    async def taken(self, pipeline: str = "one", **more: Any) -> TakenTransaction:
        await self.start(pipeline, **more)
        (taken,) = await self.take()
        return taken

    async def recover(
        self, node: str = "n2", running: tuple[str, ...] = (), *, recovers_others: bool = True
    ) -> int:
        parts, work = self.store.partitions, NodeWork(running, FAR_MS, recovers_others)
        return sum([(await self.store.recover(p, node, work)).count for p in parts])

    async def wake(self) -> int:
        parts = self.store.partitions
        return sum([await self.store.wake_due(p, 100) for p in parts])

    async def state(self, transaction_id: str) -> Transaction:
        found = await self.store.find(transaction_id)
        assert found is not None
        return found

    async def ended(self, transaction_id: str, deadline_s: float = DEADLINE_S) -> Transaction:
        async def final() -> Transaction | None:
            found = await self.state(transaction_id)
            return found if found.status.final else None

        found = await eventually(final, deadline_s)
        assert found is not None
        return found

    async def wait_for_status(self, transaction_id: str, status: str) -> Transaction:
        async def there() -> Transaction | None:
            found = await self.state(transaction_id)
            return found if found.status == status else None

        found = await eventually(there, DEADLINE_S)
        assert found is not None
        return found

    async def events(self) -> list[Event]:
        """The journal events of this module, from all partitions."""
        found: list[Event] = []
        for partition in self.store.partitions:
            after = "0-0"
            while entries := await Journal(self.runtime).read(partition, after):
                for entry_id, fields in entries:
                    entry = decode_entry(entry_id, fields)
                    if entry.module == "transactions":
                        found += entry.events
                after = entries[-1][0].decode()
        return found

    async def event_names(self, transaction_id: str) -> list[str]:
        return [each.event for each in await self.events() if each.subject == transaction_id]

    async def counters(self, level: StatisticsLevel = StatisticsLevel.COARSE) -> dict[str, int]:
        """Event → count over all intervals."""
        sums: dict[str, int] = {}
        for interval in await self.queries.statistics(level, level.intervals_max):
            for event, count in interval.all.items():
                sums[event] = sums.get(event, 0) + count
        return sums

    async def listed(self, status: TransactionStatus, **filters: str) -> list[Transaction]:
        page = await self.client.page_whole(TransactionFilter(status, **filters), 500)
        assert page.next is None
        return page.transactions

    def state_key(self, transaction_id: str) -> str:
        partition = self.store.partition_of(transaction_id)
        return self.runtime.keyspace.name(STATE, partition, transaction_id)

    async def score(self, key: Key, transaction_id: str) -> float | None:
        partition = self.store.partition_of(transaction_id)
        name = self.runtime.keyspace.name(key, partition)
        found = await self.runtime.redis.call("ZSCORE", name, transaction_id, key=name)
        return None if found is None else float(found)


@asynccontextmanager
async def harness(
    redis_url: str, *, clock: Clock | None = None, **overrides: Any
) -> AsyncIterator[Harness]:
    with tempfile.TemporaryDirectory(prefix="angarium-module-") as home:
        given = {"home": home, **overrides}
        async with (
            sample_runtime(redis_url, clock=clock, **given) as runtime,
            _module(runtime) as found,
        ):
            yield found


@asynccontextmanager
async def _module(runtime: Runtime) -> AsyncIterator[Harness]:
    found = Harness(runtime)
    for name, steps in STEPS.items():
        await found.define(name, *steps)
    try:
        yield found
    finally:
        await found.client.close()


@asynccontextmanager
async def running_node(
    runtime: Runtime, application: Application = app
) -> AsyncIterator[TransactionNode]:
    node = TransactionNode(runtime, application)
    await node.start()
    try:
        yield node
    finally:
        await node.stop(10)
