"""Scripts for transactions that wait for a step type: dequeue, hand over, cancel, expire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from angarium.transactions import keys
from angarium.transactions.errors import TransactionFinished
from angarium.transactions.model import TakenTransaction, encode_step_types
from angarium.transactions.node_work import DequeueBatch, NodeCapabilities
from angarium.transactions.queries import AwaitedStep, TransactionHealthReport
from angarium.transactions.statistics import StatisticsLevel
from tests.kit.clock import FakeClock
from tests.transactions.harness import STEP_TYPES, Harness, harness

ECHO, ADD, NONE = (encode_step_types(each) for each in (["echo"], ["add"], []))


async def _dequeue(here: Harness, types: str, count: int = 10, partition: int = 0) -> DequeueBatch:
    return await here.store.dequeue(partition, "n1", ["default"], count, NodeCapabilities(types))


async def _dequeue_all(here: Harness, types: str = NONE) -> list[DequeueBatch]:
    """A node with these step types reads the queues of all partitions."""
    parts = here.store.partitions
    return [await _dequeue(here, types, partition=partition) for partition in parts]


async def _health(here: Harness) -> TransactionHealthReport:
    return await here.queries.health_report(["default"], 1)


async def _expire(here: Harness) -> int:
    parts = here.store.partitions
    return sum([await here.store.expire_waiting(partition) for partition in parts])


async def _call(here: Harness, *command: Any) -> Any:
    return await here.runtime.redis.call(*command, key=command[1])


# dequeue_transactions


async def test_a_node_takes_only_transactions_whose_next_step_it_has(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        ids = [await here.start(name, {"sum": 1}) for name in ("one", "two", "one")]
        taken = await here.take(step_types=ADD)
        assert [each.id for each in taken] == [ids[1]]
        for id in (ids[0], ids[2]):
            state = await here.state(id)
            assert (state.status, state.waits_for_step, state.run) == ("queued", "echo", 0)
            assert await here.event_names(id) == ["started", "step_awaited"]
        again = await here.take("n2", step_types=ECHO)
        assert {each.id for each in again} == {ids[0], ids[2]}
        assert (await here.state(ids[0])).waits_for_step is None
        assert (await _health(here)).awaited_steps == []


async def test_an_entry_that_must_wait_is_read_once(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await here.start()
        assert await _dequeue(here, NONE) == DequeueBatch([], 0, waiting=1)
        assert await _dequeue(here, NONE) == DequeueBatch([], 0, waiting=0)
        assert (await _dequeue(here, NONE, count=0)).entries == 0


async def test_waiting_transactions_are_taken_in_order_and_before_the_queue(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        ids = [await here.start() for _ in range(5)]
        for _ in range(2):  # all in the same millisecond
            await _dequeue(here, NONE, count=2)
        await clock.advance(1)
        ids.append(await here.start())
        first = (await _dequeue(here, ECHO, count=3)).taken
        rest = (await _dequeue(here, ECHO)).taken
        assert [each.id for each in [*first, *rest]] == ids


async def test_waiting_transactions_keep_the_order_admin_out_in(
    redis_url: str,
) -> None:
    async with harness(redis_url) as here:
        going_on = await here.taken()
        await here.store.sleep(going_on.id, going_on.run, b"0 1 ", 0, None)
        await here.wake()
        new, admin = await here.start(), await here.start(admin=True)
        await _dequeue(here, NONE)
        later, urgent = await here.start(), await here.start(admin=True)
        taken = (await _dequeue(here, ECHO)).taken
        assert [each.id for each in taken] == [admin, urgent, going_on.id, new, later]


async def test_a_dequeue_checks_the_next_step_only(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await here.define("p", {"type": "echo"}, {"type": "add"})
        taken = await here.taken("p")
        await here.store.checkpoint(taken.id, taken.run, 1, b"1 0 {}")
        await here.store.return_to_queue(taken.id, taken.run)
        assert (await _dequeue(here, ECHO)).waiting == 1
        (again,) = (await _dequeue(here, ADD)).taken
        assert (again.id, again.checkpoint) == (taken.id, b"1 0 {}")


async def test_a_step_that_is_a_pipeline_needs_no_function(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await here.define("p", {"pipeline": "one"})
        id = await here.start("p")
        assert [each.id for each in (await _dequeue(here, NONE)).taken] == [id]


async def test_a_definition_stored_by_0_1_0_is_read_once(redis_url: str) -> None:
    async with harness(redis_url) as here:
        hash = here.runtime.keyspace.name(keys.PIPELINE, 0, "p")
        await here.define("p", {"type": "echo"}, {"pipeline": "one"}, {"type": "add"})
        await _call(here, "HDEL", hash, "steps:1")
        await here.start("p")
        assert (await _dequeue(here, ADD)).waiting == 1
        assert await _call(here, "HGET", hash, "steps:1") == b"echo * add"


@pytest.mark.parametrize("definition", [None, "{", "7", '{"steps": 7}', '{"steps": [7]}'])
async def test_a_transaction_without_a_valid_definition_is_taken_so_that_a_node_reports_it(
    redis_url: str, definition: str | None
) -> None:
    async with harness(redis_url) as here:
        hash = here.runtime.keyspace.name(keys.PIPELINE, 0, "one")
        id = await here.start()
        await _call(here, "HDEL", hash, "steps:1", "definition:1")
        if definition is not None:
            await _call(here, "HSET", hash, "definition:1", definition)
        assert [each.id for each in (await _dequeue(here, NONE)).taken] == [id]


async def test_cancelled_and_overdue_transactions_need_no_step(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        cancelled = await here.taken()
        assert await here.store.cancel(cancelled.id) == "cancelling"
        await here.store.return_to_queue(cancelled.id, cancelled.run)
        await here.define("quick", {"type": "echo"}, timeout_ms=1_000)
        late = await here.start("quick")
        await clock.advance(2)
        taken = (await _dequeue(here, NONE)).taken
        assert {each.id: (each.cancel, each.remaining_ms <= 0) for each in taken} == {
            cancelled.id: (True, False),
            late: (False, True),
        }


async def test_only_nodes_of_the_group_take_waiting_transactions(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await here.define("p", {"type": "echo"}, node_group="g2")
        id = await here.start("p")
        await here.take(group="g2", step_types=NONE)
        assert await here.take(step_types=ECHO) == []
        assert [each.id for each in await here.take(group="g2", step_types=ECHO)] == [id]


async def test_step_types_match_as_whole_words(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await here.start()
        for types in (encode_step_types(["ech", "echoes", "an echo"]), " "):
            await _dequeue(here, types)
            assert (await here.queries.health_report(["default"], 1)).awaited_steps != []
        assert len((await _dequeue(here, encode_step_types(["a", "echo"]))).taken) == 1


async def test_waiting_entries_that_ended_or_have_no_state_are_refused(redis_url: str) -> None:
    """An API of 0.1.0 does this, because it does not know the waiting lists."""
    async with harness(redis_url) as here:
        ended, gone = await here.start(), await here.start()
        await _dequeue(here, NONE)
        await _call(here, "HSET", here.state_key(ended), "status", "cancelled")
        await _call(here, "DEL", here.state_key(gone))
        assert await _dequeue(here, ECHO) == DequeueBatch([], 2)
        assert (await _health(here)).awaited_steps == []
        assert (await here.event_names(gone))[-1] == "dropped"


async def test_the_first_transaction_that_waits_for_a_step_sends_a_hint(redis_url: str) -> None:
    async with harness(redis_url) as here:
        for _ in range(3):
            await here.start()
        async with here.runtime.redis.subscribe(here.store.work_channel) as subscription:
            await subscription.subscribed.wait()
            await _dequeue(here, NONE, count=2)
            await _dequeue(here, NONE)
            await here.start()  # its hint comes last, so all others have arrived by then
            heard: list[bytes] = []
            async with asyncio.timeout(30):
                while b"work default" not in heard:
                    heard += [each.payload for each in (await subscription.receive()).messages]
        assert heard == [b"waits default|echo", b"work default"]


async def test_a_dequeue_can_skip_the_step_check_and_the_waiting_lists(
    redis_url: str,
) -> None:
    async with harness(redis_url) as here:
        dequeue = here.store.dequeue
        first = await here.start()
        await _dequeue(here, NONE)
        second = await here.start()
        # The script trusts the node's list of complete pipelines.
        batch = await dequeue(
            0, "n1", ["default"], 9, NodeCapabilities(NONE, " x|1 one|1 ", waiting=False)
        )
        assert [each.id for each in batch.taken] == [second]
        await here.start()
        for other in (" one|2 ", " on|1 ", " xone|1 ", ""):
            assert (
                await dequeue(0, "n1", ["default"], 9, NodeCapabilities(NONE, other))
            ).taken == []
        batch = await dequeue(0, "n1", ["default"], 1, NodeCapabilities(ECHO, waiting=True))
        assert [each.id for each in batch.taken] == [first]


# hand_over_transactions


async def test_a_run_is_handed_over_at_its_next_step(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        taken = await here.taken("two")
        hand_over = here.store.hand_over
        for _ in range(2):  # the reply was lost: sent again
            assert await hand_over(taken.id, taken.run, 1, b'1 0 {"n":1}', "add") == "waits"
        state = await here.state(taken.id)
        assert (state.status, state.step, state.waits_for_step) == ("queued", 1, "add")
        assert await here.score(keys.PROCESSING, taken.id) is None
        assert await here.event_names(taken.id) == ["started", "taken", "advanced", "step_awaited"]
        (again,) = await here.take("n2", step_types=ADD)
        assert (again.run, again.checkpoint) == ("2", b'1 0 {"n":1}')
        assert await hand_over(taken.id, taken.run, 1, b"", "add") == "stale_run"


async def test_a_run_without_a_finished_step_is_handed_over_unchanged(redis_url: str) -> None:
    async with harness(redis_url) as here:
        taken = await here.taken(admin=True)
        assert await here.store.hand_over(taken.id, taken.run, 0, b"", "echo") == "waits"
        assert await here.event_names(taken.id) == ["started", "taken", "step_awaited"]
        new = await here.start(admin=True)
        again = (await _dequeue(here, ECHO)).taken
        assert [(each.id, each.checkpoint) for each in again] == [(taken.id, b""), (new, b"")]


async def test_children_of_a_finished_step_are_not_handed_over(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await here.define("p", {"pipeline": "one"}, {"type": "add"})
        parent = await here.taken("p")
        await here.store.call_children(parent.id, parent.run, 0, b"", "one", [b"1"])
        (child,) = await here.take()
        await here.store.complete(child, "success", b"2", "")
        (parent,) = await here.take()
        assert parent.children
        assert await here.store.hand_over(parent.id, parent.run, 1, b"1 0 2", "add") == "waits"
        (again,) = await here.take()
        assert (again.children, again.checkpoint) == ([], b"1 0 2")


async def test_hand_over_names_each_refusal(redis_url: str) -> None:
    async with harness(redis_url) as here:
        hand_over, queued = here.store.hand_over, await here.start()
        assert await hand_over("ghost", "1", 0, b"", "echo") == "no_state"
        (taken,) = await here.take()
        assert taken.id == queued
        assert await hand_over(taken.id, "9", 0, b"", "echo") == "stale_run"
        await here.store.cancel(taken.id)
        assert await hand_over(taken.id, taken.run, 0, b"", "echo") == "cancelled"
        await here.store.complete(taken, "cancelled")
        assert await hand_over(taken.id, taken.run, 0, b"", "echo") == "not_running"


# cancel_transactions, expire_waiting


async def test_cancelling_a_waiting_transaction_removes_its_entry(any_redis_url: str) -> None:
    async with harness(any_redis_url) as here:
        first, second = await here.start(), await here.start()
        await _dequeue_all(here)
        assert await here.store.cancel(first) == "cancelled"
        assert [each.transactions for each in (await _health(here)).awaited_steps] == [1]
        assert await here.store.cancel(second) == "cancelled"
        assert (await _health(here)).awaited_steps == []
        assert await here.take() == []
        with pytest.raises(TransactionFinished):
            await here.store.cancel(first)


async def test_a_waiting_transaction_past_its_deadline_ends_once_as_timeout(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        await here.define("quick", {"type": "echo"}, timeout_ms=1_000)
        late = await here.start("quick", webhook="https://example.org/")
        early = await here.start()
        await _dequeue_all(here)
        assert await _expire(here) == 0
        await clock.advance(1)
        assert await _expire(here) == 1
        assert await _expire(here) == 0
        state = await here.state(late)
        assert (state.status, state.note) == (
            "timeout", "no node with step 'echo' took it in time",
        )  # fmt: skip
        assert await here.score(keys.WEBHOOKS, late) is not None
        assert await here.event_names(late) == ["started", "step_awaited", "expired"]
        assert (await here.state(early)).status == "queued"
        assert [each.transactions for each in (await _health(here)).awaited_steps] == [1]


async def test_a_parent_resumes_when_its_waiting_child_times_out(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        await here.define("quick", {"type": "add"}, timeout_ms=1_000)
        await here.define("p", {"pipeline": "quick"})
        parent = await here.taken("p")
        await here.store.call_children(parent.id, parent.run, 0, b"", "quick", [b"1"])
        await _dequeue(here, ECHO)
        await clock.advance(1)
        assert await _expire(here) == 1
        (again,) = (await _dequeue(here, NONE)).taken
        assert again.id == parent.id
        assert b'"status":"timeout"' in again.children[0]


async def test_waiting_entries_without_a_state_are_removed_at_their_deadline(
    redis_url: str,
) -> None:
    """An API of 0.1.0 leaves such entries."""
    clock = FakeClock()
    async with harness(redis_url, clock=clock) as here:
        await here.define("quick", {"type": "echo"}, timeout_ms=1_000)
        ended, gone = await here.start("quick"), await here.start("quick")
        await _dequeue(here, NONE)
        await _call(here, "HSET", here.state_key(ended), "status", "cancelled")
        await _call(here, "DEL", here.state_key(gone))
        await clock.advance(1)
        assert await _expire(here) == 2
        assert (await here.state(ended)).status == "cancelled"
        assert (await _health(here)).awaited_steps == []
        stem = here.runtime.keyspace.name(keys.WAITING, 0, "")
        assert await here.runtime.redis.call("KEYS", f"{stem}*") == []


# touch_node, read_health, list_transactions


async def test_waiting_transactions_are_counted_and_listed(any_redis_url: str) -> None:
    clock = FakeClock()
    async with harness(any_redis_url, clock=clock) as here:
        ids = [await here.start(name) for name in ("one", "one", "two")]
        await _dequeue_all(here)
        await clock.advance(3)
        for partition in here.store.partitions:
            await here.store.touch_node(partition, "n1", ["default"])
        found = await _health(here)
        assert {each.step_type: each for each in found.awaited_steps} == {
            "echo": AwaitedStep("default", "echo", 2, 3_000),
            "add": AwaitedStep("default", "add", 1, 3_000),
        }
        waiting = next(each for each in found.queues if each.kind == "waiting")
        assert (waiting.length, waiting.waiting_ms) == (3, 3_000)
        listed = await here.listed((await here.state(ids[0])).status)
        assert {each.id: each.waits_for_step for each in listed} == {
            ids[0]: "echo", ids[1]: "echo", ids[2]: "add",
        }  # fmt: skip
        (interval, *_) = await here.client.statistics(StatisticsLevel.COARSE, 1)
        assert interval.queues["default"]["waiting"] == 3


async def test_the_dequeue_reply_is_the_same_from_queue_and_waiting_list(redis_url: str) -> None:
    async with harness(redis_url) as here:
        await here.start("one", {"a": 1}, webhook="https://example.org/")
        await _dequeue(here, NONE)
        (waited,) = (await _dequeue(here, STEP_TYPES)).taken
        await here.start("one", {"a": 1}, webhook="https://example.org/")
        (queued,) = (await _dequeue(here, STEP_TYPES)).taken
        assert _alike(waited) == _alike(queued)


def _alike(taken: TakenTransaction) -> tuple[Any, ...]:
    return taken.label, taken.version, taken.data, taken.checkpoint, taken.flags, taken.run
