"""Calls the scripts that move messages to the database, and those that find them there."""

from __future__ import annotations

from pathlib import Path

import pytest

from angarium.pickup import keys
from angarium.pickup.model import StoredMessage
from angarium.pickup.store import TakeLimits
from angarium.runtime.errors import LeaseLost
from tests.pickup.harness import (
    DID,
    GRACE_S,
    LEASE_S,
    OTHER_DID,
    QUEUE,
    SENDING_S,
    THRESHOLD_S,
    PickupHarness,
    harness,
    ids_of,
    sqlite,
    status_of,
)


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


async def test_the_first_archived_message_may_be_larger_than_the_others(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        ids = [await pickup.add(payload=b"0" * size) for size in (90, 10, 10, 90, 10)]
        await pickup.archive_all()
        newer = await pickup.add(payload=b"0" * 90)
        rows = await pickup.archive.page(QUEUE, "", 0, 10)

        async def claim(term: str, *limits: int) -> list[str]:
            cleared = (await pickup.store.pull(QUEUE, session, resend=False)).cleared
            reply = await pickup.store.claim_archived(
                QUEUE, term, rows, TakeLimits(*limits), cleared
            )
            assert (status_of(reply), reply.full) == ("claimed", True)
            return list(reply.ids)

        session = await pickup.open()
        assert await claim("", 10, 25, 89) == [], "larger than the taker's limit"
        assert await claim(session, 10, 25) == ids[:1]
        assert await claim("", 10, 25, 100) == ids[1:3]
        assert await claim(session, 1, 25) == ids[3:4]
        assert await pickup.pull(session) == [ids[4], newer]


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
        reply = await pickup.store.add(QUEUE, "m3", DID, b"1", at_once=True)
        assert status_of(reply) == "sent"
        assert reply.term == term
        assert reply.sequence > int(term)
        assert reply.received_ms == pickup.clock.now_ms()
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
            status_of(await pickup.store.remove_archived(QUEUE, "delivered", reply.cleared, rows))
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


async def test_reading_a_session_reports_pending_messages(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        term = await pickup.open()
        assert not (await pickup.store.sessions.read(QUEUE)).pending
        await pickup.add()
        assert (await pickup.store.sessions.read(QUEUE)).pending
        await pickup.archive_all()
        for partition in pickup.store.partitions:
            await pickup.store.sessions.renew_gateway(partition)
        assert (await pickup.store.sessions.read(QUEUE)).pending
        await pickup.pull(term)
        assert not (await pickup.store.sessions.read(QUEUE)).pending


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
            status_of(await pickup.store.remove_archived(QUEUE, "delivered", reply.cleared, rows))
            == "again"
        )
        newer = await pickup.add_many(1)
        await pickup.archive_all()
        assert (
            status_of(await pickup.store.remove_archived(QUEUE, "delivered", reply.cleared, rows))
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
        limits = TakeLimits(10, 1_000)
        claim = pickup.store.claim_archived
        assert await claim(QUEUE, term, rows, limits, reply.cleared) == "again"
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


async def test_no_message_goes_at_once_before_the_database_is_counted(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path), send_at_once=True) as pickup:
        await pickup.open()
        await forget_everything(pickup, 0)
        await pickup.open()
        await pickup.add()
        assert pickup.status == "here"


async def test_a_pull_and_a_move_wait_until_the_database_is_counted(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        term = await pickup.open()
        await forget_everything(pickup, 0)
        assert await pickup.store.pull(QUEUE, term, resend=False) == "not_counted"
        assert await pickup.store.moves.finish(0, {QUEUE: []}) is None


async def test_a_session_of_an_older_term_claims_nothing(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        await pickup.add_many(1)
        await pickup.archive_all()
        await pickup.open()
        rows = await pickup.archive.page(QUEUE, "", 0, 10)
        claim = pickup.store.claim_archived
        assert await claim(QUEUE, "1", rows, TakeLimits(10, 1_000), "") == "lost"
