"""Calls every script of the module: success, each refusal, and the events."""

from __future__ import annotations

from pathlib import Path

import pytest

from angarium.pickup import keys
from angarium.pickup.deduplicated_add import NewMessage
from angarium.pickup.model import messages_of
from angarium.pickup.push_store import CLAIM, ClaimPushesArgs, PushToClaim
from angarium.pickup.service import PickupService
from angarium.pickup.store import TakeLimits
from tests.pickup.harness import (
    DID,
    OTHER_DID,
    QUEUE,
    SENDING_S,
    all_done,
    harness,
    ids_of,
    sqlite,
    status_of,
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


@pytest.mark.limit("pickup_queue_bytes_max")
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


async def test_a_pull_under_another_term_answers_lost(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        await pickup.add()
        await pickup.open()
        assert status_of(await pickup.store.pull(QUEUE, "1", resend=False)) == "lost"
        assert await pickup.count() == 1


@pytest.mark.limit("pickup_sending_messages_max")
async def test_a_pull_stops_at_the_window(redis_url: str, tmp_path: Path) -> None:
    limits = {"pickup_sending_messages_max": 2}
    async with harness(redis_url, sqlite(tmp_path), limits=limits) as pickup:
        ids = await pickup.add_many(3)
        term = await pickup.open()
        reply = await pickup.store.pull(QUEUE, term, resend=False)
        assert ids_of(messages_of(reply.messages)) == ids[:2]
        assert reply.more
        assert status_of(await pickup.store.pull(QUEUE, term, resend=False)) == "window_full"
        await pickup.queues.remove(QUEUE, ids[:1])
        reply = await pickup.store.pull(QUEUE, term, resend=False)
        assert ids_of(messages_of(reply.messages)) == ids[2:]


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


async def test_a_term_never_decreases(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        name = pickup.runtime.keyspace.name(keys.PICKUP_PERSISTER_TERM)
        for given, expected in ((7, b"7"), (3, b"7"), (9, b"9")):
            await pickup.store.moves.raise_term(0, given)
            assert await pickup.runtime.redis.call("GET", name) == expected


async def test_complete_archive_counts_are_not_overwritten(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        await pickup.store.moves.write_counts(0, [(QUEUE, 7, 100)], last=True)
        assert await pickup.count() == 0


async def test_two_gateways_that_list_the_same_notification_do_not_both_get_it(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        await pickup.add(push=b"t one")
        await pickup.clock.advance(1)
        item = [PushToClaim(QUEUE, "t")]
        call = pickup.runtime.call
        (first,) = await call(CLAIM, 0, ClaimPushesArgs(30_000), item)
        (second,) = await call(CLAIM, 0, ClaimPushesArgs(30_000), item)
        assert (first.tries, second) == (0, "not_due")


async def test_a_message_for_a_slow_client_stays_pending(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path), send_at_once=True) as pickup:
        term = await pickup.open()
        assert await pickup.store.add(QUEUE, "m1", DID, b"1", at_once=False) == "here"
        second = await pickup.store.add(QUEUE, "m2", DID, b"1", at_once=True)
        assert second == "here", "an earlier one is pending"
        assert await pickup.pull(term) == ["m1", "m2"]
        third = await pickup.store.add(QUEUE, "m3", DID, b"1", at_once=True)
        assert status_of(third) == "sent"


async def test_pulls_of_one_call_share_a_limit_of_bytes(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        queues = [f"default:c{number}" for number in range(12)]
        terms = [await pickup.open(queue) for queue in queues]
        for queue in queues:
            await pickup.add(queue, payload=b"0" * 1_000_000)
        pulls = zip(queues, terms, strict=True)
        replies = await all_done(
            *(pickup.store.pull(queue, term, resend=False) for queue, term in pulls)
        )
        assert {status_of(each) for each in replies} == {"pulled", "busy"}


async def test_a_message_of_a_program_for_a_live_session_is_reported_as_live(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        term = await pickup.open()
        service = PickupService(pickup.runtime, archive=pickup.archive)
        assert await service.add(NewMessage("c1", b"1", "r1")) == "live"
        assert await pickup.pull(term) == ["r1"]
