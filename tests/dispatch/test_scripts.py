"""Every transition of dispatch on a real server: effect, each refusal, journal events."""

from __future__ import annotations

from collections import Counter

from angarium.dispatch import keys
from angarium.dispatch.epochs import digest
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.results import RESULT_FIELDS_MAX, stream_fields
from angarium.dispatch.store import DispatchStore
from angarium.redis.connection import Argument
from tests.dispatch.harness import ACK_TIMEOUT_MS, StoreHarness, store_harness
from tests.kit.clock import FakeClock
from tests.kit.sample import sample_runtime

PASSED_S = ACK_TIMEOUT_MS / 1000
NOBODY = new_ids(1, 3, 4)[0]


# Accepting ----------------------------------------------------------------------------------


async def test_accepted_messages_are_pending_and_journalled(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        messages = ours.messages(b"a", b"b\x00\xff", b"")
        assert await ours.accept(messages, sent=2) == 3
        held = await ours.state()
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


async def test_a_repeated_accept_changes_nothing(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        messages = ours.messages(b"a", b"a")
        assert await ours.accept(messages) == 2
        assert await ours.complete(messages[0][0]) == [True]
        before = await ours.state()
        # A repeated call returns only that the batch was accepted.
        assert await ours.accept(messages) == 2
        assert await ours.state() == before
        assert (await ours.event_counts())["accepted"] == 2


async def test_identical_payloads_become_different_messages(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        ids = await ours.accepted(b"same", b"same", b"same")
        assert len((await ours.state()).pending) == 3
        digests = await ours.store.accepted_digests(ours.partition, [ours.epoch])
        assert digests == {ours.epoch: Counter({digest(b"same"): 3})}
        assert await ours.complete(*ids) == [True] * 3


async def test_a_call_with_an_old_term_changes_nothing(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        await ours.accepted(b"due", sent=0)
        await ours.add_to_inbox("payload", "x")
        old = ours.term
        ours.term = await ours.take_over()
        before, covered = await ours.state(), await ours.store.covered(ours.partition)
        store, partition = ours.store, ours.partition
        for term in (old, ours.term + 1, 0):
            assert await ours.accept(ours.messages(b"new"), term=term) is None
            assert await store.claim(partition, term, 10) is None
            assert await store.accept_inbox(partition, term, 10, 10) is None
            assert await store.cover_epochs(partition, term, 99, [ours.epoch]) is False
        assert await ours.state() == before
        assert await store.covered(partition) == covered
        assert (await store.accepted_digests(partition, [ours.epoch]))[ours.epoch].total() == 1
        assert await ours.event_counts() == Counter({"accepted": 1})


async def test_a_call_before_the_first_term_is_stale(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        store = DispatchStore(runtime)
        (message_id,) = new_ids(1, 0, store.partitions)
        assert await store.accept(0, 0, 1, [(message_id, b"x")], digest(b"x"), 1) is None


async def test_a_full_partition_spills_new_messages_into_the_inbox(any_redis_url: str) -> None:
    limits = {"pending_messages_max": 3, "inbox_messages_max": 2}
    async with store_harness(
        any_redis_url, dispatch=limits, limits={"frame_bytes_max": 137}
    ) as ours:
        first = await ours.accepted(b"1", b"2")
        more = ours.messages(b"3", b"4", b"x" * 101, b"5", b"6")
        assert await ours.accept(more) == 1
        held = await ours.state()
        assert [each[b"payload"] for each in held.inbox] == [b"4", b"5"]
        assert [await ours.events_of(message_id) for message_id, _ in more] == [
            ["accepted"],
            ["enqueued"],
            ["refused"],
            ["enqueued"],
            ["refused"],
        ]
        assert await ours.accept_inbox() == [], "there is no space yet"
        await ours.complete(*first)
        assert await ours.accept_inbox() == [more[1], more[3]], "they keep their ids"
        assert set((await ours.state()).pending) == {more[0][0], more[1][0], more[3][0]}


async def test_a_full_partition_refuses_new_messages_if_configured(any_redis_url: str) -> None:
    limits = {"pending_messages_max": 3, "pending_full": "refuse_new"}
    async with store_harness(any_redis_url, dispatch=limits) as ours:
        first = await ours.accepted(b"1", b"2")
        more = ours.messages(b"3", b"4", b"5")
        assert await ours.accept(more) == 1
        assert await ours.accept(ours.messages(b"6")) == 0
        held = await ours.state()
        assert set(held.pending) == {*first, more[0][0]} == set(held.payloads)
        assert [await ours.events_of(message_id) for message_id, _ in more] == [
            ["accepted"],
            ["refused"],
            ["refused"],
        ]
        assert await ours.event_counts() == Counter({"accepted": 3, "refused": 3})
        # The digests include refused messages: the next leader must not accept them.
        digests = await ours.store.accepted_digests(ours.partition, [ours.epoch])
        assert digests[ours.epoch].total() == 6
        await ours.complete(first[0])
        assert await ours.accept(ours.messages(b"7")) == 1


async def test_a_full_partition_drops_the_oldest_messages_if_configured(any_redis_url: str) -> None:
    clock = FakeClock()
    limits = {"pending_messages_max": 3, "pending_full": "drop_oldest"}
    async with store_harness(any_redis_url, clock=clock, dispatch=limits) as ours:
        old = await ours.accepted(b"1", b"2")
        await clock.advance(1)
        new = await ours.accepted(b"3")
        await clock.advance(1)
        newest = await ours.accepted(b"4", b"5")
        held = await ours.state()
        assert set(held.pending) == {*new, *newest} == set(held.payloads)
        assert {each[b"message_id"] for each in held.dead} == set(old)
        assert {each[b"payload"] for each in held.dead} == {b"1", b"2"}
        assert await ours.events_of(old[0]) == ["accepted", "dropped"]
        for reasons in await ours.reasons():
            assert reasons == ["dropped, dispatch.pending_messages_max is full"]
        assert await ours.complete(old[0]) == [False]


async def test_the_largest_batches_fit_into_a_script(redis_url: str) -> None:
    """A script that fails half-way would keep the changes of its first half."""
    async with store_harness(redis_url, limits={"batch_items_max": 100_000}) as ours:
        count, store, partition = ours.store.items_max, ours.store, ours.partition
        ids = await ours.accepted(*[b"x"] * count, sent=0)
        claim = await store.claim(partition, ours.term, count)
        assert claim is not None
        assert len(claim.messages) == count
        statuses = await ours.reject_all([(each, "no") for each in ids], 0)
        assert statuses == ["requeued"] * count
        assert len(await ours.claim(count)) == count
        assert await ours.complete(*ids) == [True] * count
        for _ in range(count):
            await ours.add_to_inbox("payload", "x")
        assert len(await ours.accept_inbox(count, 0)) == count
        (wide,) = await ours.accepted(b"x")
        fields, _ = stream_fields({f"f{n}": n for n in range(RESULT_FIELDS_MAX)})
        assert await ours.complete_all("w1", [(wide, fields)]) == [True]
        assert len((await ours.state()).results[-1]) == RESULT_FIELDS_MAX + 2


async def test_a_message_too_large_for_a_frame_is_dead_at_once(any_redis_url: str) -> None:
    async with store_harness(any_redis_url, limits={"frame_bytes_max": 137}) as ours:
        messages = ours.messages(b"x" * 100, b"y" * 101, b"z")
        assert await ours.accept(messages, sent=2) == 3
        held = await ours.state()
        assert list(held.pending) == sorted([messages[0][0], messages[2][0]], key=held.pending.get)  # type: ignore[arg-type]
        assert [each[b"payload"] for each in held.dead] == [b"y" * 101]
        assert await ours.events_of(messages[1][0]) == ["accepted", "dead"]
        assert await ours.reasons() == [["too large, limits.frame_bytes_max is exceeded"]]
        assert set(held.attempts) == {messages[2][0]}


# Finishing ----------------------------------------------------------------------------------


async def test_a_result_is_stored_once(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        one, two = await ours.accepted(b"1", b"2", sent=1)
        results: list[tuple[bytes, list[Argument]]] = [
            (one, ["answer", 42, "raw", b"\x00\xff", "text", "zwölf"]),
            (two, []),
            (one, ["answer", "again"]),
            (NOBODY, ["answer", "never asked"]),
        ]
        assert await ours.complete_all("w ü\n1", results) == [True, True, False, False]
        assert await ours.complete_all("w2", results) == [False] * 4
        held = await ours.state()
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
        assert await ours.events_of(one) == ["accepted", "completed"]
        completed = [each for each in await ours.events() if each.event == "completed"]
        assert [each.node for each in completed] == ["w ü\n1"] * 2


async def test_the_stream_keeps_about_the_configured_number_of_entries(redis_url: str) -> None:
    async with store_harness(redis_url, dispatch={"stream_entries_max": 50}) as ours:
        for _ in range(5):
            await ours.complete(*await ours.accepted(*[b"x"] * 100))
        assert 50 <= len((await ours.state()).results) < 300


async def test_an_acknowledged_message_is_no_longer_pending(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        one, two, three = await ours.accepted(b"1", b"2", b"3", sent=2)
        assert await ours.acknowledge(one, NOBODY, one, three, consumer="node") == [
            True,
            False,
            False,
            True,
        ]
        assert await ours.acknowledge(one) == [False]
        assert await ours.complete(one) == [False]
        held = await ours.state()
        assert list(held.pending) == list(held.payloads) == [two]
        assert not held.attempts
        assert not held.results
        assert await ours.events_of(one) == ["accepted", "acknowledged"]
        acknowledged = [each for each in await ours.events() if each.event == "acknowledged"]
        assert [each.node for each in acknowledged] == ["node", "node"]


# Redelivering -------------------------------------------------------------------------------


async def test_a_message_that_was_never_sent_is_due_for_its_first_delivery(
    any_redis_url: str,
) -> None:
    async with store_harness(any_redis_url) as ours:
        ids = await ours.accepted(b"1", b"2", b"3", sent=1)
        assert await ours.claim() == sorted((each, 1) for each in ids[1:])
        assert await ours.claim() == []
        assert (await ours.state()).attempts == {}, "sent once needs no record"
        assert await ours.events_of(ids[1]) == ["accepted"]


async def test_a_message_that_times_out_is_due_again_and_finally_dead(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock, dispatch={"deliveries_max": 3}) as ours:
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
        held = await ours.state()
        assert not held.pending
        assert not held.payloads
        assert not held.attempts
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert letter.message_id == message_id.decode()
        assert (letter.deliveries, letter.payload) == (3, b"poison")
        assert letter.reasons == ["no acknowledgement within 2000 ms"] * 3
        assert await ours.events_of(message_id) == [
            "accepted",
            "redelivered",
            "redelivered",
            "dead",
        ]
        assert await ours.complete(message_id) == [False], "too late"


async def test_a_claim_returns_the_longest_due_messages_up_to_its_count(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
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


async def test_a_rejected_message_waits_longer_each_time_and_keeps_its_reasons(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock, dispatch={"deliveries_max": 4}) as ours:
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
        assert await ours.events_of(message_id) == [
            "accepted", *["rejected", "redelivered"] * 3, "rejected", "dead",
        ]  # fmt: skip
        rejected = [each for each in await ours.events() if each.event == "rejected"]
        assert [(each.attempt, each.detail) for each in rejected] == [
            (1, "no 2"), (2, "no 3"), (3, "no 4"), (4, "no 5"),
        ]  # fmt: skip
        held = await ours.state()
        assert not held.pending
        assert not held.payloads
        assert not held.attempts


async def test_a_rejection_delays_no_longer_than_the_time_out(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        (message_id,) = await ours.accepted(b"x")
        assert await ours.reject(message_id, "no", 60_000) == "requeued"
        await clock.advance(PASSED_S)
        assert await ours.claim() == [(message_id, 2)]


async def test_each_rejection_and_each_time_out_adds_one_reason(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock, dispatch={"deliveries_max": 3}) as ours:
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


async def test_a_message_that_is_given_back_is_due_at_once_and_counts_no_delivery(
    any_redis_url: str,
) -> None:
    async with store_harness(any_redis_url, dispatch={"deliveries_max": 2}) as ours:
        (message_id,) = await ours.accepted(b"x")
        for _ in range(5):
            assert await ours.reject(message_id, "") == "requeued"
            assert await ours.claim() == [(message_id, 1)]
        assert await ours.reject(message_id, "refused", 0) == "requeued"
        assert await ours.claim() == [(message_id, 2)]
        assert await ours.reject(message_id, "") == "requeued"
        assert await ours.claim() == [(message_id, 2)]
        assert await ours.event_counts() == Counter(
            {"accepted": 1, "returned": 6, "rejected": 1, "redelivered": 2}
        )


async def test_ids_that_are_not_pending_are_unknown(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        (done,) = await ours.accepted(b"x")
        await ours.complete(done)
        for message_id in (NOBODY, done, b"nonsense", b""):
            assert await ours.reject(message_id, "why") == "unknown"
            assert await ours.reject(message_id, "") == "unknown"
            assert await ours.acknowledge(message_id) == [False]
            assert await ours.complete(message_id) == [False]
        assert await ours.event_counts() == Counter({"accepted": 1, "completed": 1})


async def test_a_message_without_its_payload_is_dead_with_that_reason(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        gone, whole = await ours.accepted(b"1", b"2", sent=0)
        name = ours.name(keys.MESSAGES_PAYLOADS)
        await ours.runtime.redis.call("HDEL", name, gone, key=name)
        assert await ours.claim() == [(whole, 1)]
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert (letter.message_id, letter.payload) == (gone.decode(), None)
        assert letter.reasons == ["the payload is gone from Redis"]
        assert await ours.store.retry_dead_letters(ours.partition, [letter.entry_id]) == [
            "unusable"
        ]
        assert await ours.events_of(gone) == ["accepted", "dead"]


async def test_a_due_message_that_no_longer_fits_into_a_frame_is_dead(any_redis_url: str) -> None:
    """A frame that is too large would end the connection of each worker that receives it."""
    async with store_harness(any_redis_url, limits={"frame_bytes_max": 1_000}) as ours:
        large, small = await ours.accepted(b"x" * 500, b"y", sent=0)
        prefix, limits = ours.runtime.settings.prefix, {"frame_bytes_max": 137}
        async with sample_runtime(
            any_redis_url, clock=ours.runtime.clock, prefix=prefix, limits=limits
        ) as runtime:
            lower = StoreHarness(runtime, DispatchStore(runtime), ours.partition, ours.term)
            assert await lower.claim() == [(small, 1)]
            (letter,) = await lower.store.dead_letters(ours.partition, 10)
            assert letter.reasons == ["too large, limits.frame_bytes_max is exceeded"]
            assert await ours.events_of(large) == ["accepted", "dead"]
            # A retry helps only after the limit was raised.
            assert await lower.store.retry_dead_letters(ours.partition, [letter.entry_id]) == [
                "retried"
            ]
            assert await lower.claim() == []
        (letter,) = await ours.store.dead_letters(ours.partition, 10)
        assert await ours.store.retry_dead_letters(ours.partition, [letter.entry_id]) == ["retried"]
        assert await ours.claim() == [(large, 1)]


async def die(ours: StoreHarness, clock: FakeClock, *ids: bytes) -> None:
    """The worker that has the messages renews them once and dies."""
    assert set(await ours.renew(*ids)) == {"renewed"}
    await clock.advance(ACK_TIMEOUT_MS / 1000 + 0.001)


async def suspects(ours: StoreHarness, count: int = 25) -> tuple[list[bytes], int]:
    claim = await ours.store.claim(ours.partition, ours.term, 100, suspects_max=count)
    assert claim is not None
    return [each.message_id for each in claim.messages], claim.suspects


async def test_messages_whose_worker_died_again_and_again_are_claimed_apart(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        ids = sorted(await ours.accepted(b"1", b"2", b"3"))
        await die(ours, clock, *ids)
        assert [each for each, _ in await ours.claim()] == ids, "one death is no suspicion"
        await die(ours, clock, *ids)
        (fresh,) = await ours.accepted(b"4", sent=0)
        claim = await ours.store.claim(ours.partition, ours.term, 100)
        assert claim is not None
        assert [each.message_id for each in claim.messages] == [fresh]
        assert claim.suspects == 3
        assert await suspects(ours, 2) == (ids[:2], 3), "at most so many together"
        assert await suspects(ours) == (ids[2:], 1)
        assert await suspects(ours) == ([], 0)
        await die(ours, clock, *ids)
        for message_id in ids:
            assert (await suspects(ours))[0] == [message_id], "now each alone"
        assert await ours.complete(*ids, fresh) == [True] * 4


async def test_a_page_of_suspects_does_not_hide_the_messages_behind_it(redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(redis_url, clock=clock) as ours:
        ids = await ours.accepted(*[b"%d" % n for n in range(10)])
        await die(ours, clock, *ids)
        await ours.claim()
        await die(ours, clock, *ids)
        await clock.advance(1)
        (behind,) = await ours.accepted(b"behind", sent=0)
        claim = await ours.store.claim(ours.partition, ours.term, 5)
        assert claim is not None
        assert [each.message_id for each in claim.messages] == [behind]


async def test_the_last_delivery_of_a_message_is_alone_however_few_there_are(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with store_harness(redis_url, clock=clock, dispatch={"deliveries_max": 3}) as ours:
        ids = sorted(await ours.accepted(b"1", b"2"))
        await clock.advance(ACK_TIMEOUT_MS / 1000 + 0.001)
        assert [each for each, _ in await ours.claim()] == ids, "nobody renewed them"
        await die(ours, clock, *ids)
        assert (await suspects(ours))[0] == ids[:1]
        assert (await suspects(ours))[0] == ids[1:]
        await die(ours, clock, *ids)
        assert await suspects(ours) == ([], 0)
        assert len(await ours.reasons()) == 2, "both are dead letters"
