"""Something of everything: each module's own store moves some messages, some to their end."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from angarium.dispatch.store import DispatchStore
from angarium.pickup.archive import MessageArchive
from angarium.pickup.persister import Persister
from angarium.pickup.queues import PickupQueues
from angarium.pickup.store import PickupStore
from angarium.routing.outbound_store import OutboundStore, Settlement
from angarium.routing.store import RoutingRules, RoutingStore
from angarium.runtime.keyspace import Key
from angarium.runtime.runtime import Runtime
from angarium.runtime.settings import CommonSettings
from tests.conversations import harness as conversations_harness
from tests.dispatch import harness as dispatch_harness
from tests.kit.clock import FakeClock
from tests.kit.sample import sample_settings
from tests.pickup import harness as pickup_harness
from tests.routing import harness as routing_harness
from tests.transactions import harness as transactions_harness

# A start of a day, so that windows are easy to name.
NOW_MS = 1_760_000_000_000


@dataclass
class Traffic:
    """What was left open, by module and account; the names of the keys that hold it."""

    runtime: Runtime
    clock: FakeClock
    folder: Path
    open: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def settings(self) -> CommonSettings:
        return self.runtime.settings

    def name(self, key: Key, *parts: str, partition: int = 0) -> str:
        return self.runtime.keyspace.name(key, partition, *parts)

    async def transactions(self, started: int = 6, completed: int = 3) -> list[str]:
        harness = transactions_harness.Harness(self.runtime)
        for name, steps in transactions_harness.STEPS.items():
            await harness.define(name, *steps)
        ids = [
            await harness.start("one" if number % 2 else "two", owner=f"o{number % 3}")
            for number in range(started)
        ]
        await self.clock.advance(7)
        taken = await harness.take(count=completed)
        await self.clock.advance(120)
        for number, each in enumerate(taken):
            status = "failed" if number == 0 else "success"
            assert await harness.store.complete(each, status, b"1", "why" * (number == 0)) == (
                "completed"
            )
        await harness.client.close()
        ended = {each.id for each in taken}
        self._add("transactions", "transaction", [each for each in ids if each not in ended])
        return ids

    async def dispatch(self) -> list[str]:
        store = DispatchStore(self.runtime)
        partition = store.partitions - 1
        term = await dispatch_harness.take_term(self.runtime, store, partition)
        harness = dispatch_harness.StoreHarness(self.runtime, store, partition, term)
        done, refused = await harness.accepted(b"1", b"2")
        await harness.complete(done)
        for _ in range(10):
            await harness.reject(refused, "no")
            await self.clock.advance(5)
            await harness.claim()
        (pending,) = await harness.accepted(b"3")
        waiting = await store.enqueue(b'{"n":4}')
        self._add("dispatch", "message", [pending.decode(), waiting.message_id])
        return [done.decode(), pending.decode(), waiting.message_id]

    async def conversations(self) -> None:
        harness = conversations_harness.Harness(self.runtime, self.clock)
        await harness.request("q1", "talk")
        await harness.request("q2", "talk")
        first = await harness.reply("q1", "r1", "talk")
        second = await harness.reply("q1", "r2", "talk")
        await self.clock.advance(0.5)
        await harness.store.report_sent(first, None)
        await harness.store.finish(first, "unasked")
        self._add("conversations", "reply", [second.response_id])
        self._add("conversations", "request", ["q2"])

    async def routing(self) -> None:
        rules = RoutingRules("native", routing_harness.STALE_MS, 1_000)
        store = RoutingStore(self.runtime, rules)
        await store.touch("uid1")
        await routing_harness.post(store, "key-a", b"1", b"2")
        await routing_harness.handle_all(store, "uid1", "key-a")
        await routing_harness.post(store, "key-b", b"3")
        waiting = await self._subjects("accepted", "key-b")
        outbound = OutboundStore(self.runtime, "native")
        for number in range(5):
            await outbound.push(f"https://example.org/{number}", b"x", {})
        loans = [
            loan
            for partition in range(self.settings.partitions)
            for loan in await outbound.take(partition, 4)
        ]
        outcomes = ("delivered", "retried", "dead")  # and one is still lent, one in the list
        for loan, outcome in zip(loans, outcomes, strict=False):
            name = loan.item.split(b'"')[3].decode()
            await outbound.settle(
                Settlement(loan, outcome, name, "https://example.org", 1, loan.item, reason="no")
            )
        pushed = set(await self._subjects("outbound_accepted"))
        ended = {
            subject
            for event in ("outbound_delivered", "outbound_dead")
            for subject in await self._subjects(event)
        }
        self._add("routing", "inbound", waiting)
        self._add("routing", "outbound", sorted(pushed - ended))

    async def pickup(self) -> None:
        store = PickupStore(self.runtime)
        archive = await MessageArchive.open(self.settings.database_url, self.settings.prefix)
        try:
            persisters = [Persister(store, archive, number, 10_000) for number in store.partitions]
            pickup = pickup_harness.PickupHarness(
                self.runtime, store, archive, PickupQueues(store, archive), persisters, self.clock
            )
            await pickup.persist()
            moved = await pickup.add()
            await pickup.archive_all()
            delivered, waiting = await pickup.add(), await pickup.add()
            await store.remove(pickup_harness.QUEUE, "delivered", [delivered])
        finally:
            await archive.close()
        self._add("pickup", "message", [moved, waiting])

    async def everything(self) -> None:
        await self.transactions()
        await self.dispatch()
        await self.conversations()
        await self.routing()
        await self.pickup()

    def _add(self, module: str, account: str, subjects: list[str]) -> None:
        self.open.setdefault((module, account), []).extend(subjects)

    async def _subjects(self, event: str, key: str | None = None) -> list[str]:
        found = await routing_harness.events(self.runtime, event)
        return [each.subject for each in found if key is None or each.key == key]


_numbers = itertools.count(1)


@asynccontextmanager
async def traffic(redis_url: str, folder: Path, **overrides: Any) -> AsyncIterator[Traffic]:
    """A keyspace and a lake of its own, on a clock that the test moves."""
    clock = FakeClock(NOW_MS)
    settings = sample_settings(redis_url, home=folder / f"home{next(_numbers)}", **overrides)
    async with Runtime.open(settings, clock=clock) as runtime:
        settings.home.mkdir(parents=True, exist_ok=True)
        yield Traffic(runtime, clock, folder)
