"""The audit on rooms that worked, and on rooms from which something was taken by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from angarium.conversations import keys as conversations_keys
from angarium.dispatch import keys as dispatch_keys
from angarium.lake.audit import Audit, audit, last_audit
from angarium.lake.jobs.events import position_of
from angarium.lake.query import ask
from angarium.lake.schemas import EVENTS, MESSAGES
from angarium.lake.tables import Lake, LakeEmpty
from angarium.pickup import keys as pickup_keys
from angarium.routing import keys as routing_keys
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.runtime import Runtime
from angarium.transactions import keys as transactions_keys
from tests.kit.sample import sample_runtime
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled
from tests.lake.traffic import traffic
from tests.pickup.harness import QUEUE
from tests.transactions.harness import STEPS, Harness

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


async def test_a_clean_run_has_nothing_unexplained(filled: Filled) -> None:
    async with filled.runtime() as runtime:
        found = await audit(runtime, filled.lake)
    assert found.findings == []
    assert found.clean
    in_flight = {(e.room, e.account): 0 for e in found.balances}
    for each in found.balances:
        in_flight[each.room, each.account] += each.in_flight
        ended = each.delivered + each.expired + each.cancelled + each.dead + each.failed
        waiting = each.in_flight + each.unexplained - each.earlier
        assert each.accepted + _announced(each.room, each.start_s, found) == ended + waiting
    open_ = {account: len(subjects) for account, subjects in filled.open.items()}
    assert {account: count for account, count in in_flight.items() if count} == open_
    assert {e.room for e in found.balances} == {
        "dispatch", "routing", "conversations", "pickup", "transactions",
    }  # fmt: skip
    filed = ask(filled.lake, f"select room from audit where audited_ms = {found.audited_ms}")
    assert len(filed.rows) == len(found.balances)
    assert min(each.audited_ms for each in last_audit(filled.lake)) >= found.audited_ms


def _announced(room: str, start_s: int, found: Audit) -> int:
    """In the durable intake, so in flight, and not accepted yet."""
    last = max(each.start_s for each in found.balances if each.room == "dispatch")
    return 1 if room == "dispatch" and start_s == last else 0


@pytest.mark.parametrize("what", TAKEN)
async def test_what_was_deleted_by_hand_is_named(filled: Filled, what: str) -> None:
    key, room, account = TAKEN[what]
    async with filled.runtime() as runtime:
        victims = filled.open[room, account]
        parts = (
            (victims[0],)
            if key is transactions_keys.STATE
            else (PARTS[key],)
            if key in PARTS
            else ()
        )
        partition = runtime.settings.partitions - 1
        async with without(runtime, runtime.keyspace.name(key, partition, *parts)):
            found = await audit(runtime, filled.lake)
    assert not found.clean
    assert {(each.kind, each.room, each.account) for each in found.findings} == {
        ("unexplained", room, account)
    }
    named = [each.subject for each in found.findings]
    assert named
    assert set(named) <= set(victims)
    assert found.wrong == len(named) == sum(each.unexplained for each in found.balances)


async def test_a_message_in_the_database_is_not_missing(filled: Filled) -> None:
    """The pickup room moved one of its two there: Redis has it no more, and that is right."""
    moved, waiting = filled.open["pickup", "message"]
    async with filled.runtime() as runtime:
        name = runtime.keyspace.name(pickup_keys.PICKUP_MESSAGES, 0, QUEUE)
        async with without(runtime, name):
            found = await audit(runtime, filled.lake)
    assert [each.subject for each in found.findings] == [waiting]
    assert moved != waiting


async def test_what_ended_behind_the_lake_is_no_finding(redis_url: str, tmp_path: Path) -> None:
    """The lake is always a little behind: the newest entries of the journal explain the rest."""
    async with traffic(redis_url, tmp_path) as made:
        room, lake = Harness(made.runtime), Lake.of(made.settings)
        await room.define("one", *STEPS["one"])
        ended, gone = await room.start(), await room.start()
        await store_by_hand(made.runtime, lake)
        assert (await audit(made.runtime, lake)).clean
        assert await room.store.cancel(ended) == "cancelled"
        for each in (ended, gone):
            state = made.name(transactions_keys.STATE, each)
            await made.runtime.redis.call("DEL", state, key=state)
        found = await audit(made.runtime, lake)
        await room.client.close()
    assert [each.subject for each in found.findings] == [gone]


async def store_by_hand(runtime: Runtime, lake: Lake) -> None:
    """The journal's beginnings as the lake would have them, without Spark."""
    events, messages, position = [], [], 0
    for entry_id, fields in await Journal(runtime).read(0):
        entry = decode_entry(entry_id, fields)
        position = position_of(entry.id)
        for number, each in enumerate(entry.events, entry.first_sequence):
            events.append(
                {"partition": 0, "entry_id": entry.id, "sequence": number, "room": entry.module,
                 "at_ms": entry.at_ms, "event": each.event, "subject": each.subject}
            )  # fmt: skip
            counts = {"events": 1, "accepts": 1, "announces": 0, "reopens": 0, "ends": 0}
            numbers = ("first_sequence", "last_sequence", "begin_sequence", "begin_last_sequence")
            if each.event == "started":
                messages.append(
                    {"partition": 0, "room": entry.module, "account": "transaction",
                     "subject": each.subject, "accepted_first_ms": entry.at_ms, **counts,
                     **dict.fromkeys(numbers, number)}
                )  # fmt: skip
    marks = {"journal:0": position}
    lake.append("events", pa.Table.from_pylist(events, EVENTS.arrow()), marks)
    lake.append("messages", pa.Table.from_pylist(messages, MESSAGES.arrow()), marks)


async def test_a_lake_that_never_ran_says_what_to_do(redis_url: str, tmp_path: Path) -> None:
    async with sample_runtime(redis_url, home=tmp_path) as runtime:
        with pytest.raises(LakeEmpty, match="angarium lake run --once"):
            await audit(runtime, Lake.of(runtime.settings))
