"""Dead letters of every module in the audit: those that are kept, retried and dropped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from angarium.dispatch.dead_letters import DispatchDeadLetters
from angarium.dispatch.store import DispatchStore
from angarium.lake.audit import audit
from angarium.lake.steps import LakeTables
from angarium.lake.tables import Lake
from angarium.routing.finished_keys import FinishedKey
from angarium.routing.items import id_of
from angarium.routing.outbound_store import OutboundStore, Settlement
from angarium.routing.service import RoutingService
from angarium.routing.store import RoutingRules, RoutingStore
from angarium.runtime.dead_letters import DeadLetters
from angarium.runtime.runtime import Runtime
from tests.conversations.test_dead_replies import DeadHarness
from tests.dispatch import harness as dispatch_harness
from tests.lake.filled import store_once
from tests.lake.traffic import Traffic, traffic
from tests.routing import harness as routing_harness
from tests.transactions.harness import STEPS, Harness
from tests.transactions.test_dead_letters import die

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACCOUNTS = {
    ("dispatch", "message"),
    ("routing", "inbound"),
    ("routing", "outbound"),
    ("conversations", "reply"),
    ("transactions", "transaction"),
}


async def dispatch(made: Traffic) -> DeadLetters[Any]:
    runtime, store = made.runtime, DispatchStore(made.runtime)
    partition = store.partitions - 1
    term = await dispatch_harness.take_term(runtime, store, partition)
    here = dispatch_harness.StoreHarness(runtime, store, partition, term)
    ids = await here.accepted(b"1", b"2", b"3")
    assert await here.reject_all([(each, "no") for each in ids], last=True) == ["dead"] * 3
    return DispatchDeadLetters(store)


async def inbound(runtime: Runtime) -> DeadLetters[Any]:
    store = RoutingStore(runtime, RoutingRules("native", routing_harness.STALE_MS, 1_000))
    await store.touch("uid1")
    await routing_harness.post(store, "key", b"1", b"2", b"3")
    partition = store.partition_of("key")
    await store.claim("uid1", partition, 100, again=True)
    items = await routing_harness.take(store, "uid1", "key")
    ended = FinishedKey("key", [(id_of(each), "no") for each in items])
    assert await store.finish("uid1", partition, [ended]) == ["finished"]
    return runtime.store(RoutingService).dead_inbound


async def outbound(runtime: Runtime) -> DeadLetters[Any]:
    store = OutboundStore(runtime, "native")
    for number in range(3):
        await store.push(f"https://example.org/{number}", b"x", {})
    for partition in range(runtime.settings.partitions):
        for loan in await store.take(partition, 10):
            name = loan.item.split(b'"')[3].decode()
            url = "https://example.org"
            await store.settle(Settlement(loan, "dead", name, url, 1, loan.item, reason="no"))
    return runtime.store(RoutingService).dead_outbound


async def test_kept_retried_and_dropped_dead_letters_are_counted(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Of three in each account one is retried and in flight again, and one is dropped."""
    async with traffic(redis_url, tmp_path) as made:
        runtime = made.runtime
        transactions = Harness(runtime)
        for name, steps in STEPS.items():
            await transactions.define(name, *steps)
        await die(transactions, "no", "no", "no")
        replies = DeadHarness(runtime, made.clock)
        await replies.die("no", "a", "b", "c")
        for letters in (
            await dispatch(made),
            await inbound(runtime),
            await outbound(runtime),
            replies.dead,
            transactions.client.dead_letters(),
        ):
            _, retried, dropped = (await letters.page()).letters
            await letters.retry(retried.id)
            await letters.drop(dropped.id)
        await transactions.client.close()
        store_once(spark, made.settings)
        async with Runtime.open(made.settings, clock=made.clock) as later:
            await made.clock.advance(20)
            found = await audit(later, spark, LakeTables(Lake.of(made.settings)))
    assert found.findings == []
    dead, in_flight = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for each in found.balances:
        dead[each.module, each.account] += each.dead
        in_flight[each.module, each.account] += each.in_flight
    assert +dead == Counter(dict.fromkeys(ACCOUNTS, 3))
    assert {account: in_flight[account] for account in ACCOUNTS} == dict.fromkeys(ACCOUNTS, 1)
