"""The scripts of transitions, called directly: success, each refusal, and a repeat."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from angarium.runtime.errors import LimitExceeded
from angarium.transactions import keys, store
from angarium.transactions.errors import (
    PipelineUnknown,
    TransactionFinished,
    TransactionUnknown,
)
from angarium.transactions.model import TakenTransaction, TransactionStart
from angarium.transactions.node_work import NodeCapabilities, NodeWork
from angarium.transactions.transitions import ENQUEUE, StartArgs, StartItem
from tests.kit.clock import FakeClock
from tests.transactions.harness import STEP_TYPES, harness

HOOK = "https://example.org/hook"


# enqueue_transactions


async def test_a_start_saves_queues_and_journals(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        id = await here.start("one", {"a": 1}, owner="ann", external_id="x")
        found = await here.state(id)
        assert (found.status, found.owner, found.external_id) == ("queued", "ann", "x")
        assert msgspec.json.decode(found.data) == {"a": 1}
        assert await here.event_names(id) == ["started"]
        (taken,) = await here.take()
        assert taken.id == id


async def test_a_refused_start_does_not_reserve_its_external_id(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        with pytest.raises(PipelineUnknown):
            await here.start("missing", external_id="x")
        with pytest.raises(PipelineUnknown):
            await here.start("one", external_id="x", version=7)
        with pytest.raises(LimitExceeded):
            await here.start("one", "x" * 2_000_000, external_id="x")
        assert await here.store.find_by_external_id("default", "x") is None
        id = await here.start("one", external_id="x")
        assert await here.store.find_by_external_id("default", "x") == id


async def test_a_repeated_external_id_answers_with_the_first_transaction(
    any_redis_url: str,
) -> None:
    async with harness(any_redis_url) as here:
        first = await here.store.start(TransactionStart("one", owner="ann", external_id="x"))
        again = await here.store.start(TransactionStart("two", owner="ann", external_id="x"))
        other = await here.store.start(TransactionStart("one", owner="bob", external_id="x"))
        assert (again.transaction_id, again.duplicate) == (first.transaction_id, True)
        assert not other.duplicate
        assert [each.event for each in await here.events()].count("started") == 2


async def test_a_start_sent_again_when_its_transaction_is_archived_starts_nothing(
    any_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(any_redis_url) as here:
        first = await here.store.start(TransactionStart("one", external_id="x"))
        # As after a lost reply: the same call again, after the state was archived.
        monkeypatch.setattr(store, "new_transaction_id", lambda *_: first.transaction_id)
        state = here.state_key(first.transaction_id)
        await here.runtime.redis.call("DEL", state, key=state)
        again = await here.store.start(TransactionStart("one", external_id="x"))
        assert (again.transaction_id, again.duplicate) == (first.transaction_id, True)
        assert [each.event for each in await here.events()].count("started") == 1


async def test_a_start_sent_twice_starts_once(redis_url: str) -> None:
    async with harness(redis_url) as here:

        async def start() -> str:
            items = [StartItem("tx", "one||ann", b"{}")]
            (reply,) = await here.runtime.call(ENQUEUE, 0, StartArgs(1_000, 1_000, 10), items)
            return str(reply)

        assert await start() == "started"
        assert await start() == "already_queued"
        await here.take()
        assert await start() == "exists"
        assert await here.event_names("tx") == ["started", "taken"]


# dequeue_transactions


async def test_admin_goes_before_out_and_out_before_in(redis_url: str) -> None:
    async with harness(redis_url) as here:
        new, going_on, admin = [await here.start() for _ in range(3)]
        name = here.runtime.keyspace.name
        for key, id in ((keys.QUEUE_OUT, going_on), (keys.QUEUE_ADMIN, admin)):
            await here.runtime.redis.call("LREM", name(keys.QUEUE_IN, 0, "default"), 0, id)
            await here.runtime.redis.call("RPUSH", name(key, 0, "default"), id)
        assert [each.id for each in await here.take(count=2)] == [admin, going_on]
        assert [each.id for each in await here.take()] == [new]


async def test_dequeue_refuses_entries_that_cannot_run_and_takes_the_rest(
    redis_url: str,
) -> None:
    async with harness(redis_url) as here:
        queue = here.runtime.keyspace.name(keys.QUEUE_ADMIN, 0, "default")
        cancelled, good = await here.start(), await here.start()
        await here.store.cancel(cancelled)
        await here.runtime.redis.call("RPUSH", queue, "ghost")
        batch = await here.store.dequeue(0, "n1", ["default"], 10, NodeCapabilities(STEP_TYPES))
        assert [each.id for each in batch.taken] == [good]
        assert batch.refused == 2
        assert await here.event_names("ghost") == ["dropped"]


async def test_only_the_groups_asked_for_are_served(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await here.define("p", {"type": "echo"}, node_group="g2")
        id = await here.start("p")
        assert await here.take() == []
        assert [each.id for each in await here.take(group="g2")] == [id]


# complete_transactions


@pytest.mark.parametrize(
    ("status", "event"),
    [
        ("success", "completed"), ("failed", "completed"), ("aborted", "completed"),
        ("internal-error", "completed"), ("timeout", "expired"), ("cancelled", "cancelled"),
    ],
)  # fmt: skip
async def test_a_running_transaction_completes(any_redis_url: str, status: str, event: str) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        taken = await here.taken()
        assert await here.store.complete(taken, status, b'{"x":1}', "so") == ("completed")
        found = await here.state(taken.id)
        assert (found.status, found.note) == (status, "so")
        assert found.completed_ms == clock.now_ms()
        assert await here.event_names(taken.id) == ["started", "taken", event]
        assert await here.score(keys.PROCESSING, taken.id) is None
        assert await here.score(keys.TO_ARCHIVE, taken.id) == clock.now_ms() + 1_200_000
        assert await here.score(keys.WEBHOOKS, taken.id) is None


async def test_complete_names_each_refusal(redis_url: str) -> None:
    async with harness(redis_url) as here:
        complete, queued = here.store.complete, await here.start()
        ghost = TakenTransaction("ghost", "1", b"1", "default|one|default", "1", b"", 1)
        assert await complete(ghost, "success") == "no_state"
        assert await complete(replace(ghost, id=queued), "success") == "not_running"
        (taken,) = await here.take()
        assert await complete(taken, "splendid") == "bad_status"
        assert await complete(taken, "running") == "bad_status"
        assert await complete(replace(taken, processing_score=b"7"), "success") == "stale_run"
        assert await complete(taken, "success") == "completed"
        assert await complete(taken, "success") == "completed"
        assert await complete(taken, "failed") == "not_running"
        assert await here.event_names(taken.id) == ["started", "taken", "completed"]


async def test_two_outcomes_in_one_batch_end_a_transaction_once(redis_url: str) -> None:
    async with harness(redis_url) as here:
        taken = await here.taken()
        answers = await asyncio.gather(
            here.store.complete(taken, "timeout"), here.store.complete(taken, "success")
        )
        assert [*answers] == ["completed", "not_running"]
        assert await here.event_names(taken.id) == ["started", "taken", "expired"]


async def test_a_completion_makes_the_webhook_due(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        taken = await here.taken(webhook=HOOK)
        await here.store.complete(taken, "success", b"", "")
        assert await here.score(keys.WEBHOOKS, taken.id) == clock.now_ms()


async def test_each_change_is_published(redis_url: str) -> None:
    async with harness(redis_url) as here:
        ends, events = here.client.notify_channel, here.client.events_channel
        async with here.runtime.redis.subscribe(ends, events) as subscription:
            await subscription.subscribed.wait()
            taken = await here.taken()
            await here.store.complete(taken, "success", b"", "")
            heard: list[tuple[str, str]] = []
            async with asyncio.timeout(30):
                while len(heard) < 3:
                    for message in (await subscription.receive()).messages:
                        heard.append((message.channel.decode(), message.payload.decode()))
        # A start is not published: no client knows its id yet. Polls subscribe to ends only.
        done = f"completed {taken.id}"
        assert heard == [(events, f"taken {taken.id}"), (events, done), (ends, done)]


# checkpoint_transactions, report_progress, return_transactions


async def test_a_checkpoint_is_found_by_the_next_run(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        taken = await here.taken("two")
        assert await here.store.checkpoint(taken.id, "1", 1, b'1 0 {"n":1}') == "saved"
        assert await here.store.checkpoint(taken.id, "1", 1, b'1 0 {"n":1}') == "saved"
        assert await here.store.return_to_queue(taken.id, "1") == "returned"
        (again,) = await here.take()
        assert (again.run, again.checkpoint) == ("2", b'1 0 {"n":1}')
        assert (await here.event_names(taken.id)).count("advanced") == 1


async def test_writes_of_a_lost_run_are_refused_with_a_reason(redis_url: str) -> None:
    async with harness(redis_url) as here:
        store, queued = here.store, await here.start()
        calls: list[Any] = [
            lambda id, run: store.checkpoint(id, run, 1, b"1 0 x"),
            lambda id, run: store.report_progress(id, run, b"1"),
            store.return_to_queue,
            lambda id, run: store.call_children(id, run, 0, b"", "one", [b"1"]),
        ]
        for call in calls:
            assert await call("ghost", "1") == "no_state"
            assert await call(queued, "") in ("not_running", "stale_run")
        (taken,) = await here.take()
        for call in calls:
            assert await call(taken.id, "9") == "stale_run"
        assert await store.sleep("ghost", "1", b"", 1, None) == "no_state"
        assert await store.sleep(taken.id, "9", b"", 1, None) == "stale_run"
        await store.complete(taken, "success", b"", "")
        assert await store.sleep(taken.id, "1", b"", 1, None) == "not_running"
        for call in calls:
            assert await call(taken.id, "1") == "not_running"


async def test_every_transition_reports_a_requested_cancellation(redis_url: str) -> None:
    async with harness(redis_url) as here:
        taken = await here.taken("two")
        assert await here.store.cancel(taken.id) == "cancelling"
        assert await here.store.cancel(taken.id) == "cancelling"
        assert await here.store.checkpoint(taken.id, "1", 1, b"1 0 1") == "cancelled"
        assert await here.store.sleep(taken.id, "1", b"", 1, None) == "cancelled"
        assert await here.store.call_children(taken.id, "1", 0, b"", "one", [b"1"]) == "cancelled"
        await here.store.return_to_queue(taken.id, "1")
        (again,) = await here.take()
        assert again.cancel
        assert (await here.event_names(taken.id)).count("cancel_asked") == 1


async def test_a_progress_report_makes_the_webhook_due_only_if_asked_for(redis_url: str) -> None:
    async with harness(redis_url) as here:
        silent = await here.taken(webhook=HOOK)
        assert await here.store.report_progress(silent.id, "1", b'{"p":1}') == "reported"
        assert await here.score(keys.WEBHOOKS, silent.id) is None
        reporting = await here.taken(webhook=HOOK, progress_reports=True)
        await here.store.report_progress(reporting.id, "1", b'{"p":1}')
        assert await here.score(keys.WEBHOOKS, reporting.id) is not None


# sleep_transactions, wake_transactions, set_switches


async def test_a_sleeping_transaction_wakes_once_at_its_time(any_redis_url: str) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        taken = await here.taken()
        assert await here.store.sleep(taken.id, "1", b"0 1 ", 5_000, None) == "sleeping"
        assert await here.store.sleep(taken.id, "1", b"0 1 ", 5_000, None) == "sleeping"
        assert (await here.state(taken.id)).wake_ms == clock.now_ms() + 5_000
        assert await here.wake() == 0
        await clock.advance(5)
        assert await here.wake() == 1
        assert await here.wake() == 0
        (again,) = await here.take()
        assert again.checkpoint == b"0 1 "
        assert (await here.event_names(taken.id)).count("woken") == 1


async def test_no_transaction_sleeps_past_its_deadline(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        await here.define("p", {"type": "echo"}, timeout_ms=1_000)
        await here.start("p")
        (taken,) = await here.take()
        assert taken.remaining_ms == 1_000
        await here.store.sleep(taken.id, "1", b"", None, "never")
        await clock.advance(1)
        assert await here.wake() == 1
        (again,) = await here.take()
        assert again.remaining_ms == 0


async def test_a_switch_set_before_going_to_sleep_is_not_missed(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        taken = await here.taken()
        assert await here.store.set_switch(taken.id, "go", "1") == "set"
        assert await here.store.set_switch(taken.id, "go", "2") == "set"
        assert await here.store.sleep(taken.id, "1", b"", None, "other") == "sleeping"
        assert await here.store.set_switch(taken.id, "other", "x") == "woken"
        (again,) = await here.take()
        assert msgspec.json.decode(again.switches) == {"go": "2", "other": "x"}
        await here.store.set_switch(taken.id, "go", "3")
        assert await here.store.sleep(taken.id, "2", b"", None, "go") == "awake"
        (third,) = await here.take()
        # This run has seen the switch, so it sleeps until the switch is set again.
        assert await here.store.sleep(third.id, "3", b"", None, "go") == "sleeping"


async def test_set_switch_names_each_refusal(redis_url: str) -> None:
    async with harness(redis_url) as here:
        with pytest.raises(TransactionUnknown):
            await here.store.set_switch("ghost", "go", "1")
        taken = await here.taken()
        await here.store.complete(taken, "success", b"", "")
        with pytest.raises(TransactionFinished):
            await here.store.set_switch(taken.id, "go", "1")


# cancel_transactions


async def test_what_waits_is_cancelled_at_once(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        asleep = await here.taken()
        await here.store.sleep(asleep.id, "1", b"", None, "go")
        queued = await here.start()
        for id in (queued, asleep.id):
            assert await here.store.cancel(id) == "cancelled"
            assert (await here.state(id)).status == "cancelled"
            with pytest.raises(TransactionFinished):
                await here.store.cancel(id)
        with pytest.raises(TransactionUnknown):
            await here.store.cancel("ghost")
        assert await here.score(keys.SLEEPING, asleep.id) is None
        assert await here.take() == []


async def test_a_cancelled_parent_takes_its_children_with_it(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        parent = await here.taken()
        assert await here.store.call_children(parent.id, "1", 0, b"", "one", [b"1", b"2"]) == (
            "called"
        )
        (child,) = await here.take(count=1)
        assert await here.store.cancel(parent.id) == "cancelled"
        assert (await here.state(f"{parent.id}.0-2")).status == "cancelled"
        assert await here.store.checkpoint(child.id, "1", 1, b"1 0 1") == "cancelled"
        await here.store.complete(child, "cancelled", b"", "")
        assert (await here.state(parent.id)).status == "cancelled"


# call_children


async def test_a_parent_goes_on_when_the_last_child_has_ended(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        parent = await here.taken()
        call = here.store.call_children
        assert await call(parent.id, "1", 3, b"3 0 {}", "missing", [b"1"]) == "unknown_pipeline"
        assert await call(parent.id, "1", 3, b"3 0 {}", "one", [b"1", b"2"]) == "called"
        assert await call(parent.id, "1", 3, b"3 0 {}", "one", [b"1", b"2"]) == "called"
        first, second = await here.take()
        assert first.id == f"{parent.id}.3-1"
        await here.store.complete(second, "success", b'"two"', "")
        assert (await here.state(parent.id)).status == "sleeping"
        await here.store.complete(first, "failed", b"", "oh")
        await here.store.complete(first, "failed", b"", "oh")
        (again,) = await here.take()
        results = [msgspec.json.decode(each) for each in again.children]
        assert [each["status"] for each in results] == ["failed", "success"]
        assert results[1]["output"] == "two"
        assert (await here.event_names(parent.id)).count("resumed") == 1


# recover_orphans, touch_node


async def test_transactions_of_a_silent_node_are_queued_again(any_redis_url: str) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        taken = await here.taken("two")
        await here.store.checkpoint(taken.id, "1", 1, b"1 0 7")
        assert await here.recover() == 0
        await clock.advance(7.9)
        assert await here.recover() == 0
        await clock.advance(0.2)
        assert await here.recover() == 1
        assert await here.recover() == 0
        (again,) = await here.take(node="n2")
        assert (again.run, again.checkpoint) == ("2", b"1 0 7")
        assert await here.store.complete(taken, "success", b"", "") == "stale_run"
        assert "recovered" in await here.event_names(taken.id)


async def test_a_node_that_sends_heartbeats_keeps_its_transactions(any_redis_url: str) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        await here.taken()
        for _ in range(5):
            await clock.advance(5)
            for partition in here.store.partitions:
                await here.store.touch_node(partition, "n1", ["default"], ["echo"])
            assert await here.recover() == 0
        for partition in here.store.partitions:
            await here.store.touch_node(partition, "n1", leaving=True)
        assert await here.recover() == 1


async def test_transactions_of_a_lost_dequeue_reply_are_queued_again(any_redis_url: str) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        for _ in range(2):
            await here.start()
        known, unknown = await here.take(node="n1")
        await clock.advance(8.1)
        for partition in here.store.partitions:
            await here.store.touch_node(partition, "n1")
        assert await here.recover("n1", (known.id,)) == 1
        assert (await here.state(unknown.id)).status == "queued"
        assert (await here.state(known.id)).status == "running"


async def test_a_node_that_lost_its_redis_connection_does_not_declare_other_nodes_dead(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        await here.start()
        await here.start()
        (others,) = await here.take(node="n1", count=1)
        (own,) = await here.take(node="n2", count=1)
        await clock.advance(60)
        assert await here.recover("n2", recovers_others=False) == 1
        assert (await here.state(own.id)).status == "queued"
        assert (await here.state(others.id)).status == "running"


async def test_a_transaction_taken_after_as_of_ms_is_not_an_orphan(redis_url: str) -> None:
    """Redis stood still after the call was sent, so the ids are older than the transactions."""
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        as_of_ms = await here.store.touch_node(0, "n1")
        await here.taken()
        await clock.advance(20)
        assert (await here.store.recover(0, "n1", NodeWork((), as_of_ms))).count == 0


async def test_orphans_are_recovered_after_the_clock_went_back(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        taken = await here.taken()
        clock.jump(-3_600_000)
        assert await here.recover() == 0
        await clock.advance(8.1)
        assert await here.recover() == 1
        assert (await here.state(taken.id)).status == "queued"


async def test_a_node_that_missed_the_hint_learns_what_to_cancel(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        taken = await here.taken()
        await here.store.cancel(taken.id)
        await clock.advance(8.1)
        as_of_ms = await here.store.touch_node(0, "n1")
        found = await here.store.recover(0, "n1", NodeWork((taken.id,), as_of_ms))
        assert (found.count, found.to_cancel) == (0, [taken.id])


# get_states, record_replies


async def test_a_reply_is_recorded_once_and_may_cancel_the_webhook(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        taken = await here.taken(webhook=HOOK, poll_cancels_webhook=True)
        kept = await here.taken(webhook=HOOK)
        for each in (taken, kept):
            open = await here.store.poll(each.id)
            assert open is not None
            assert (open.must_record, open.transaction.notified_ms) == (False, None)
            assert await here.store.record_reply(open.transaction) == "not_ended"
            await here.store.complete(each, "success", b"", "")
            first_ms = clock.now_ms()
            first = await here.store.poll(each.id)
            assert first is not None
            assert (first.must_record, first.transaction.notified_ms) == (True, first_ms)
            # A poll alone records nothing: the client may have disconnected.
            assert (await here.state(each.id)).notified_ms is None
            assert await here.score(keys.WEBHOOKS, each.id) is not None
            clock.jump(1_000)
            assert await here.store.record_reply(first.transaction) == "recorded"
            clock.jump(1_000)
            assert await here.store.record_reply(first.transaction) == "known"
            again = await here.store.poll(each.id)
            assert again is not None
            assert (again.must_record, again.transaction.notified_ms) == (False, first_ms)
            assert (await here.event_names(each.id)).count("notified") == 1
        assert await here.score(keys.WEBHOOKS, taken.id) is None
        assert await here.score(keys.WEBHOOKS, kept.id) is not None
        assert await here.store.find("ghost") is None
        assert await here.store.poll("ghost") is None
        ghost = replace((await here.state(kept.id)), id="ghost")
        assert await here.store.record_reply(ghost) == "no_state"
        assert await here.store.find("ghost") is None


async def test_a_long_note_is_not_cut_inside_a_character(redis_url: str) -> None:
    async with harness(redis_url) as here:
        for note in ("ä" * 300, "x" + "ä" * 300, "x" * 199 + "€", "🙂" * 80, "plain" * 80):
            taken = await here.taken()
            await here.store.complete(taken, "failed", b"", note)
            ended = (await here.events())[-1]
            assert ended.detail
            assert note.startswith(ended.detail)
            assert len(ended.detail.encode()) > 195


async def test_external_ids_of_different_owners_do_not_collide(redis_url: str) -> None:
    async with harness(redis_url) as here:
        first = await here.start(owner="a", external_id="b:c")
        second = await here.start(owner="a:b", external_id="c")
        assert first != second
        assert await here.store.find_by_external_id("a", "b:c") == first
        assert await here.store.find_by_external_id("a:b", "c") == second


async def test_an_admin_transaction_is_served_first(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        for _ in range(20):
            await here.start()
        admin = await here.start(admin=True)
        partition = here.store.partition_of(admin)
        batch = await here.store.dequeue(
            partition, "n1", ["default"], 1, NodeCapabilities(STEP_TYPES)
        )
        assert [each.id for each in batch.taken] == [admin]


async def test_switches_have_a_limit(redis_url: str) -> None:
    async with harness(redis_url, limits={"transaction_switches_items_max": 2}) as here:
        id = await here.start()
        for name in ("a", "b", "a"):
            assert await here.store.set_switch(id, name, "1") == "set"
        with pytest.raises(LimitExceeded, match="transaction_switches_items_max"):
            await here.store.set_switch(id, "c", "1")
