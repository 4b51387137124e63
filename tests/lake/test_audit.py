"""The audit on modules that worked, and on modules from which something was taken by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium.conversations import keys as conversations_keys
from angarium.dispatch import keys as dispatch_keys
from angarium.lake.audit import Audit, audit, last_audit
from angarium.lake.steps import LakeTables
from angarium.lake.tables import Lake, LakeEmpty
from angarium.pickup import keys as pickup_keys
from angarium.routing import keys as routing_keys
from angarium.runtime.runtime import Runtime
from angarium.transactions import keys as transactions_keys
from tests.kit.sample import sample_runtime
from tests.lake.filled import Filled, store_once
from tests.lake.filled import filled as filled
from tests.lake.traffic import traffic
from tests.pickup.harness import QUEUE
from tests.transactions.harness import STEPS, Harness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a hand could delete, and which open lives are gone with it.
TAKEN = {
    "transaction": (transactions_keys.STATE, "transactions", "transaction"),
    "pending": (dispatch_keys.MESSAGES_PENDING, "dispatch", "message"),
    "intake": (dispatch_keys.MESSAGES_INBOX, "dispatch", "message"),
    "reply": (conversations_keys.PENDING_MESSAGES, "conversations", "reply"),
    "request": (conversations_keys.OPEN_REQUESTS, "conversations", "request"),
    "inbound": (routing_keys.INBOUND, "routing", "inbound"),
    "outbound": (routing_keys.OUTBOUND, "routing", "outbound"),
    "lent": (routing_keys.OUTBOUND_TAKEN, "routing", "outbound"),
    "retried": (routing_keys.OUTBOUND_RETRY, "routing", "outbound"),
    "pickup": (pickup_keys.PICKUP_MESSAGES, "pickup", "message"),
}
PARTS = {routing_keys.INBOUND: "key-b", pickup_keys.PICKUP_MESSAGES: QUEUE}


@asynccontextmanager
async def without(runtime: Runtime, name: str) -> AsyncIterator[None]:
    """The key is gone meanwhile, and back afterwards as it was."""
    kept = await runtime.redis.call("DUMP", name, key=name)
    assert kept is not None, name
    await runtime.redis.call("DEL", name, key=name)
    try:
        yield
    finally:
        await runtime.redis.call("RESTORE", name, 0, kept, key=name)


async def test_a_clean_run_has_nothing_unexplained(filled: Filled, spark: SparkSession) -> None:
    async with filled.runtime() as runtime:
        found = await audit(runtime, spark, filled.tables)
    assert found.findings == []
    assert found.clean
    in_flight = {(e.module, e.account): 0 for e in found.balances}
    for each in found.balances:
        in_flight[each.module, each.account] += each.in_flight
        ended = each.delivered + each.expired + each.cancelled + each.dead + each.failed
        waiting = each.in_flight + each.unexplained - each.earlier
        assert each.accepted + _announced(each.module, each.start_s, found) == ended + waiting
    open_ = {account: len(subjects) for account, subjects in filled.open.items()}
    assert {account: count for account, count in in_flight.items() if count} == open_
    assert {e.module for e in found.balances} == {
        "dispatch", "routing", "conversations", "pickup", "transactions",
    }  # fmt: skip
    newest = last_audit(filled.lake)
    assert newest is not None
    assert newest.audited_ms >= found.audited_ms
    assert newest.clean


def _announced(module: str, start_s: int, found: Audit) -> int:
    """In the durable intake, so in flight, and not accepted yet."""
    last = max(each.start_s for each in found.balances if each.module == "dispatch")
    return 1 if module == "dispatch" and start_s == last else 0


@pytest.mark.parametrize("what", TAKEN)
async def test_what_was_deleted_by_hand_is_named(
    filled: Filled, spark: SparkSession, what: str
) -> None:
    key, module, account = TAKEN[what]
    async with filled.runtime() as runtime:
        victims = filled.open[module, account]
        parts = (
            (victims[0],)
            if key is transactions_keys.STATE
            else (PARTS[key],)
            if key in PARTS
            else ()
        )
        partition = runtime.settings.partitions - 1
        async with without(runtime, runtime.keyspace.name(key, partition, *parts)):
            found = await audit(runtime, spark, filled.tables)
    assert not found.clean
    assert {(each.kind, each.module, each.account) for each in found.findings} == {
        ("unexplained", module, account)
    }
    named = [each.subject for each in found.findings]
    assert named
    assert set(named) <= set(victims)
    assert found.wrong == len(named) == sum(each.unexplained for each in found.balances)


async def test_a_message_in_the_database_is_not_missing(
    filled: Filled, spark: SparkSession
) -> None:
    """The pickup module moved one of its two there: Redis has it no more, and that is right."""
    moved, waiting = filled.open["pickup", "message"]
    async with filled.runtime() as runtime:
        name = runtime.keyspace.name(pickup_keys.PICKUP_MESSAGES, 0, QUEUE)
        async with without(runtime, name):
            found = await audit(runtime, spark, filled.tables)
    assert [each.subject for each in found.findings] == [waiting]
    assert moved != waiting


async def test_what_ended_behind_the_lake_is_no_finding(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The lake is always a little behind: the newest entries of the journal explain the rest."""
    async with traffic(redis_url, tmp_path) as made:
        harness, lake = Harness(made.runtime), Lake.of(made.settings)
        await harness.define("one", *STEPS["one"])
        ended, gone = await harness.start(), await harness.start()
        await asyncio.to_thread(store_once, spark, made.settings)
        assert (await audit(made.runtime, spark, LakeTables(lake))).clean
        assert await harness.store.cancel(ended) == "cancelled"
        for each in (ended, gone):
            state = made.name(transactions_keys.STATE, each)
            await made.runtime.redis.call("DEL", state, key=state)
        found = await audit(made.runtime, spark, LakeTables(lake))
        await harness.client.close()
    assert [each.subject for each in found.findings] == [gone]


async def test_a_lake_that_never_ran_says_what_to_do(
    redis_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    async with sample_runtime(redis_url, home=tmp_path) as runtime:
        with pytest.raises(LakeEmpty, match="angarium lake run --once"):
            await audit(runtime, spark, LakeTables(Lake.of(runtime.settings)))
