"""The transitions of dead letters and epochs on a real server, and the journal of all of them."""

from __future__ import annotations

from collections import Counter

import pytest

from angarium.dispatch.epochs import digest
from angarium.dispatch.message_ids import new_ids
from tests.dispatch.harness import ACK_TIMEOUT_MS, StoreHarness, store_harness
from tests.kit.clock import FakeClock

PASSED_S = ACK_TIMEOUT_MS / 1000
NOBODY = new_ids(1, 3, 4)[0]


# Dead letters -------------------------------------------------------------------------------


async def dead_letters(ours: StoreHarness, *payloads: bytes) -> list[str]:
    """Make messages dead letters by rejecting them; their entry ids."""
    for message_id in await ours.accepted(*payloads):
        assert await ours.reject(message_id, "no") == "dead"
    return [each.entry_id for each in await ours.store.dead_letters(ours.partition, 100)]


async def test_a_retried_dead_letter_has_no_delivery_counted(
    any_redis_url: str,
) -> None:
    async with store_harness(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        first, second = await dead_letters(ours, b"1", b"2")
        store, partition = ours.store, ours.partition
        assert await store.retry_dead_letters(partition, [first, "0-1", first]) == [
            "retried",
            "unknown",
            "unknown",
        ]
        ((message_id, delivery),) = await ours.claim()
        assert delivery == 1
        assert [each.entry_id for each in await store.dead_letters(partition, 10)] == [second]
        assert await ours.events_of(message_id) == ["accepted", "rejected", "dead", "retried"]
        assert await ours.complete(message_id) == [True]
        held = await ours.state()
        assert not held.pending
        assert not held.payloads
        assert not held.attempts


async def test_a_dropped_dead_letter_is_deleted_and_journalled(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        first, second = await dead_letters(ours, b"1", b"2")
        store, partition = ours.store, ours.partition
        assert await store.drop_dead_letters(partition, [second, second]) == [
            "discarded",
            "unknown",
        ]
        assert await store.drop_dead_letters(partition, [second]) == ["unknown"]
        assert await store.retry_dead_letters(partition, [second]) == ["unknown"]
        (left,) = await store.dead_letters(partition, 10)
        assert (left.entry_id, left.payload) == (first, b"1")
        assert await ours.event_counts() == Counter(
            {"accepted": 2, "rejected": 2, "dead": 2, "discarded": 1}
        )


@pytest.mark.parametrize("nonsense", ["", "x", "-", "+", "(1-0", "1-2-3", "9" * 40, "5-x"])
async def test_an_invalid_entry_id_does_not_affect_the_others(
    any_redis_url: str, nonsense: str
) -> None:
    async with store_harness(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        first, second = await dead_letters(ours, b"1", b"2")
        store, partition = ours.store, ours.partition
        assert await store.retry_dead_letters(partition, [first, nonsense]) == [
            "retried",
            "unknown",
        ]
        assert await store.drop_dead_letters(partition, [second, nonsense]) == [
            "discarded",
            "unknown",
        ]
        noted = await ours.event_counts()
        assert (noted["retried"], noted["discarded"]) == (1, 1)


async def test_an_incomplete_entry_id_finds_no_dead_letter(any_redis_url: str) -> None:
    """Redis takes a number without a sequence as a range of all entries of that millisecond."""
    async with store_harness(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        (letter,) = await dead_letters(ours, b"1")
        half = letter.partition("-")[0]
        assert await ours.store.retry_dead_letters(ours.partition, [half]) == ["unknown"]
        assert await ours.store.drop_dead_letters(ours.partition, [half]) == ["unknown"]
        assert len((await ours.state()).dead) == 1


async def test_dead_letters_are_listed_page_by_page(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        await dead_letters(ours, *[b"%d" % n for n in range(5)])
        store, partition = ours.store, ours.partition
        first = await store.dead_letters(partition, 2)
        second = await store.dead_letters(partition, 10, first[-1].entry_id)
        assert [each.payload for each in first + second] == [b"%d" % n for n in range(5)]


async def test_a_partition_over_its_limit_keeps_its_messages(any_redis_url: str) -> None:
    """Retried dead letters may exceed the limit; the partition then refuses new messages only."""
    limits = {"pending_messages_max": 2, "deliveries_max": 1}
    async with store_harness(any_redis_url, dispatch=limits) as ours:
        letters = await dead_letters(ours, b"1", b"2")
        await ours.accepted(b"3", b"4")
        assert await ours.store.retry_dead_letters(ours.partition, letters) == ["retried"] * 2
        assert await ours.accept(ours.messages(b"5")) == 0
        assert sorted((await ours.state()).payloads.values()) == [b"1", b"2", b"3", b"4"]
        assert await ours.accept_inbox() == []


# Epochs -------------------------------------------------------------------------------------


async def test_epoch_markers_count_up_and_arrive_between_the_messages(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        store = ours.store
        redis = ours.runtime.redis
        async with redis.subscribe(
            store.channel, store.marker_channel, key=store.subscription_key
        ) as subscription:
            await subscription.subscribed.wait()
            heard: list[bytes] = []
            assert await store.publish_epoch_marker() == 1
            await store.publish(b"between")
            assert await store.publish_epoch_marker() == 2
            while len(heard) < 3:
                heard += [each.payload for each in (await subscription.receive()).messages]
            assert heard == [b"epoch 1", b"between", b"epoch 2"]
            await store.cover_epochs(ours.partition, ours.term, 2, [])
            batch = await subscription.receive()
            assert [each.payload for each in batch.messages] == [b"covered %d 2" % ours.partition]


async def test_covering_only_moves_forward_and_deletes_the_digests(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        store, partition = ours.store, ours.partition
        assert await store.covered(partition) == 0
        for epoch in (4, 5, 6):
            ours.epoch = epoch
            await ours.accepted(b"%d" % epoch)
        assert await store.cover_epochs(partition, ours.term, 6, [4, 5])
        assert await store.covered(partition) == 6
        assert await store.accepted_digests(partition, [4, 5, 6]) == {
            4: Counter(),
            5: Counter(),
            6: Counter({digest(b"6"): 1}),
        }
        assert await store.cover_epochs(partition, ours.term, 3, [])
        assert await store.covered(partition) == 6
        assert await store.accepted_digests(partition, []) == {}


async def test_the_digests_of_several_batches_of_several_leaders_add_up(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        await ours.accepted(b"a", b"b", b"a")
        ours.term = await ours.take_over()
        await ours.accepted(b"a")
        digests = await ours.store.accepted_digests(ours.partition, [1])
        assert digests[1] == Counter({digest(b"a"): 3, digest(b"b"): 1})


# Journal ------------------------------------------------------------------------------------


async def test_the_journal_accounts_for_every_message(any_redis_url: str) -> None:
    clock = FakeClock()
    limits = {"deliveries_max": 2, "pending_messages_max": 8}
    async with store_harness(any_redis_url, clock=clock, dispatch=limits) as ours:
        ids = await ours.accepted(*[b"%d" % n for n in range(6)])
        await ours.add_to_inbox("payload", "6")
        ((inbox, _),) = await ours.accept_inbox()
        await ours.complete(ids[0], inbox)
        await ours.acknowledge(ids[1])
        await ours.reject(ids[2], "no", 1)
        await clock.advance(PASSED_S)
        assert len(await ours.claim()) == 4
        assert await ours.reject(ids[2], "no", 1) == "dead"
        await clock.advance(PASSED_S)
        assert await ours.claim() == []
        (first, *_) = [each.entry_id for each in await ours.store.dead_letters(ours.partition, 9)]
        await ours.store.retry_dead_letters(ours.partition, [first])
        noted = await ours.event_counts()
        taken_in = noted["accepted"] + noted["retried"]
        ended = sum(noted[event] for event in ("completed", "acknowledged", "dead", "dropped"))
        assert (taken_in, ended) == (8, 7)
        assert taken_in - ended == len((await ours.state()).pending)
