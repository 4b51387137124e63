"""The durable intake on a real server: enqueued once, accepted in order, from any client."""

from __future__ import annotations

from collections import Counter

import pytest

from angarium.dispatch import keys
from angarium.dispatch.errors import InboxFull
from angarium.dispatch.message_ids import is_message_id, new_ids, partition_of_id
from angarium.dispatch.store import DispatchStore
from angarium.dispatch.transitions import ENQUEUE
from angarium.runtime.errors import LimitExceeded
from tests.dispatch.harness import ACK_TIMEOUT_MS, StoreHarness, store_harness
from tests.kit.clock import FakeClock
from tests.kit.sample import sample_runtime


async def test_enqueued_messages_become_pending_in_order_with_their_ids(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        key = key_of(ours)
        enqueued = [await ours.store.enqueue(b"%d" % n, f"{key}{n}") for n in range(3)]
        mine = [
            (each.message_id.encode(), b"%d" % n)
            for n, each in enumerate(enqueued)
            if ours.runtime.keyspace.partition_of(f"{key}{n}") == ours.partition
        ]
        assert await ours.accept_inbox(sent=1) == mine
        held = await ours.state()
        assert held.pending == {
            message_id: clock.now_ms() - (ACK_TIMEOUT_MS if n else 0)
            for n, (message_id, _) in enumerate(mine)
        }
        assert held.inbox == []
        assert held.payloads == dict(mine)
        assert await ours.events_of(mine[0][0]) == ["enqueued", "accepted"]
        assert await ours.accept_inbox() == []


def key_of(ours: StoreHarness) -> str:
    """The prefix of idempotency keys; at least the first key belongs to the partition."""
    places = ours.runtime.keyspace
    return next(f"k{n}-" for n in range(100) if places.partition_of(f"k{n}-0") == ours.partition)


async def test_an_idempotency_key_adds_one_message(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        key = key_of(ours) + "0"
        first = await ours.store.enqueue(b"1", key)
        again = await ours.store.enqueue(b"other bytes", key)
        assert not first.duplicate
        assert again == (first.message_id, True)
        ((message_id, payload),) = await ours.accept_inbox()
        assert (message_id.decode(), payload) == (first.message_id, b"1")
        await ours.complete(message_id)
        assert await ours.store.enqueue(b"1", key) == (first.message_id, True)
        assert await ours.accept_inbox() == []
        assert await ours.events_of(message_id) == ["enqueued", "accepted", "completed"]


@pytest.mark.parametrize("keyed", [True, False])
async def test_an_enqueue_with_a_lost_reply_adds_one_message(
    any_redis_url: str, keyed: bool
) -> None:
    """The call is repeated with the same bytes, also after the message was accepted."""
    async with store_harness(any_redis_url) as ours:
        assert ENQUEUE.script.repeatable
        calls: list[tuple[object, ...]] = []
        run = ours.runtime.run

        async def run_twice(script: object, partition: int, *rest: object) -> object:
            if script is not ENQUEUE.script:
                return await run(script, partition, *rest, durable=False)  # type: ignore[arg-type]
            ours.runtime.run = run  # type: ignore[method-assign]
            first = await run(script, partition, *rest)  # type: ignore[arg-type]
            calls.append((partition, first, await run(script, partition, *rest)))  # type: ignore[arg-type]
            ours.partition = partition
            ours.term = await ours.take_over()
            await ours.accept_inbox()
            return await run(script, partition, *rest)  # type: ignore[arg-type]

        ours.runtime.run = run_twice  # type: ignore[method-assign, assignment]
        enqueued = await ours.store.enqueue(b"x", "key" if keyed else None)
        assert not enqueued.duplicate, "it is the one that brought it in"
        assert [first for _, first, _ in calls] == [second for _, _, second in calls]
        assert await ours.accept_inbox() == []
        assert list((await ours.state()).pending) == [enqueued.message_id.encode()]
        assert await ours.events_of(enqueued.message_id.encode()) == ["enqueued", "accepted"]


async def test_messages_without_a_key_are_always_separate(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        store = DispatchStore(runtime)
        enqueued = [await store.enqueue(b"same") for _ in range(20)]
        assert len({each.message_id for each in enqueued}) == 20
        assert not any(each.duplicate for each in enqueued)
        inboxes = [(await store.status(p)).inbox for p in range(store.partitions)]
        assert sum(inboxes) == 20
        for each in enqueued:
            partition = partition_of_id(each.message_id.encode(), store.partitions)
            assert inboxes[partition] > 0


@pytest.mark.limit("frame_bytes_max", "id_bytes_max")
async def test_an_enqueue_beyond_the_limits_is_refused(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url, limits={"frame_bytes_max": 137}) as runtime:
        store = DispatchStore(runtime)
        await store.enqueue(b"x" * 100)
        with pytest.raises(LimitExceeded, match="frame_bytes_max"):
            await store.enqueue(b"x" * 101)
        with pytest.raises(LimitExceeded, match="id_bytes_max"):
            await store.enqueue(b"x", "ä" * 257)
        await store.enqueue(b"x", "ä" * 256)


async def test_any_client_may_add_to_the_inbox_with_any_field_name(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        (own,) = new_ids(1, ours.partition, ours.store.partitions)
        await ours.add_to_inbox("payload", b"1")
        await ours.add_to_inbox("data", b"2\xff", "more", "ignored")
        await ours.add_to_inbox("kind", "order", "payload", b"3")
        await ours.add_to_inbox("message_id", own, "json", b"4")
        await ours.add_to_inbox("message_id", "mine", "payload", b"5", "", "")
        taken = await ours.accept_inbox()
        assert [payload for _, payload in taken] == [b"1", b"2\xff", b"3", b"4", b"5"]
        ids = [message_id for message_id, _ in taken]
        assert ids[3] == own
        assert len(set(ids)) == 5
        for message_id in ids:
            assert is_message_id(message_id)
            assert partition_of_id(message_id, ours.store.partitions) == ours.partition
            assert await ours.events_of(message_id) == ["accepted"]
        assert {each.key for each in await ours.events()} == {"inbox"}
        assert await ours.complete(*ids) == [True] * 5


async def test_an_invalid_or_foreign_id_is_replaced(any_redis_url: str) -> None:
    """A worker refuses a frame without a UUID4, and the end of the id determines the partition."""
    async with store_harness(any_redis_url) as ours:
        parts = ours.store.partitions
        (good,) = new_ids(1, ours.partition, parts)
        strange = [
            b"order-000000000000000000000000000001",
            b'"},{"e":"completed","s":"0123456789a',
            bytes(range(128, 164)),
            good.upper(),
            good[:14] + b"1" + good[15:],
            good[:35],
            good + b"0",
        ]
        if parts > 1:
            strange += new_ids(1, 0, parts)
        for each in strange:
            assert not is_message_id(each) or each != good
            await ours.add_to_inbox("message_id", each, "payload", b"x")
        taken = await ours.accept_inbox(count=20)
        ids = [message_id for message_id, _ in taken]
        assert len(set(ids)) == len(strange)
        assert not set(ids) & set(strange)
        for message_id in ids:
            assert is_message_id(message_id)
            assert partition_of_id(message_id, parts) == ours.partition
        assert len(await ours.events()) == len(strange), "the journal can be read"
        assert all(await ours.complete(*ids))
        assert len(await ours.events()) == 2 * len(strange)


async def test_an_id_that_is_pending_already_is_replaced(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        (pending,) = await ours.accepted(b"first")
        await ours.add_to_inbox("message_id", pending, "payload", b"second")
        ((other, payload),) = await ours.accept_inbox()
        assert (other != pending, payload) == (True, b"second")
        assert (await ours.state()).payloads == {pending: b"first", other: b"second"}


async def test_a_full_partition_leaves_the_inbox_unchanged(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, dispatch={"pending_messages_max": 2}) as ours:
        await ours.accepted(b"0")
        for n in range(3):
            await ours.add_to_inbox("payload", b"%d" % n)
        ((message_id, payload),) = await ours.accept_inbox()
        assert payload == b"0"
        assert await ours.accept_inbox() == []
        assert len((await ours.state()).inbox) == 2
        await ours.complete(message_id)
        assert [payload for _, payload in await ours.accept_inbox()] == [b"1"]


async def test_an_inbox_entry_too_large_for_a_frame_is_dead(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, limits={"frame_bytes_max": 137}) as ours:
        await ours.add_to_inbox("payload", b"x" * 101)
        await ours.add_to_inbox("payload", b"y")
        taken = await ours.accept_inbox()
        (small,) = [message_id for message_id, payload in taken if payload == b"y"]
        held = await ours.state()
        assert list(held.pending) == list(held.payloads) == [small]
        assert [each[b"payload"] for each in held.dead] == [b"x" * 101]
        assert await ours.event_counts() == Counter({"accepted": 2, "dead": 1})


async def test_a_wait_for_the_inbox_ends_with_the_first_entry(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        assert not await ours.store.wait_for_inbox(ours.partition, 1)
        await ours.add_to_inbox("payload", "x")
        assert await ours.store.wait_for_inbox(ours.partition, 10_000)


async def test_f9_the_inbox_is_taken_in_replies_of_limited_size(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, limits={"batch_bytes_max": 100_000}) as ours:
        for number in range(60):
            await ours.add_to_inbox("payload", b"%02d" % number + b"x" * 20_000)
        taken = []
        while part := await ours.accept_inbox(count=60, sent=60):
            assert sum(len(payload) for _, payload in part) < 100_000 + 20_002
            taken += [payload[:2] for _, payload in part]
        assert taken == [b"%02d" % number for number in range(60)]
        assert not (await ours.state()).inbox


async def test_f9_messages_without_a_key_leave_no_key_each(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        for _ in range(200):
            await ours.store.enqueue(b"x")
        found = []
        for partition in range(ours.store.partitions):
            name = ours.runtime.keyspace.name(keys.MESSAGES_INBOX, partition)
            found += await all_keys(ours, name)
        assert len(found) <= 2 * ours.store.partitions, "an inbox and the record of one writer"


async def all_keys(ours: StoreHarness, beside: str) -> list[bytes]:
    """Keys of the intake on the server that has the key `beside`."""
    found, cursor = [], b"0"
    while True:
        reply = await ours.runtime.redis.call(
            "SCAN", cursor, "MATCH", f"{beside}*", "COUNT", 1_000, key=beside
        )
        cursor, names = reply
        found += names
        if cursor == b"0":
            return found


async def test_a_full_inbox_refuses_messages_and_remembers_no_key(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, dispatch={"inbox_messages_max": 2}) as ours:
        store, keyspace = ours.store, ours.runtime.keyspace
        mine = [f"key{n}" for n in range(100) if keyspace.partition_of(f"key{n}") == ours.partition]
        key, other, *_ = mine
        await ours.add_to_inbox("payload", b"1")
        first = await store.enqueue(b"2", key)
        with pytest.raises(InboxFull) as refused:
            await store.enqueue(b"3", other)
        assert refused.value.code == "inbox_full"
        assert await store.enqueue(b"2", key) == (first.message_id, True), "a repeat is no message"
        await ours.accept_inbox()
        assert not (await store.enqueue(b"3", other)).duplicate
