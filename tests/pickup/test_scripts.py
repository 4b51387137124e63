"""Calls every script of the module: success, each refusal, and the events."""

from __future__ import annotations

from pathlib import Path

import pytest

from angarium.pickup import keys
from angarium.pickup.model import StoredMessage, messages_of
from angarium.pickup.store import TakeLimits
from angarium.runtime.errors import LeaseLost
from angarium.runtime.scripts import status_of
from tests.pickup.harness import (
    DID,
    GRACE_S,
    LEASE_S,
    OTHER_DID,
    QUEUE,
    SENDING_S,
    THRESHOLD_S,
    PickupHarness,
    all_done,
    harness,
    ids_of,
    sqlite,
    take,
)


async def test_an_added_message_is_pending_and_found(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        message_id = await pickup.add(payload=b'{"a":1}')
        assert await pickup.store.exists(QUEUE, message_id)
        assert not await pickup.store.exists(QUEUE, "other")
        assert not await pickup.store.exists("default:c2", message_id)
        assert await pickup.count() == 1
        assert await pickup.event_names() == ["accepted"]
        figures = await pickup.store.queue_status(QUEUE)
        assert figures is not None
        assert (figures.pending, figures.sending, figures.archived) == (1, 0, 0)
        assert not figures.live
        assert await pickup.store.queue_status("default:c2") is None


async def test_a_full_queue_refuses_messages_and_others_accept_them(
    any_redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_queue_messages_max": 2}
    async with harness(any_redis_url, sqlite(tmp_path), limits=limits) as pickup:
        await pickup.add_many(2)
        assert status_of(await pickup.store.add(QUEUE, "m3", DID, b"1")) == "queue_full"
        assert await pickup.count() == 2
        await pickup.add("default:c2")
        assert await pickup.archive_all() == 3
        assert status_of(await pickup.store.add(QUEUE, "m3", DID, b"1")) == "queue_full"


async def test_a_queue_has_a_limit_of_bytes(redis_url: str, tmp_path: Path) -> None:
    limits = {"pickup_queue_bytes_max": 200}
    async with harness(redis_url, sqlite(tmp_path), limits=limits) as pickup:
        first = await pickup.add(payload=b"1" * 100)
        assert status_of(await pickup.store.add(QUEUE, "m3", DID, b"1" * 100)) == "queue_full"
        await pickup.queues.remove(QUEUE, [first])
        assert status_of(await pickup.store.add(QUEUE, "m3", DID, b"1" * 100)) == "offline"


async def test_nobody_else_gets_taken_messages_until_their_time_is_over(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(5)
        assert await pickup.take(2) == ids[:2]
        assert await pickup.take(2) == ids[2:4]
        assert await pickup.count() == 1
        await pickup.clock.advance(SENDING_S - 1)
        assert await pickup.sweep() == 0
        await pickup.clock.advance(2)
        assert await pickup.sweep() == 4
        assert await pickup.take() == ids
        assert (await pickup.event_names()).count("returned") == 4


async def test_a_take_keeps_both_limits(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        ids = [await pickup.add(payload=b"1" * 10) for _ in range(4)]
        assert ids_of(await take(pickup.queues, QUEUE, "", 3, 25)) == ids[:2]
        assert ids_of(await take(pickup.queues, QUEUE, "", 1, 25)) == ids[2:3]
        assert ids_of(await take(pickup.queues, QUEUE, "", 5, 9)) == []
        assert ids_of(await take(pickup.queues, QUEUE, "", 0, 99)) == []


async def test_the_first_message_of_a_take_may_be_larger_than_the_others(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        ids = [await pickup.add(payload=b"0" * size) for size in (90, 10, 10, 90, 10)]
        most = TakeLimits(10, 25, 100)

        async def portion() -> tuple[list[str], bool]:
            taken = await pickup.queues.take(QUEUE, "", most)
            assert list(taken.due) == ids_of(taken.messages)
            return ids_of(taken.messages), taken.more

        assert await take(pickup.queues, QUEUE, "", 10, 89) == []
        assert await portion() == (ids[:1], True)
        assert await portion() == (ids[1:3], True)
        assert await portion() == (ids[3:4], True)
        assert await portion() == (ids[4:], False)


async def test_the_first_archived_message_may_be_larger_than_the_others(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        ids = [await pickup.add(payload=b"0" * size) for size in (90, 10, 10, 90, 10)]
        await pickup.archive_all()
        newer = await pickup.add(payload=b"0" * 90)
        rows = await pickup.archive.page(QUEUE, "", 0, 10)

        async def claim(term: str, *limits: int) -> list[str]:
            cleared = (await pickup.store.pull(QUEUE, session, resend=False))[2]
            reply = await pickup.store.claim_archived(
                QUEUE, term, rows, TakeLimits(*limits), cleared
            )
            assert (status_of(reply), reply[1]) == ("claimed", 1)
            return [each.decode() for each in reply[3:]]

        session = await pickup.open()
        assert await claim("", 10, 25, 89) == [], "larger than the taker's limit"
        assert await claim(session, 10, 25) == ids[:1]
        assert await claim("", 10, 25, 100) == ids[1:3]
        assert await claim(session, 1, 25) == ids[3:4]
        assert await pickup.pull(session) == [ids[4], newer]


async def test_takes_of_one_call_share_a_limit_of_bytes(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        queues = [f"default:c{number}" for number in range(12)]
        for queue in queues:
            await pickup.add(queue, payload=b"0" * 1_000_000)
        replies = await all_done(
            *(pickup.store.take(queue, "", TakeLimits(1, 1)) for queue in queues)
        )
        statuses = [status_of(each) for each in replies]
        assert set(statuses) == {"taken", "busy"}
        busy = [queue for queue, status in zip(queues, statuses, strict=True) if status == "busy"]
        for queue in busy:
            assert len(await take(pickup.queues, queue, "", 1, 2_000_000)) == 1


@pytest.mark.parametrize("archived", [False, True])
async def test_taken_messages_without_an_answer_are_pending_again(
    redis_url: str, tmp_path: Path, archived: bool
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(4)
        if archived:
            await pickup.archive_all()
        taken = await pickup.queues.take(QUEUE, "", TakeLimits(3, 100))
        assert ids_of(taken.messages) == ids[:3]
        await pickup.queues.remove(QUEUE, ids[:1])
        assert await pickup.store.give_back(QUEUE, taken.due) == 2
        assert await pickup.store.give_back(QUEUE, taken.due) == 0
        assert await pickup.count() == 3
        assert (await pickup.event_names()).count("returned") == 2
        await pickup.clock.advance(1)
        assert await pickup.take(1) == ids[1:2]
        assert await pickup.store.give_back(QUEUE, taken.due) == 0, "another taker has it"
        assert await pickup.take() == ids[2:]


async def test_a_full_window_gets_no_archived_messages(redis_url: str, tmp_path: Path) -> None:
    limits = {"pickup_sending_messages_max": 2}
    async with harness(redis_url, sqlite(tmp_path), limits=limits) as pickup:
        ids = await pickup.add_many(2)
        term = await pickup.open()
        await pickup.store.pull(QUEUE, term, resend=False)
        older = await pickup.add_many(1)
        await pickup.archive_all()
        assert status_of(await pickup.store.pull(QUEUE, term, resend=False)) == "window_full"
        await pickup.queues.remove(QUEUE, ids)
        assert await pickup.pull(term) == older


async def test_a_take_for_one_recipient_leaves_the_messages_of_others(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        anna = await pickup.add(did=DID)
        both = await pickup.add(did=f"{DID} {OTHER_DID}")
        longer = await pickup.add(did=f"{OTHER_DID}2")
        assert await pickup.count(did=OTHER_DID) == 1
        assert await pickup.take(did=OTHER_DID) == [both]
        assert await pickup.count(did=OTHER_DID) == 0
        assert await pickup.count(did=DID) == 1
        assert await pickup.take() == [anna, longer]


async def test_a_session_gets_pending_messages_in_order_and_nobody_else_does(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(3)
        term = await pickup.open()
        assert await pickup.pull(term) == ids
        assert await pickup.pull(term) == []
        await pickup.clock.advance(3_000)  # a session has them without a time limit
        assert await pickup.sweep() == 0
        assert await pickup.take() == []
        assert await pickup.count() == 0


async def test_a_message_goes_to_a_local_session_at_once_if_no_earlier_one_is_pending(
    any_redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_sending_messages_max": 3}
    async with harness(any_redis_url, sqlite(tmp_path), send_at_once=True, limits=limits) as pickup:
        first = await pickup.add()
        assert pickup.status == "offline"
        term = await pickup.open()
        second = await pickup.add()
        assert pickup.status == "here", "an earlier one is pending"
        assert await pickup.pull(term) == [first, second]
        reply = await pickup.store.add(QUEUE, "m3", DID, b"1")
        assert status_of(reply) == "sent"
        assert reply[1].decode() == term
        assert reply[2] > int(term)
        assert reply[3] == pickup.clock.now_ms()
        await pickup.add()
        assert pickup.status == "here", "the window is full"
        assert await pickup.queues.remove(QUEUE, [first, second, "m3"]) == 3
        assert [event.status for event in await pickup.events() if event.subject == "m3"] == [
            "sent",
            None,
        ]
        await pickup.archive_all()
        for partition in pickup.store.partitions:
            await pickup.store.sessions.renew_gateway(partition)
        await pickup.add()
        assert pickup.status == "here", "archived messages come first"


async def test_a_pull_under_another_term_answers_lost(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        await pickup.add()
        await pickup.open()
        assert status_of(await pickup.store.pull(QUEUE, "1", resend=False)) == "lost"
        assert await pickup.count() == 1


async def test_a_pull_stops_at_the_window(redis_url: str, tmp_path: Path) -> None:
    limits = {"pickup_sending_messages_max": 2}
    async with harness(redis_url, sqlite(tmp_path), limits=limits) as pickup:
        ids = await pickup.add_many(3)
        term = await pickup.open()
        reply = await pickup.store.pull(QUEUE, term, resend=False)
        assert ids_of(messages_of(reply[2:])) == ids[:2]
        assert reply[1] == 1
        assert status_of(await pickup.store.pull(QUEUE, term, resend=False)) == "window_full"
        await pickup.queues.remove(QUEUE, ids[:1])
        reply = await pickup.store.pull(QUEUE, term, resend=False)
        assert ids_of(messages_of(reply[2:])) == ids[2:]


async def test_a_pull_with_resend_returns_sent_messages_again(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(3)
        taken = await pickup.take(1)
        term = await pickup.open()
        await pickup.store.pull(QUEUE, term, resend=False)  # the reply is lost
        assert await pickup.pull(term, resend=True) == ids[1:], "without the message of a taker"
        assert taken == ids[:1]


async def test_removal_is_exact_and_repeatable(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(60)
        await pickup.take(10)
        assert await pickup.queues.remove(QUEUE, [*ids[5:45], "unknown"]) == 40
        assert await pickup.queues.remove(QUEUE, ids[5:45]) == 0
        assert await pickup.queues.remove("default:c2", ids) == 0
        assert await pickup.take(100) == ids[45:]
        assert (await pickup.event_names()).count("delivered") == 40


async def test_an_empty_queue_leaves_nothing_in_redis(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(3)
        await pickup.take(1)
        await pickup.queues.remove(QUEUE, ids)
        assert await pickup.store.queue_status(QUEUE) is None
        await pickup.clock.advance(SENDING_S + 1)
        await pickup.sweep()
        await pickup.clock.advance(THRESHOLD_S)
        await pickup.persist()
        due = await pickup.store.due_work(pickup.store.partition_of(QUEUE), 10)
        assert (due.to_release, due.to_archive, due.with_removed_rows) == ([], [], [])


@pytest.mark.parametrize("archived", [False, True])
async def test_all_messages_of_a_recipient_are_removed(
    archived: bool, any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        await pickup.add(did=DID)
        kept = await pickup.add(did=OTHER_DID)
        await pickup.add(did=f"{OTHER_DID} {DID}")
        term = await pickup.open()
        await pickup.pull(term)
        await pickup.add(did=DID)
        if archived:
            await pickup.archive_all()
        assert await pickup.queues.remove_all(QUEUE, DID) == 3
        assert await pickup.queues.remove_all(QUEUE, DID) == 0
        assert await pickup.pull(term, resend=True) == [kept]
        assert (await pickup.event_names()).count("cancelled") == 3


async def test_old_messages_move_and_young_ones_stay(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        old = await pickup.add_many(3)
        await pickup.clock.advance(THRESHOLD_S / 2)
        young = await pickup.add_many(2)
        assert await pickup.persist() == 0
        await pickup.clock.advance(THRESHOLD_S / 2 + 1)
        assert await pickup.persist() == 3
        figures = await pickup.store.queue_status(QUEUE)
        assert figures is not None
        assert (figures.pending, figures.archived) == (5, 3)
        assert await pickup.take(4) == [*old, *young[:1]]
        assert await pickup.count() == 1
        assert (await pickup.event_names()).count("archived") == 3


async def test_sent_messages_move_and_stay_sent(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(3)
        term = await pickup.open()
        assert await pickup.pull(term) == ids
        assert await pickup.archive_all() == 3
        assert await pickup.count() == 0
        assert await pickup.pull(term) == []
        new = await pickup.open(session="s2", socket="k2")
        await pickup.queues.remove(QUEUE, ids[1:2])
        await pickup.clock.advance(GRACE_S + 1)
        assert await pickup.sweep() == 2
        assert await pickup.pull(new) == [ids[0], ids[2]]


async def test_messages_that_are_pending_again_come_before_newer_archived_ones(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        first = await pickup.add_many(1)
        term = await pickup.open()
        assert await pickup.pull(term) == first
        later = await pickup.add_many(2)
        await pickup.clock.advance(THRESHOLD_S + 1)
        new = await pickup.open(session="s2", socket="k2")  # the first is in its grace period now
        assert await pickup.persist() == 3
        await pickup.clock.advance(GRACE_S + 1)
        await pickup.sweep()
        assert await pickup.pull(new) == [*first, *later]


async def test_a_message_removed_during_its_move_stays_removed(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(3)
        await pickup.clock.advance(THRESHOLD_S + 1)
        persister = pickup.persisters[pickup.store.partition_of(QUEUE)]

        async def acknowledge(_: object) -> None:
            assert await pickup.queues.remove(QUEUE, ids[:1]) == 1

        persister.on_rows_stored = acknowledge  # type: ignore[method-assign, assignment]
        assert await pickup.persist() == 2
        assert await pickup.count() == 2
        assert await pickup.take() == ids[1:]
        assert await pickup.archive.sizes(QUEUE, ids[:1]) == [], "its row is deleted"


async def test_removal_of_archived_messages_is_exact_and_deletes_their_rows(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(4)
        await pickup.archive_all()
        assert await pickup.queues.remove(QUEUE, [ids[1], ids[2], "unknown"]) == 2
        assert await pickup.queues.remove(QUEUE, ids[1:3]) == 0
        assert await pickup.count() == 2
        assert await pickup.take() == [ids[0], ids[3]]
        await pickup.persist()
        assert await pickup.archive.sizes(QUEUE, ids) != []
        assert {row[0] for row in await pickup.archive.sizes(QUEUE, ids)} == {ids[0], ids[3]}
        assert (await pickup.event_names()).count("delivered") == 2


async def test_rows_read_before_a_deletion_are_read_again(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(2)
        await pickup.archive_all()
        reply = await pickup.store.remove(QUEUE, "delivered", ids[:1])
        rows = await pickup.archive.sizes(QUEUE, ids[:1])
        await pickup.queues.remove(QUEUE, ids[:1])
        await pickup.persist()
        assert (
            status_of(await pickup.store.remove_archived(QUEUE, "delivered", reply[2], rows))
            == "again"
        )
        assert await pickup.count() == 1


async def forget_everything(pickup: PickupHarness, partition: int) -> None:
    """Delete all data of the partition, as after a loss of Redis' data."""
    name, call = pickup.runtime.keyspace.name, pickup.runtime.redis.call
    for key in (keys.PICKUP_CHARTED, keys.PICKUP_PERSISTER_TERM, keys.PICKUP_PERSISTER_LOCK):
        await call("DEL", name(key, partition), key=name(key, partition))
    for queue in (QUEUE, "default:c2"):
        if pickup.store.partition_of(queue) == partition:
            gone = name(keys.PICKUP_QUEUE, partition, queue)
            await call("DEL", gone, key=gone)


async def test_after_redis_lost_its_data_the_database_is_counted_first(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(3)
        other = await pickup.add("default:c2")
        await pickup.archive_all()
        for partition in pickup.store.partitions:
            await forget_everything(pickup, partition)
        for reply in (
            await pickup.store.take(QUEUE, "", TakeLimits(5, 99)),
            await pickup.store.count(QUEUE, ""),
            await pickup.store.remove(QUEUE, "delivered", ids),
            await pickup.store.list_ids(QUEUE, DID, 9),
        ):
            assert status_of(reply) == "not_counted"
        await pickup.clock.advance(LEASE_S + 1)
        await pickup.persist()
        assert await pickup.take() == ids
        assert await pickup.take(queue="default:c2") == [other]


async def test_a_term_never_decreases(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        name = pickup.runtime.keyspace.name(keys.PICKUP_PERSISTER_TERM)
        for given, expected in ((7, b"7"), (3, b"7"), (9, b"9")):
            await pickup.store.moves.raise_term(0, given)
            assert await pickup.runtime.redis.call("GET", name) == expected


async def test_a_persister_of_an_older_term_stores_nothing(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        await pickup.add()
        assert await pickup.archive.fence(0, 1_000) == 1_000
        assert await pickup.archive.fence(0, 999) == 1_000
        message = StoredMessage("m1", 1, 1, DID, b"1")
        with pytest.raises(LeaseLost):
            await pickup.archive.store(0, 999, {QUEUE: [message]})
        assert await pickup.archive.sizes(QUEUE, ["m1"]) == []
        with pytest.raises(LeaseLost):
            await pickup.archive_all()
        assert await pickup.persist() == 1, "it got a greater term"


async def test_complete_archive_counts_are_not_overwritten(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        await pickup.store.moves.write_counts(0, [(QUEUE, 7, 100)], last=True)
        assert await pickup.count() == 0


async def test_reading_a_session_reports_pending_messages(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        term = await pickup.open()
        assert (await pickup.store.sessions.read(QUEUE))[4] == 0
        await pickup.add()
        assert (await pickup.store.sessions.read(QUEUE))[4] == 1
        await pickup.archive_all()
        for partition in pickup.store.partitions:
            await pickup.store.sessions.renew_gateway(partition)
        assert (await pickup.store.sessions.read(QUEUE))[4] == 1
        await pickup.pull(term)
        assert (await pickup.store.sessions.read(QUEUE))[4] == 0


async def test_a_token_gets_one_notification_per_interval(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        store, token = pickup.store, "token"
        partition = store.partition_of(QUEUE)

        async def claim() -> list[tuple[str, int, bytes]]:
            return await store.pushes.claim(partition, 30_000, 10)

        async def settle(note: bytes, outcome: str, ms: int | None = None, tries: int = 0) -> str:
            return await store.pushes.settle(partition, token, note, "m1", outcome, ms, tries)

        await pickup.add(push=b"token one")
        await pickup.add(push=b"token two")
        assert await claim() == [(token, 0, b"two")]
        assert await claim() == [], "it is claimed"
        await pickup.add(push=b"token three and more")
        assert await settle(b"two", "pushed") == "newer"
        assert await claim() == []
        await pickup.clock.advance(5.1)
        assert await claim() == [(token, 0, b"three and more")]
        assert await settle(b"three and more", "retry", 7_000) == "later"
        await pickup.clock.advance(6)
        assert await claim() == []
        await pickup.clock.advance(1.1)
        assert await claim() == [(token, 1, b"three and more")]
        assert await settle(b"three and more", "wait", 1_000, 1) == "later"
        assert await settle(b"three and more", "wait", 1_000, 1) == "later"
        await pickup.clock.advance(1.1)
        assert await claim() == [(token, 1, b"three and more")], "it was not tried"
        assert await settle(b"three and more", "push_failed") == "settled"
        assert await settle(b"three and more", "push_failed") == "settled", "with one event"
        await pickup.clock.advance(60)
        assert await claim() == []
        assert [e for e in await pickup.event_names() if e.startswith("push")] == [
            "push_scheduled",
            "pushed",
            "push_failed",
        ]


async def test_another_gateway_claims_the_notification_of_a_dead_one(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        await pickup.add(push=b"t one")
        assert len(await pickup.store.pushes.claim(0, 30_000, 10)) == 1
        await pickup.clock.advance(31)
        assert await pickup.store.pushes.claim(0, 30_000, 10) == [("t", 1, b"one")]


async def test_a_tokens_interval_holds_for_all_partitions(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        assert await pickup.store.pushes.grant("t") == 0
        await pickup.clock.advance(2)
        assert 2_000 < await pickup.store.pushes.grant("t") <= 3_000
        assert await pickup.store.pushes.grant("u") == 0
        await pickup.clock.advance(3.1)
        assert await pickup.store.pushes.grant("t") == 0


async def test_adding_a_message_for_an_offline_recipient_schedules_its_notification(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path), send_at_once=True) as pickup:
        partition = pickup.store.partition_of(QUEUE)
        await pickup.open()
        await pickup.add(push=b"t one")
        assert pickup.status == "sent"
        assert await pickup.store.pushes.claim(partition, 30_000, 10) == []
        await pickup.clock.advance(LEASE_S + 1)
        await pickup.add(push=b"t two")
        assert pickup.status == "offline", "the lease of its gateway ran out"
        assert await pickup.store.pushes.claim(partition, 30_000, 10) == [("t", 0, b"two")]


async def test_rows_read_before_a_queue_was_deleted_are_not_removed_twice(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(1)
        await pickup.archive_all()
        reply = await pickup.store.remove(QUEUE, "delivered", ids)
        rows = await pickup.archive.sizes(QUEUE, ids)
        await pickup.queues.remove(QUEUE, ids)
        await pickup.persist()
        assert await pickup.store.queue_status(QUEUE) is None, "it has no message"
        assert (
            status_of(await pickup.store.remove_archived(QUEUE, "delivered", reply[2], rows))
            == "again"
        )
        newer = await pickup.add_many(1)
        await pickup.archive_all()
        assert (
            status_of(await pickup.store.remove_archived(QUEUE, "delivered", reply[2], rows))
            == "again"
        )
        assert await pickup.count() == 1
        assert await pickup.take() == newer
        assert (await pickup.event_names()).count("delivered") == 1


async def test_rows_deleted_meanwhile_are_not_claimed(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(2)
        await pickup.archive_all()
        term = await pickup.open()
        reply = await pickup.store.pull(QUEUE, term, resend=False)
        rows = await pickup.archive.page(QUEUE, "", 0, 10)
        assert status_of(reply) == "archived"
        assert [row[0] for row in rows] == ids
        await pickup.queues.remove(QUEUE, ids[:1])
        await pickup.persist()
        claim = pickup.store.claim_archived
        assert status_of(await claim(QUEUE, term, rows, TakeLimits(10, 1_000), reply[2])) == "again"
        assert await pickup.pull(term) == ids[1:]
        assert await pickup.count() == 0


async def test_a_persister_of_an_older_term_deletes_nothing(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(1)
        await pickup.archive_all()
        await pickup.archive.fence(0, 7)
        with pytest.raises(LeaseLost):
            await pickup.archive.delete(0, 6, ids)
        assert await pickup.archive.sizes(QUEUE, ids) != []


async def test_a_message_for_a_slow_client_stays_pending(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path), send_at_once=True) as pickup:
        term = await pickup.open()
        reply = await pickup.store.add(QUEUE, "m1", DID, b"1", at_once=False)
        assert status_of(reply) == "here"
        assert status_of(await pickup.store.add(QUEUE, "m2", DID, b"1")) == "here", (
            "an earlier one is pending"
        )
        assert await pickup.pull(term) == ["m1", "m2"]
        assert status_of(await pickup.store.add(QUEUE, "m3", DID, b"1")) == "sent"


async def test_no_message_goes_at_once_before_the_database_is_counted(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path), send_at_once=True) as pickup:
        await pickup.open()
        await forget_everything(pickup, 0)
        await pickup.open()
        await pickup.add()
        assert pickup.status == "here"
