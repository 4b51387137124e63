"""Every transition of the module on a real server: what it does, each refusal, what it notes."""

from __future__ import annotations

from collections import Counter

import pytest

from angarium.dispatch.epochs import digest
from angarium.dispatch.identity import new_ids
from angarium.dispatch.results import RESULT_FIELDS_MAX, fields_of
from angarium.dispatch.store import DispatchStore
from angarium.redis.connection import Argument
from angarium.runtime import keyspace as keys
from tests.dispatch.kit import ACK_TIMEOUT_MS, Harness, module
from tests.kit.clock import FakeClock
from tests.kit.sample import sample_runtime

PASSED_S = ACK_TIMEOUT_MS / 1000
NOBODY = new_ids(1, 3, 4)[0]


# Accepting ----------------------------------------------------------------------------------


async def test_accepted_messages_are_pending_and_noted(any_redis_url: str) -> None:
    clock = FakeClock()
    async with module(any_redis_url, clock=clock) as ours:
        messages = ours.messages(b"a", b"b\x00\xff", b"")
        assert await ours.accept(messages, sent=2) == 3
        held = await ours.held()
        now = clock.now_ms()
        assert held.pending == {
            messages[0][0]: now,
            messages[1][0]: now,
            messages[2][0]: now - ACK_TIMEOUT_MS,
        }
        assert held.payloads == dict(messages)
        assert held.attempts == {messages[2][0]: b"0"}
        events = await ours.events()
        assert [(each.event, each.subject, each.key) for each in events] == [
            ("accepted", message_id.decode(), ours.store.channel) for message_id, _ in messages
        ]


async def test_a_batch_that_is_sent_again_changes_nothing(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        messages = ours.messages(b"a", b"a")
        assert await ours.accept(messages) == 2
        assert await ours.complete(messages[0][0]) == [True]
        before = await ours.held()
        # The reply was lost, and all that can be said is that it was done.
        assert await ours.accept(messages) == 2
        assert await ours.held() == before
        assert (await ours.noted_all())["accepted"] == 2


async def test_identical_payloads_are_different_messages(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        ids = await ours.accepted(b"same", b"same", b"same")
        assert len((await ours.held()).pending) == 3
        digests = await ours.store.accepted_digests(ours.partition, [ours.epoch])
        assert digests == {ours.epoch: Counter({digest(b"same"): 3})}
        assert await ours.complete(*ids) == [True] * 3


async def test_an_old_term_changes_nothing(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        await ours.accepted(b"due", sent=0)
        await ours.add_to_inbox("payload", "x")
        old = ours.term
        ours.term = await ours.take_over()
        before, covered = await ours.held(), await ours.store.covered(ours.partition)
        store, partition = ours.store, ours.partition
        for term in (old, ours.term + 1, 0):
            assert await ours.accept(ours.messages(b"new"), term=term) is None
            assert await store.claim(partition, term, 10) is None
            assert await store.take_inbox(partition, term, 10, 10) is None
            assert await store.cover(partition, term, 99, [ours.epoch]) is None
        assert await ours.held() == before
        assert await store.covered(partition) == covered
        assert (await store.accepted_digests(partition, [ours.epoch]))[ours.epoch].total() == 1
        assert await ours.noted_all() == Counter({"accepted": 1})


async def test_nobody_leads_before_there_is_a_term(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        store = DispatchStore(runtime)
        (message_id,) = new_ids(1, 0, store.partitions)
        assert await store.accept(0, 0, 1, [(message_id, b"x")], digest(b"x"), 1) is None


async def test_a_full_partition_refuses_new_ones(any_redis_url: str) -> None:
    limits = {"pending_messages_max": 3}
    async with module(any_redis_url, dispatch=limits) as ours:
        first = await ours.accepted(b"1", b"2")
        more = ours.messages(b"3", b"4", b"5")
        assert await ours.accept(more) == 1
        assert await ours.accept(ours.messages(b"6")) == 0
        held = await ours.held()
        assert set(held.pending) == {*first, more[0][0]} == set(held.payloads)
        assert [await ours.noted(message_id) for message_id, _ in more] == [
            ["accepted"],
            ["refused"],
            ["refused"],
        ]
        assert await ours.noted_all() == Counter({"accepted": 3, "refused": 3})
        # Refused is decided: the next leader must not take it for forgotten.
        digests = await ours.store.accepted_digests(ours.partition, [ours.epoch])
        assert digests[ours.epoch].total() == 6
        await ours.complete(first[0])
        assert await ours.accept(ours.messages(b"7")) == 1


async def test_a_full_partition_drops_the_oldest_if_told_to(any_redis_url: str) -> None:
    clock = FakeClock()
    limits = {"pending_messages_max": 3, "pending_full": "drop_oldest"}
    async with module(any_redis_url, clock=clock, dispatch=limits) as ours:
        old = await ours.accepted(b"1", b"2")
        await clock.advance(1)
        new = await ours.accepted(b"3")
        await clock.advance(1)
        newest = await ours.accepted(b"4", b"5")
        held = await ours.held()
        assert set(held.pending) == {*new, *newest} == set(held.payloads)
        assert {each[b"message_id"] for each in held.dead} == set(old)
        assert {each[b"payload"] for each in held.dead} == {b"1", b"2"}
        assert await ours.noted(old[0]) == ["accepted", "dropped"]
        for reasons in await ours.reasons():
            assert reasons == ["dropped, dispatch.pending_messages_max is full"]
        assert await ours.complete(old[0]) == [False]


async def test_a_partition_over_its_limit_keeps_what_it_has(any_redis_url: str) -> None:
    """Retried letters come on top; to refuse new ones is not to drop old ones."""
    limits = {"pending_messages_max": 2, "deliveries_max": 1}
    async with module(any_redis_url, dispatch=limits) as ours:
        letters = await dead_letters(ours, b"1", b"2")
        await ours.accepted(b"3", b"4")
        assert await ours.store.retry_dead(ours.partition, letters) == ["retried"] * 2
        assert await ours.accept(ours.messages(b"5")) == 0
        assert sorted((await ours.held()).payloads.values()) == [b"1", b"2", b"3", b"4"]
        assert await ours.take_inbox() == []


async def test_the_largest_batches_fit_into_a_script(redis_url: str) -> None:
    """A script that fails half-way would leave its first half behind."""
    async with module(redis_url, limits={"batch_items_max": 100_000}) as ours:
        count, store, partition = ours.store.items_max, ours.store, ours.partition
        ids = await ours.accepted(*[b"x"] * count, sent=0)
        claim = await store.claim(partition, ours.term, count)
        assert claim is not None
        assert len(claim.messages) == count
        statuses = await store.reject(partition, [(each, "no", 0) for each in ids])
        assert statuses == ["requeued"] * count
        assert len(await ours.claim(count)) == count
        assert await ours.complete(*ids) == [True] * count
        for _ in range(count):
            await ours.add_to_inbox("payload", "x")
        assert len(await ours.take_inbox(count, 0)) == count
        (wide,) = await ours.accepted(b"x")
        fields, _ = fields_of({f"f{n}": n for n in range(RESULT_FIELDS_MAX)})
        assert await store.complete(partition, "w1", [(wide, fields)]) == [True]
        assert len((await ours.held()).results[-1]) == RESULT_FIELDS_MAX + 2


async def test_what_no_frame_can_carry_is_dead_at_once(any_redis_url: str) -> None:
    async with module(any_redis_url, limits={"frame_bytes_max": 137}) as ours:
        messages = ours.messages(b"x" * 100, b"y" * 101, b"z")
        assert await ours.accept(messages, sent=2) == 3
        held = await ours.held()
        assert list(held.pending) == sorted([messages[0][0], messages[2][0]], key=held.pending.get)  # type: ignore[arg-type]
        assert [each[b"payload"] for each in held.dead] == [b"y" * 101]
        assert await ours.noted(messages[1][0]) == ["accepted", "dead"]
        assert await ours.reasons() == [["too large, limits.frame_bytes_max is exceeded"]]
        assert set(held.attempts) == {messages[2][0]}


# Finishing ----------------------------------------------------------------------------------


async def test_a_result_stands_in_the_stream_once(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        one, two = await ours.accepted(b"1", b"2", sent=1)
        results: list[tuple[bytes, list[Argument]]] = [
            (one, ["answer", 42, "raw", b"\x00\xff", "text", "zwölf"]),
            (two, []),
            (one, ["answer", "again"]),
            (NOBODY, ["answer", "never asked"]),
        ]
        store, partition = ours.store, ours.partition
        assert await store.complete(partition, "w ü\n1", results) == [True, True, False, False]
        assert await store.complete(partition, "w2", results) == [False] * 4
        held = await ours.held()
        assert held.results == [
            {
                b"message_id": one, b"consumer_id": "w ü\n1".encode(), b"answer": b"42",
                b"raw": b"\x00\xff", b"text": "zwölf".encode(),
            },
            {b"message_id": two, b"consumer_id": "w ü\n1".encode()},
        ]  # fmt: skip
        assert not held.pending
        assert not held.payloads
        assert not held.attempts
        assert await ours.noted(one) == ["accepted", "completed"]
        completed = [each for each in await ours.events() if each.event == "completed"]
        assert [each.node for each in completed] == ["w ü\n1"] * 2


async def test_the_stream_keeps_about_as_many_as_it_is_told_to(redis_url: str) -> None:
    async with module(redis_url, dispatch={"stream_entries_max": 50}) as ours:
        for _ in range(5):
            await ours.complete(*await ours.accepted(*[b"x"] * 100))
        assert 50 <= len((await ours.held()).results) < 300


async def test_who_stored_the_result_itself_acknowledges(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        one, two, three = await ours.accepted(b"1", b"2", b"3", sent=2)
        assert await ours.acknowledge(one, NOBODY, one, three, consumer="node") == [
            True,
            False,
            False,
            True,
        ]
        assert await ours.acknowledge(one) == [False]
        assert await ours.complete(one) == [False]
        held = await ours.held()
        assert list(held.pending) == list(held.payloads) == [two]
        assert not held.attempts
        assert not held.results
        assert await ours.noted(one) == ["accepted", "acknowledged"]
        acknowledged = [each for each in await ours.events() if each.event == "acknowledged"]
        assert [each.node for each in acknowledged] == ["node", "node"]


# Redelivering -------------------------------------------------------------------------------


async def test_what_was_never_sent_is_due_at_once_and_counts_as_its_first_delivery(
    any_redis_url: str,
) -> None:
    async with module(any_redis_url) as ours:
        ids = await ours.accepted(b"1", b"2", b"3", sent=1)
        assert await ours.claim() == sorted((each, 1) for each in ids[1:])
        assert await ours.claim() == []
        assert (await ours.held()).attempts == {}, "sent once needs no record"
        assert await ours.noted(ids[1]) == ["accepted"]


async def test_without_an_answer_a_message_is_due_again_and_at_last_dead(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with module(any_redis_url, clock=clock, dispatch={"deliveries_max": 3}) as ours:
        (message_id,) = await ours.accepted(b"poison")
        await clock.advance(PASSED_S - 0.001)
        assert await ours.claim() == []
        await clock.advance(0.001)
        assert await ours.claim() == [(message_id, 2)]
        assert await ours.claim() == []
        await clock.advance(PASSED_S)
        assert await ours.claim() == [(message_id, 3)]
        await clock.advance(PASSED_S)
        claim = await ours.store.claim(ours.partition, ours.term, 10)
        assert claim is not None
        assert (claim.messages, claim.dead, claim.full) == ([], 1, False)
        held = await ours.held()
        assert not held.pending
        assert not held.payloads
        assert not held.attempts
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert letter.message_id == message_id.decode()
        assert (letter.deliveries, letter.payload) == (3, b"poison")
        assert letter.reasons == ["no acknowledgement within 2000 ms"] * 3
        assert await ours.noted(message_id) == ["accepted", "redelivered", "redelivered", "dead"]
        assert await ours.complete(message_id) == [False], "too late"


async def test_the_longest_due_come_first_and_no_more_than_asked_for(any_redis_url: str) -> None:
    clock = FakeClock()
    async with module(any_redis_url, clock=clock) as ours:
        old = await ours.accepted(b"1", b"2")
        await clock.advance(0.5)
        new = await ours.accepted(b"3", b"4")
        await clock.advance(PASSED_S)
        claim = await ours.store.claim(ours.partition, ours.term, 3)
        assert claim is not None
        assert claim.full
        assert {each.message_id for each in claim.messages[:2]} == set(old)
        assert claim.messages[2].message_id == min(new)
        assert [each.payload for each in claim.messages[2:]] == [
            dict(zip(new, (b"3", b"4"), strict=True))[min(new)]
        ]
        rest = await ours.store.claim(ours.partition, ours.term, 3)
        assert rest is not None
        assert [each.message_id for each in rest.messages] == [max(new)]
        assert not rest.full


async def test_a_refused_message_waits_longer_each_time_and_keeps_the_reasons(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with module(any_redis_url, clock=clock, dispatch={"deliveries_max": 4}) as ours:
        (message_id,) = await ours.accepted(b"x")
        for delivery, wait_ms in ((2, 400), (3, 800), (4, 1_600)):
            assert await ours.reject(message_id, f"no {delivery}", 400) == "requeued"
            await clock.advance(wait_ms / 1000 - 0.001)
            assert await ours.claim() == []
            await clock.advance(0.001)
            assert await ours.claim() == [(message_id, delivery)]
        assert await ours.reject(message_id, "no 5", 400) == "dead"
        assert await ours.reject(message_id, "no 6", 400) == "unknown"
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert (letter.deliveries, letter.reasons) == (4, ["no 2", "no 3", "no 4", "no 5"])
        assert await ours.noted(message_id) == [
            "accepted", *["rejected", "redelivered"] * 3, "rejected", "dead",
        ]  # fmt: skip
        rejected = [each for each in await ours.events() if each.event == "rejected"]
        assert [(each.attempt, each.detail) for each in rejected] == [
            (1, "no 2"), (2, "no 3"), (3, "no 4"), (4, "no 5"),
        ]  # fmt: skip
        held = await ours.held()
        assert not held.pending
        assert not held.payloads
        assert not held.attempts


async def test_no_refusal_waits_longer_than_silence_would(any_redis_url: str) -> None:
    clock = FakeClock()
    async with module(any_redis_url, clock=clock) as ours:
        (message_id,) = await ours.accepted(b"x")
        assert await ours.reject(message_id, "no", 60_000) == "requeued"
        await clock.advance(PASSED_S)
        assert await ours.claim() == [(message_id, 2)]


async def test_refusals_and_silence_each_leave_one_line(any_redis_url: str) -> None:
    clock = FakeClock()
    async with module(any_redis_url, clock=clock, dispatch={"deliveries_max": 3}) as ours:
        (message_id,) = await ours.accepted(b"x")
        await ours.reject(message_id, "w1: ValueError: no", 100)
        await clock.advance(0.1)
        assert await ours.claim() == [(message_id, 2)]
        await clock.advance(PASSED_S)
        assert await ours.claim() == [(message_id, 3)]
        await ours.reject(message_id, "w2: ValueError: no", 100)
        assert await ours.reasons() == [
            ["w1: ValueError: no", "no acknowledgement within 2000 ms", "w2: ValueError: no"]
        ]


async def test_given_back_is_due_at_once_and_counts_for_nothing(any_redis_url: str) -> None:
    async with module(any_redis_url, dispatch={"deliveries_max": 2}) as ours:
        (message_id,) = await ours.accepted(b"x")
        for _ in range(5):
            assert await ours.reject(message_id, "") == "requeued"
            assert await ours.claim() == [(message_id, 1)]
        await ours.reject(message_id, "refused", 1)
        assert await ours.reject(message_id, "") == "requeued"
        assert await ours.claim() == [(message_id, 1)]
        assert await ours.noted_all() == Counter({"accepted": 1, "returned": 6, "rejected": 1})


async def test_ids_that_are_not_pending_are_unknown(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        (done,) = await ours.accepted(b"x")
        await ours.complete(done)
        for message_id in (NOBODY, done, b"nonsense", b""):
            assert await ours.reject(message_id, "why") == "unknown"
            assert await ours.reject(message_id, "") == "unknown"
            assert await ours.acknowledge(message_id) == [False]
            assert await ours.complete(message_id) == [False]
        assert await ours.noted_all() == Counter({"accepted": 1, "completed": 1})


async def test_a_message_whose_payload_is_gone_is_dead_with_the_reason(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        gone, whole = await ours.accepted(b"1", b"2", sent=0)
        name = ours.name(keys.MESSAGES_PAYLOADS)
        await ours.runtime.redis.call("HDEL", name, gone, key=name)
        assert await ours.claim() == [(whole, 1)]
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert (letter.message_id, letter.payload) == (gone.decode(), None)
        assert letter.reasons == ["the payload is gone from Redis"]
        assert await ours.store.retry_dead(ours.partition, [letter.entry_id]) == ["unusable"]
        assert await ours.noted(gone) == ["accepted", "dead"]


async def test_what_no_longer_fits_a_frame_is_dead_when_it_is_due(any_redis_url: str) -> None:
    """A frame too large would end the connection of each worker that it is sent to."""
    async with module(any_redis_url, limits={"frame_bytes_max": 1_000}) as ours:
        large, small = await ours.accepted(b"x" * 500, b"y", sent=0)
        prefix, limits = ours.runtime.settings.prefix, {"frame_bytes_max": 137}
        async with sample_runtime(
            any_redis_url, clock=ours.runtime.clock, prefix=prefix, limits=limits
        ) as runtime:
            lower = Harness(runtime, DispatchStore(runtime), ours.partition, ours.term)
            assert await lower.claim() == [(small, 1)]
            (letter,) = await lower.store.dead_letters(ours.partition, 10)
            assert letter.reasons == ["too large, limits.frame_bytes_max is exceeded"]
            assert await ours.noted(large) == ["accepted", "dead"]
            # Trying again helps only after the limit was raised.
            assert await lower.store.retry_dead(ours.partition, [letter.entry_id]) == ["retried"]
            assert await lower.claim() == []
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert await ours.store.retry_dead(ours.partition, [letter.entry_id]) == ["retried"]
        assert await ours.claim() == [(large, 1)]


# Dead letters -------------------------------------------------------------------------------


async def dead_letters(ours: Harness, *payloads: bytes) -> list[str]:
    """Entry ids of messages that were refused until they were dead."""
    for message_id in await ours.accepted(*payloads):
        assert await ours.reject(message_id, "no") == "dead"
    return [each.entry_id for each in await ours.store.dead_letters(ours.partition, 100)]


async def test_a_dead_letter_that_is_retried_has_all_its_deliveries_again(
    any_redis_url: str,
) -> None:
    async with module(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        first, second = await dead_letters(ours, b"1", b"2")
        store, partition = ours.store, ours.partition
        assert await store.retry_dead(partition, [first, "0-1", first]) == [
            "retried",
            "unknown",
            "unknown",
        ]
        ((message_id, delivery),) = await ours.claim()
        assert delivery == 1
        assert [each.entry_id for each in await store.dead_letters(partition, 10)] == [second]
        assert await ours.noted(message_id) == ["accepted", "rejected", "dead", "retried"]
        assert await ours.complete(message_id) == [True]
        held = await ours.held()
        assert not held.pending
        assert not held.payloads
        assert not held.attempts


async def test_a_dead_letter_that_is_dropped_is_gone_and_noted(any_redis_url: str) -> None:
    async with module(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        first, second = await dead_letters(ours, b"1", b"2")
        store, partition = ours.store, ours.partition
        assert await store.drop_dead(partition, [second, second]) == ["discarded", "unknown"]
        assert await store.drop_dead(partition, [second]) == ["unknown"]
        assert await store.retry_dead(partition, [second]) == ["unknown"]
        (left,) = await store.dead_letters(partition, 10)
        assert (left.entry_id, left.payload) == (first, b"1")
        assert await ours.noted_all() == Counter(
            {"accepted": 2, "rejected": 2, "dead": 2, "discarded": 1}
        )


@pytest.mark.parametrize("nonsense", ["", "x", "-", "+", "(1-0", "1-2-3", "9" * 40, "5-x"])
async def test_an_entry_id_that_is_none_leaves_the_others_alone(
    any_redis_url: str, nonsense: str
) -> None:
    async with module(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        first, second = await dead_letters(ours, b"1", b"2")
        store, partition = ours.store, ours.partition
        assert await store.retry_dead(partition, [first, nonsense]) == ["retried", "unknown"]
        assert await store.drop_dead(partition, [second, nonsense]) == ["discarded", "unknown"]
        noted = await ours.noted_all()
        assert (noted["retried"], noted["discarded"]) == (1, 1)


async def test_half_an_entry_id_means_no_letter(any_redis_url: str) -> None:
    """Redis reads a number alone as the first entry of that millisecond, whichever that is."""
    async with module(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        (letter,) = await dead_letters(ours, b"1")
        half = letter.partition("-")[0]
        assert await ours.store.retry_dead(ours.partition, [half]) == ["unknown"]
        assert await ours.store.drop_dead(ours.partition, [half]) == ["unknown"]
        assert len((await ours.held()).dead) == 1


async def test_dead_letters_are_listed_page_by_page(any_redis_url: str) -> None:
    async with module(any_redis_url, dispatch={"deliveries_max": 1}) as ours:
        await dead_letters(ours, *[b"%d" % n for n in range(5)])
        store, partition = ours.store, ours.partition
        first = await store.dead_letters(partition, 2)
        second = await store.dead_letters(partition, 10, first[-1].entry_id)
        assert [each.payload for each in first + second] == [b"%d" % n for n in range(5)]


# Epochs -------------------------------------------------------------------------------------


async def test_marks_count_up_and_are_heard_among_the_messages(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        store = ours.store
        redis = ours.runtime.redis
        async with redis.subscribe(
            store.channel, store.marks, key=store.subscription_key
        ) as subscription:
            await subscription.subscribed.wait()
            heard: list[bytes] = []
            assert await store.mark_epoch() == 1
            await store.publish(b"between")
            assert await store.mark_epoch() == 2
            while len(heard) < 3:
                heard += [each.payload for each in (await subscription.receive()).messages]
            assert heard == [b"epoch 1", b"between", b"epoch 2"]
            await store.cover(ours.partition, ours.term, 2, [])
            batch = await subscription.receive()
            assert [each.payload for each in batch.messages] == [b"covered %d 2" % ours.partition]


async def test_covering_moves_forward_only_and_forgets_the_digests(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        store, partition = ours.store, ours.partition
        assert await store.covered(partition) == 0
        for epoch in (4, 5, 6):
            ours.epoch = epoch
            await ours.accepted(b"%d" % epoch)
        assert await store.cover(partition, ours.term, 6, [4, 5])
        assert await store.covered(partition) == 6
        assert await store.accepted_digests(partition, [4, 5, 6]) == {
            4: Counter(),
            5: Counter(),
            6: Counter({digest(b"6"): 1}),
        }
        assert await store.cover(partition, ours.term, 3, [])
        assert await store.covered(partition) == 6
        assert await store.accepted_digests(partition, []) == {}


async def test_the_digests_of_several_batches_of_several_leaders_add_up(any_redis_url: str) -> None:
    async with module(any_redis_url) as ours:
        await ours.accepted(b"a", b"b", b"a")
        ours.term = await ours.take_over()
        await ours.accepted(b"a")
        digests = await ours.store.accepted_digests(ours.partition, [1])
        assert digests[1] == Counter({digest(b"a"): 3, digest(b"b"): 1})


# The whole of it ----------------------------------------------------------------------------


async def test_the_journal_accounts_for_every_message(any_redis_url: str) -> None:
    clock = FakeClock()
    limits = {"deliveries_max": 2, "pending_messages_max": 8}
    async with module(any_redis_url, clock=clock, dispatch=limits) as ours:
        ids = await ours.accepted(*[b"%d" % n for n in range(6)])
        await ours.add_to_inbox("payload", "6")
        ((inbox, _),) = await ours.take_inbox()
        await ours.complete(ids[0], inbox)
        await ours.acknowledge(ids[1])
        await ours.reject(ids[2], "no", 1)
        await clock.advance(PASSED_S)
        assert len(await ours.claim()) == 4
        assert await ours.reject(ids[2], "no", 1) == "dead"
        await clock.advance(PASSED_S)
        assert await ours.claim() == []
        (first, *_) = [each.entry_id for each in await ours.store.dead_letters(ours.partition, 9)]
        await ours.store.retry_dead(ours.partition, [first])
        noted = await ours.noted_all()
        taken_in = noted["accepted"] + noted["retried"]
        ended = sum(noted[event] for event in ("completed", "acknowledged", "dead", "dropped"))
        assert (taken_in, ended) == (8, 7)
        assert taken_in - ended == len((await ours.held()).pending)
