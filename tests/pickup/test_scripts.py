"""Every script of the module called: success, each refusal, and the event it notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from angarium.pickup.model import Message
from angarium.pickup.store import TakeLimits, messages_of
from angarium.runtime import keyspace as keys
from angarium.runtime.errors import LeaseLost
from angarium.runtime.scripts import status_of
from tests.pickup.rig import (
    DID,
    GRACE_S,
    LEASE_S,
    OTHER_DID,
    QUEUE,
    SENDING_S,
    THRESHOLD_S,
    Rig,
    all_done,
    ids_of,
    rig,
    sqlite,
)


async def test_an_added_message_waits_and_is_found(any_redis_url: str, tmp_path: Path) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        message_id = await made.add(payload=b'{"a":1}')
        assert await made.store.found(QUEUE, message_id)
        assert not await made.store.found(QUEUE, "other")
        assert not await made.store.found("default:c2", message_id)
        assert await made.count() == 1
        assert await made.event_names() == ["accepted"]
        figures = await made.store.show(QUEUE)
        assert figures is not None
        assert (figures.pending, figures.sending, figures.archived) == (1, 0, 0)
        assert not figures.live
        assert await made.store.show("default:c2") is None


async def test_a_full_queue_takes_nothing_more_and_others_do(
    any_redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_queue_messages_max": 2}
    async with rig(any_redis_url, sqlite(tmp_path), limits=limits) as made:
        await made.add_many(2)
        assert status_of(await made.store.add(QUEUE, "m3", DID, b"1")) == "queue_full"
        assert await made.count() == 2
        await made.add("default:c2")
        assert await made.archive_all() == 3
        assert status_of(await made.store.add(QUEUE, "m3", DID, b"1")) == "queue_full"


async def test_a_queue_is_full_by_its_bytes_too(redis_url: str, tmp_path: Path) -> None:
    limits = {"pickup_queue_bytes_max": 200}
    async with rig(redis_url, sqlite(tmp_path), limits=limits) as made:
        first = await made.add(payload=b"1" * 100)
        assert status_of(await made.store.add(QUEUE, "m3", DID, b"1" * 100)) == "queue_full"
        await made.mailbox.remove(QUEUE, [first])
        assert status_of(await made.store.add(QUEUE, "m3", DID, b"1" * 100)) == "offline"


async def test_taken_messages_are_nobody_elses_until_their_time_is_over(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(5)
        assert await made.take(2) == ids[:2]
        assert await made.take(2) == ids[2:4]
        assert await made.count() == 1
        await made.clock.advance(SENDING_S - 1)
        assert await made.sweep() == 0
        await made.clock.advance(2)
        assert await made.sweep() == 4
        assert await made.take() == ids
        assert (await made.event_names()).count("returned") == 4


async def test_a_take_keeps_both_limits(redis_url: str, tmp_path: Path) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        ids = [await made.add(payload=b"1" * 10) for _ in range(4)]
        assert ids_of(await made.mailbox.take(QUEUE, "", 3, 25)) == ids[:2]
        assert ids_of(await made.mailbox.take(QUEUE, "", 1, 25)) == ids[2:3]
        assert ids_of(await made.mailbox.take(QUEUE, "", 5, 9)) == []
        assert ids_of(await made.mailbox.take(QUEUE, "", 0, 99)) == []


async def test_the_first_message_of_a_take_may_be_larger_than_the_others(
    redis_url: str, tmp_path: Path
) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        ids = [await made.add(payload=b"0" * size) for size in (90, 10, 10, 90, 10)]
        most = TakeLimits(10, 25, 100)

        async def portion() -> tuple[list[str], bool]:
            taken = await made.mailbox.take_portion(QUEUE, "", most)
            assert list(taken.due) == ids_of(taken.messages)
            return ids_of(taken.messages), taken.more

        assert await made.mailbox.take(QUEUE, "", 10, 89) == []
        assert await portion() == (ids[:1], True)
        assert await portion() == (ids[1:3], True)
        assert await portion() == (ids[3:4], True)
        assert await portion() == (ids[4:], False)


async def test_the_first_archived_message_may_be_larger_than_the_others(
    redis_url: str, tmp_path: Path
) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        ids = [await made.add(payload=b"0" * size) for size in (90, 10, 10, 90, 10)]
        await made.archive_all()
        newer = await made.add(payload=b"0" * 90)
        rows = await made.archive.page(QUEUE, "", 0, 10)

        async def claim(term: str, *limits: int) -> list[str]:
            cleared = (await made.store.pull(QUEUE, session, again=False))[2]
            reply = await made.store.claim(QUEUE, term, rows, TakeLimits(*limits), cleared)
            assert (status_of(reply), reply[1]) == ("claimed", 1)
            return [each.decode() for each in reply[3:]]

        session = await made.open()
        assert await claim("", 10, 25, 89) == [], "larger than the taker wants"
        assert await claim(session, 10, 25) == ids[:1]
        assert await claim("", 10, 25, 100) == ids[1:3]
        assert await claim(session, 1, 25) == ids[3:4]
        assert await made.pull(session) == [ids[4], newer]


async def test_takes_of_one_call_share_what_redis_may_copy(redis_url: str, tmp_path: Path) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        queues = [f"default:c{number}" for number in range(12)]
        for queue in queues:
            await made.add(queue, payload=b"0" * 1_000_000)
        replies = await all_done(
            *(made.store.take(queue, "", TakeLimits(1, 1)) for queue in queues)
        )
        statuses = [status_of(each) for each in replies]
        assert set(statuses) == {"taken", "busy"}
        busy = [queue for queue, status in zip(queues, statuses, strict=True) if status == "busy"]
        for queue in busy:
            assert len(await made.mailbox.take(queue, "", 1, 2_000_000)) == 1


@pytest.mark.parametrize("archived", [False, True])
async def test_what_was_taken_and_not_answered_is_given_back(
    redis_url: str, tmp_path: Path, archived: bool
) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(4)
        if archived:
            await made.archive_all()
        taken = await made.mailbox.take_portion(QUEUE, "", TakeLimits(3, 100))
        assert ids_of(taken.messages) == ids[:3]
        await made.mailbox.remove(QUEUE, ids[:1])
        assert await made.store.give_back(QUEUE, taken.due) == 2
        assert await made.store.give_back(QUEUE, taken.due) == 0
        assert await made.count() == 3
        assert (await made.event_names()).count("returned") == 2
        await made.clock.advance(1)
        assert await made.take(1) == ids[1:2]
        assert await made.store.give_back(QUEUE, taken.due) == 0, "it is another taker's"
        assert await made.take() == ids[2:]


async def test_a_full_window_gets_nothing_from_the_database_either(
    redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_sending_messages_max": 2}
    async with rig(redis_url, sqlite(tmp_path), limits=limits) as made:
        ids = await made.add_many(2)
        term = await made.open()
        await made.store.pull(QUEUE, term, again=False)
        older = await made.add_many(1)
        await made.archive_all()
        assert status_of(await made.store.pull(QUEUE, term, again=False)) == "window_full"
        await made.mailbox.remove(QUEUE, ids)
        assert await made.pull(term) == older


async def test_a_take_for_one_recipient_leaves_the_others(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        anna = await made.add(did=DID)
        both = await made.add(did=f"{DID} {OTHER_DID}")
        longer = await made.add(did=f"{OTHER_DID}2")
        assert await made.count(did=OTHER_DID) == 1
        assert await made.take(did=OTHER_DID) == [both]
        assert await made.count(did=OTHER_DID) == 0
        assert await made.count(did=DID) == 1
        assert await made.take() == [anna, longer]


async def test_a_session_gets_what_waits_in_order_and_holds_it(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(3)
        term = await made.open()
        assert await made.pull(term) == ids
        assert await made.pull(term) == []
        await made.clock.advance(3_000)  # however long: they are held
        assert await made.sweep() == 0
        assert await made.take() == []
        assert await made.count() == 0


async def test_a_message_goes_to_a_session_of_ours_at_once_if_nothing_is_before_it(
    any_redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_sending_messages_max": 3}
    async with rig(any_redis_url, sqlite(tmp_path), direct=True, limits=limits) as made:
        first = await made.add()
        assert made.status == "offline"
        term = await made.open()
        second = await made.add()
        assert made.status == "here", "one is before it"
        assert await made.pull(term) == [first, second]
        reply = await made.store.add(QUEUE, "m3", DID, b"1")
        assert status_of(reply) == "sent"
        assert reply[1].decode() == term
        assert reply[2] > int(term)
        assert reply[3] == made.clock.now_ms()
        await made.add()
        assert made.status == "here", "the window is full"
        assert await made.mailbox.remove(QUEUE, [first, second, "m3"]) == 3
        assert [event.status for event in await made.events() if event.subject == "m3"] == [
            "sent",
            None,
        ]
        await made.archive_all()
        for partition in made.store.partitions:
            await made.store.renew_gateway(partition)
        await made.add()
        assert made.status == "here", "the database comes first"


async def test_a_pull_of_another_term_is_lost(any_redis_url: str, tmp_path: Path) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        await made.add()
        await made.open()
        assert status_of(await made.store.pull(QUEUE, "1", again=False)) == "lost"
        assert await made.count() == 1


async def test_a_pull_stops_at_the_window(redis_url: str, tmp_path: Path) -> None:
    limits = {"pickup_sending_messages_max": 2}
    async with rig(redis_url, sqlite(tmp_path), limits=limits) as made:
        ids = await made.add_many(3)
        term = await made.open()
        reply = await made.store.pull(QUEUE, term, again=False)
        assert ids_of(messages_of(reply[2:])) == ids[:2]
        assert reply[1] == 1
        assert status_of(await made.store.pull(QUEUE, term, again=False)) == "window_full"
        await made.mailbox.remove(QUEUE, ids[:1])
        reply = await made.store.pull(QUEUE, term, again=False)
        assert ids_of(messages_of(reply[2:])) == ids[2:]


async def test_an_answer_that_was_lost_is_asked_for_again(redis_url: str, tmp_path: Path) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(3)
        taken = await made.take(1)
        term = await made.open()
        await made.store.pull(QUEUE, term, again=False)  # lost on the way
        assert await made.pull(term, again=True) == ids[1:], "and not what a taker has"
        assert taken == ids[:1]


async def test_removal_is_exact_and_may_be_repeated(any_redis_url: str, tmp_path: Path) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(60)
        await made.take(10)
        assert await made.mailbox.remove(QUEUE, [*ids[5:45], "unknown"]) == 40
        assert await made.mailbox.remove(QUEUE, ids[5:45]) == 0
        assert await made.mailbox.remove("default:c2", ids) == 0
        assert await made.take(100) == ids[45:]
        assert (await made.event_names()).count("delivered") == 40


async def test_an_empty_queue_leaves_nothing_in_redis(any_redis_url: str, tmp_path: Path) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(3)
        await made.take(1)
        await made.mailbox.remove(QUEUE, ids)
        assert await made.store.show(QUEUE) is None
        await made.clock.advance(SENDING_S + 1)
        await made.sweep()
        await made.clock.advance(THRESHOLD_S)
        await made.persist()
        due = await made.store.due(made.store.partition_of(QUEUE), 10)
        assert (due.to_release, due.aged, due.buried) == ([], [], [])


@pytest.mark.parametrize("archived", [False, True])
async def test_all_messages_of_a_recipient_are_removed(
    archived: bool, any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        await made.add(did=DID)
        kept = await made.add(did=OTHER_DID)
        await made.add(did=f"{OTHER_DID} {DID}")
        term = await made.open()
        await made.pull(term)
        await made.add(did=DID)
        if archived:
            await made.archive_all()
        assert await made.mailbox.remove_all(QUEUE, DID) == 3
        assert await made.mailbox.remove_all(QUEUE, DID) == 0
        assert await made.pull(term, again=True) == [kept]
        assert (await made.event_names()).count("cancelled") == 3


async def test_old_messages_move_and_young_ones_stay(any_redis_url: str, tmp_path: Path) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        old = await made.add_many(3)
        await made.clock.advance(THRESHOLD_S / 2)
        young = await made.add_many(2)
        assert await made.persist() == 0
        await made.clock.advance(THRESHOLD_S / 2 + 1)
        assert await made.persist() == 3
        figures = await made.store.show(QUEUE)
        assert figures is not None
        assert (figures.pending, figures.archived) == (5, 3)
        assert await made.take(4) == [*old, *young[:1]]
        assert await made.count() == 1
        assert (await made.event_names()).count("archived") == 3


async def test_held_messages_move_and_stay_held(any_redis_url: str, tmp_path: Path) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(3)
        term = await made.open()
        assert await made.pull(term) == ids
        assert await made.archive_all() == 3
        assert await made.count() == 0
        assert await made.pull(term) == []
        new = await made.open(session="s2", socket="k2")
        await made.mailbox.remove(QUEUE, ids[1:2])
        await made.clock.advance(GRACE_S + 1)
        assert await made.sweep() == 2
        assert await made.pull(new) == [ids[0], ids[2]]


async def test_what_comes_back_after_its_grace_is_before_what_moved_meanwhile(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        first = await made.add_many(1)
        term = await made.open()
        assert await made.pull(term) == first
        later = await made.add_many(2)
        await made.clock.advance(THRESHOLD_S + 1)
        new = await made.open(session="s2", socket="k2")  # the first is in its grace period now
        assert await made.persist() == 3
        await made.clock.advance(GRACE_S + 1)
        await made.sweep()
        assert await made.pull(new) == [*first, *later]


async def test_a_message_removed_on_its_way_does_not_come_back(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(3)
        await made.clock.advance(THRESHOLD_S + 1)
        persister = made.persisters[made.store.partition_of(QUEUE)]

        async def acknowledge(_: object) -> None:
            assert await made.mailbox.remove(QUEUE, ids[:1]) == 1

        persister.on_stored = acknowledge  # type: ignore[method-assign, assignment]
        assert await made.persist() == 2
        assert await made.count() == 2
        assert await made.take() == ids[1:]
        assert await made.archive.sizes(QUEUE, ids[:1]) == [], "its row is gone"


async def test_removal_in_the_database_is_exact_and_its_rows_go(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(4)
        await made.archive_all()
        assert await made.mailbox.remove(QUEUE, [ids[1], ids[2], "unknown"]) == 2
        assert await made.mailbox.remove(QUEUE, ids[1:3]) == 0
        assert await made.count() == 2
        assert await made.take() == [ids[0], ids[3]]
        await made.persist()
        assert await made.archive.sizes(QUEUE, ids) != []
        assert {row[0] for row in await made.archive.sizes(QUEUE, ids)} == {ids[0], ids[3]}
        assert (await made.event_names()).count("delivered") == 2


async def test_rows_that_were_seen_before_others_were_cleared_are_looked_at_again(
    redis_url: str, tmp_path: Path
) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(2)
        await made.archive_all()
        reply = await made.store.remove(QUEUE, "delivered", ids[:1])
        rows = await made.archive.sizes(QUEUE, ids[:1])
        await made.mailbox.remove(QUEUE, ids[:1])
        await made.persist()
        assert status_of(await made.store.bury(QUEUE, "delivered", reply[2], rows)) == "again"
        assert await made.count() == 1


async def forget_everything(made: Rig, partition: int) -> None:
    """As if Redis had come back empty."""
    name, call = made.runtime.keyspace.name, made.runtime.redis.call
    for key in (keys.PICKUP_CHARTED, keys.PICKUP_PERSISTER_TERM, keys.PICKUP_PERSISTER_LOCK):
        await call("DEL", name(key, partition), key=name(key, partition))
    for queue in (QUEUE, "default:c2"):
        if made.store.partition_of(queue) == partition:
            gone = name(keys.PICKUP_QUEUE, partition, queue)
            await call("DEL", gone, key=gone)


async def test_when_redis_lost_its_data_the_database_is_counted_first(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(3)
        other = await made.add("default:c2")
        await made.archive_all()
        for partition in made.store.partitions:
            await forget_everything(made, partition)
        for reply in (
            await made.store.take(QUEUE, "", TakeLimits(5, 99)),
            await made.store.count(QUEUE, ""),
            await made.store.remove(QUEUE, "delivered", ids),
            await made.store.list_ids(QUEUE, DID, 9),
        ):
            assert status_of(reply) == "uncharted"
        await made.clock.advance(LEASE_S + 1)
        await made.persist()
        assert await made.take() == ids
        assert await made.take(queue="default:c2") == [other]


async def test_a_term_is_only_ever_raised(redis_url: str, tmp_path: Path) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        name = made.runtime.keyspace.name(keys.PICKUP_PERSISTER_TERM)
        for given, expected in ((7, b"7"), (3, b"7"), (9, b"9")):
            await made.store.raise_term(0, given)
            assert await made.runtime.redis.call("GET", name) == expected


async def test_a_persister_of_an_older_term_stores_nothing(redis_url: str, tmp_path: Path) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        await made.add()
        assert await made.archive.fence(0, 1_000) == 1_000
        assert await made.archive.fence(0, 999) == 1_000
        message = Message("m1", 1, 1, DID, b"1")
        with pytest.raises(LeaseLost):
            await made.archive.store(0, 999, {QUEUE: [message]})
        assert await made.archive.sizes(QUEUE, ["m1"]) == []
        with pytest.raises(LeaseLost):
            await made.archive_all()
        assert await made.persist() == 1, "it asked for a greater term"


async def test_a_chart_that_is_complete_is_not_written_again(
    redis_url: str, tmp_path: Path
) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        await made.store.chart(0, [(QUEUE, 7, 100)], last=True)
        assert await made.count() == 0


async def test_mail_waits_is_told_for_each_session(any_redis_url: str, tmp_path: Path) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        term = await made.open()
        assert (await made.store.read_session(QUEUE))[4] == 0
        await made.add()
        assert (await made.store.read_session(QUEUE))[4] == 1
        await made.archive_all()
        for partition in made.store.partitions:
            await made.store.renew_gateway(partition)
        assert (await made.store.read_session(QUEUE))[4] == 1
        await made.pull(term)
        assert (await made.store.read_session(QUEUE))[4] == 0


async def test_a_token_gets_one_notification_in_its_interval(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        store, token = made.store, "token"
        partition = store.partition_of(QUEUE)

        async def claim() -> list[tuple[str, int, bytes]]:
            return await store.claim_pushes(partition, 30_000, 10)

        async def settle(note: bytes, outcome: str, ms: int | None = None, tries: int = 0) -> str:
            return await store.settle_push(partition, token, note, "m1", outcome, ms, tries)

        await made.add(push=b"token one")
        await made.add(push=b"token two")
        assert await claim() == [(token, 0, b"two")]
        assert await claim() == [], "it is somebody's"
        await made.add(push=b"token three and more")
        assert await settle(b"two", "pushed") == "newer"
        assert await claim() == []
        await made.clock.advance(5.1)
        assert await claim() == [(token, 0, b"three and more")]
        assert await settle(b"three and more", "retry", 7_000) == "later"
        await made.clock.advance(6)
        assert await claim() == []
        await made.clock.advance(1.1)
        assert await claim() == [(token, 1, b"three and more")]
        assert await settle(b"three and more", "wait", 1_000, 1) == "later"
        assert await settle(b"three and more", "wait", 1_000, 1) == "later"
        await made.clock.advance(1.1)
        assert await claim() == [(token, 1, b"three and more")], "it was not tried"
        assert await settle(b"three and more", "push_failed") == "settled"
        assert await settle(b"three and more", "push_failed") == "settled", "and told once"
        await made.clock.advance(60)
        assert await claim() == []
        assert [e for e in await made.event_names() if e.startswith("push")] == [
            "push_scheduled",
            "pushed",
            "push_failed",
        ]


async def test_a_claim_whose_holder_died_goes_to_another(redis_url: str, tmp_path: Path) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        await made.add(push=b"t one")
        assert len(await made.store.claim_pushes(0, 30_000, 10)) == 1
        await made.clock.advance(31)
        assert await made.store.claim_pushes(0, 30_000, 10) == [("t", 1, b"one")]


async def test_a_tokens_interval_holds_for_all_partitions(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        assert await made.store.grant_push("t") == 0
        await made.clock.advance(2)
        assert 2_000 < await made.store.grant_push("t") <= 3_000
        assert await made.store.grant_push("u") == 0
        await made.clock.advance(3.1)
        assert await made.store.grant_push("t") == 0


async def test_a_notification_is_scheduled_with_its_message_if_nobody_is_there(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path), direct=True) as made:
        partition = made.store.partition_of(QUEUE)
        await made.open()
        await made.add(push=b"t one")
        assert made.status == "sent"
        assert await made.store.claim_pushes(partition, 30_000, 10) == []
        await made.clock.advance(LEASE_S + 1)
        await made.add(push=b"t two")
        assert made.status == "offline", "its gateway's lease ran out"
        assert await made.store.claim_pushes(partition, 30_000, 10) == [("t", 0, b"two")]


async def test_rows_of_an_earlier_life_of_a_queue_are_not_removed_twice(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(1)
        await made.archive_all()
        reply = await made.store.remove(QUEUE, "delivered", ids)
        rows = await made.archive.sizes(QUEUE, ids)
        await made.mailbox.remove(QUEUE, ids)
        await made.persist()
        assert await made.store.show(QUEUE) is None, "its last message is gone"
        assert status_of(await made.store.bury(QUEUE, "delivered", reply[2], rows)) == "again"
        newer = await made.add_many(1)
        await made.archive_all()
        assert status_of(await made.store.bury(QUEUE, "delivered", reply[2], rows)) == "again"
        assert await made.count() == 1
        assert await made.take() == newer
        assert (await made.event_names()).count("delivered") == 1


async def test_rows_that_were_deleted_meanwhile_are_not_given_to_anybody(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with rig(any_redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(2)
        await made.archive_all()
        term = await made.open()
        reply = await made.store.pull(QUEUE, term, again=False)
        rows = await made.archive.page(QUEUE, "", 0, 10)
        assert status_of(reply) == "archived"
        assert [row[0] for row in rows] == ids
        await made.mailbox.remove(QUEUE, ids[:1])
        await made.persist()
        claim = made.store.claim
        assert status_of(await claim(QUEUE, term, rows, TakeLimits(10, 1_000), reply[2])) == "again"
        assert await made.pull(term) == ids[1:]
        assert await made.count() == 0


async def test_a_persister_of_an_older_term_deletes_nothing(redis_url: str, tmp_path: Path) -> None:
    async with rig(redis_url, sqlite(tmp_path)) as made:
        ids = await made.add_many(1)
        await made.archive_all()
        await made.archive.fence(0, 7)
        with pytest.raises(LeaseLost):
            await made.archive.delete(0, 6, ids)
        assert await made.archive.sizes(QUEUE, ids) != []


async def test_a_message_for_a_slow_client_waits_to_be_pulled(
    redis_url: str, tmp_path: Path
) -> None:
    async with rig(redis_url, sqlite(tmp_path), direct=True) as made:
        term = await made.open()
        reply = await made.store.add(QUEUE, "m1", DID, b"1", at_once=False)
        assert status_of(reply) == "here"
        assert status_of(await made.store.add(QUEUE, "m2", DID, b"1")) == "here", "behind it"
        assert await made.pull(term) == ["m1", "m2"]
        assert status_of(await made.store.add(QUEUE, "m3", DID, b"1")) == "sent"


async def test_nothing_goes_at_once_before_the_database_was_counted(
    redis_url: str, tmp_path: Path
) -> None:
    async with rig(redis_url, sqlite(tmp_path), direct=True) as made:
        await made.open()
        await forget_everything(made, 0)
        await made.open()
        await made.add()
        assert made.status == "here"
