"""Calls the scripts of push notifications."""

from __future__ import annotations

from pathlib import Path

import pytest

from angarium.pickup import keys
from angarium.pickup.push_store import ClaimedPush
from tests.pickup.harness import (
    DID,
    QUEUE,
    PickupHarness,
    all_done,
    harness,
    sqlite,
)


async def claimed(pickup: PickupHarness, queue: str = QUEUE) -> list[ClaimedPush]:
    return await pickup.store.pushes.claim(pickup.store.partition_of(queue), 30_000, 10)


async def bodies(pickup: PickupHarness) -> list[tuple[str, int, bytes]]:
    return [(token, claim.tries, claim.push) for _, token, claim in await claimed(pickup)]


async def test_messages_of_one_token_share_a_notification(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path), pickup={"push_gather_ms": 2_000}) as pickup:
        settle = pickup.store.pushes.settle
        await pickup.add(push=b"token one")
        await pickup.clock.advance(1)
        newest = await pickup.add(push=b"token one")
        assert await claimed(pickup) == [], "it waits for further messages"
        await pickup.clock.advance(1.1)
        (first,) = await claimed(pickup)
        assert (first.queue, first.token, first.claim.message_id) == (QUEUE, "token", newest)
        assert await claimed(pickup) == [], "it is claimed"
        await pickup.clock.advance(0.1)
        later = await pickup.add(push=b"token one")
        assert await settle(first, "pushed") == "newer"
        await pickup.clock.advance(5.1)
        (second,) = await claimed(pickup)
        assert (second.claim.message_id, second.claim.tries) == (later, 0)
        assert await settle(second, "retry", 7_000) == "later"
        await pickup.clock.advance(6)
        assert await claimed(pickup) == []
        await pickup.clock.advance(1.1)
        (third,) = await claimed(pickup)
        assert third.claim.tries == 1
        for _ in range(2):
            assert await settle(third, "wait", 1_000) == "later"
        await pickup.clock.advance(1.1)
        assert await bodies(pickup) == [("token", 1, b"one")], "it was not tried"
        assert await settle(third, "push_failed") == "settled"
        assert await settle(third, "push_failed") == "settled", "with one event"
        await pickup.clock.advance(60)
        assert await claimed(pickup) == []
        assert [e for e in await pickup.event_names() if e.startswith("push")] == [
            "push_scheduled",
            "pushed",
            "push_retried",
            "push_failed",
        ]


@pytest.mark.parametrize("archived", [False, True])
async def test_a_collected_message_is_not_notified(
    any_redis_url: str, tmp_path: Path, archived: bool
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path), send_at_once=True) as pickup:
        await pickup.open()
        ids = [await pickup.add(push=b"t one") for _ in range(2)]
        other = await pickup.add(push=b"u two")
        assert pickup.status == "sent"
        if archived:
            await pickup.archive_all()
        await pickup.queues.remove(QUEUE, [ids[1], other])
        await pickup.clock.advance(11)
        assert [(each.token, each.claim.message_id) for each in await claimed(pickup)] == [
            ("t", ids[0])
        ]
        await pickup.queues.remove(QUEUE, ids[:1])
        await pickup.clock.advance(31)
        assert await claimed(pickup) == []
        name = pickup.runtime.keyspace.name
        partition = pickup.store.partition_of(QUEUE)
        for key in (
            name(keys.PICKUP_TOKENS, partition, QUEUE),
            name(keys.PICKUP_PUSHES_DUE, partition),
        ):
            assert await pickup.runtime.redis.call("EXISTS", key, key=key) == 0, "nothing is left"


async def test_more_messages_than_a_token_lists_share_a_notification(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        ids = list(
            await all_done(
                *(pickup.store.add(QUEUE, f"m{n:04}", DID, b"1", b"t one") for n in range(1_100))
            )
        )
        assert len(ids) == 1_100
        await pickup.queues.remove(QUEUE, [f"m{n:04}" for n in range(1_050)])
        await pickup.clock.advance(1)
        (found,) = await claimed(pickup)
        assert found.claim.message_id == "m1099"
        assert await pickup.store.pushes.settle(found, "pushed") == "settled"


async def test_tokens_count_in_the_bytes_of_their_queue(redis_url: str, tmp_path: Path) -> None:
    limits = {"pickup_queue_bytes_max": 10_000}
    async with harness(redis_url, sqlite(tmp_path), limits=limits) as pickup:
        for number in range(4):
            await pickup.add(push=b"t%d " % number + b"x" * 2_000)
        push = b"t9 " + b"x" * 2_000
        assert await pickup.store.add(QUEUE, "m9", DID, b"1", push) == "queue_full"
        await pickup.clock.advance(1)
        for each in await claimed(pickup):
            await pickup.store.pushes.settle(each, "pushed")
        assert await pickup.store.add(QUEUE, "m9", DID, b"1", push) == "offline"


async def test_another_gateway_claims_the_notification_of_a_dead_one(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        await pickup.add(push=b"t one")
        await pickup.clock.advance(1)
        assert len(await claimed(pickup)) == 1
        await pickup.clock.advance(31)
        assert await bodies(pickup) == [("t", 1, b"one")]


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


async def test_a_message_that_a_live_session_does_not_acknowledge_is_notified(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path), send_at_once=True) as pickup:
        await pickup.open()
        silent = await pickup.add(push=b"t one")
        assert pickup.status == "sent"
        assert await claimed(pickup) == []
        await pickup.clock.advance(9)
        assert await claimed(pickup) == [], "it has time to acknowledge"
        await pickup.clock.advance(1.1)
        assert [each.claim.message_id for each in await claimed(pickup)] == [silent]
        await pickup.add("default:c2", push=b"u two")
        assert pickup.status == "offline"
        await pickup.clock.advance(1)
        assert [each.token for each in await claimed(pickup, "default:c2")] == ["u"]
