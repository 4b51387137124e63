"""Archived messages on SQLite and PostgreSQL, without the database, and after crashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from angarium.pickup.model import StoredMessage
from angarium.runtime.errors import DatabaseUnavailable
from tests.kit.clock import FakeClock
from tests.kit.postgres import PostgresProcess
from tests.kit.proxy import FaultProxy
from tests.pickup.harness import (
    DID,
    GRACE_S,
    LEASE_S,
    OTHER_DID,
    QUEUE,
    THRESHOLD_S,
    PickupHarness,
    harness,
    take,
)


class Crash(Exception):
    """Stands for the death of the persister."""


async def crash(_: Mapping[str, Sequence[StoredMessage]]) -> None:
    raise Crash


async def test_both_stores_are_one_queue_in_order_of_arrival(
    redis_url: str, database_url: str
) -> None:
    async with harness(redis_url, database_url) as pickup:
        old = await pickup.add_many(250)
        await pickup.archive_all()
        young = await pickup.add_many(30)
        assert await pickup.count() == 280
        assert await pickup.take(100) == old[:100]
        assert await pickup.take(160) == [*old[100:], *young[:10]]
        assert await pickup.count() == 20
        assert await pickup.queues.remove(QUEUE, [*old, *young]) == 280
        assert await pickup.count() == 0
        await pickup.persist()
        assert await pickup.archive.counts() == []
        assert await pickup.store.queue_status(QUEUE) is None


async def test_archived_payloads_and_times_are_unchanged(redis_url: str, database_url: str) -> None:
    async with harness(redis_url, database_url) as pickup:
        payload = '{"a": "é\\u0000\\n", "b": [1.0, {}]}'.encode()
        message_id = await pickup.add(payload=payload, did=f"{DID} {OTHER_DID}")
        before = pickup.clock.now_ms()
        await pickup.archive_all()
        (found,) = await take(pickup.queues, QUEUE, OTHER_DID, 9, 999)
        assert (found.id, found.payload, found.received_ms) == (message_id, payload, before)


async def test_archived_messages_are_found_by_recipient(redis_url: str, database_url: str) -> None:
    async with harness(redis_url, database_url) as pickup:
        anna = [await pickup.add(did=DID) for _ in range(3)]
        bert = [await pickup.add(did=OTHER_DID) for _ in range(3)]
        both = await pickup.add(did=f"{DID} {OTHER_DID}")
        await pickup.archive_all()
        fresh = await pickup.add(did=OTHER_DID)
        assert await pickup.count(did=OTHER_DID) == 5
        assert await pickup.take(2, did=OTHER_DID) == bert[:2]
        assert await pickup.count(did=OTHER_DID) == 3
        await pickup.queues.remove(QUEUE, bert)
        assert await pickup.count(did=OTHER_DID) == 2
        assert await pickup.take(did=OTHER_DID) == [both, fresh]
        assert await pickup.take() == anna


async def test_limits_count_the_messages_of_both_stores(redis_url: str, database_url: str) -> None:
    async with harness(redis_url, database_url) as pickup:
        for _ in range(4):
            await pickup.add(payload=b"1" * 100)
        await pickup.archive_all()
        for _ in range(4):
            await pickup.add(payload=b"1" * 100)
        assert len(await take(pickup.queues, QUEUE, "", 100, 650)) == 6
        assert len(await take(pickup.queues, QUEUE, "", 1, 650)) == 1


@pytest.mark.parametrize("step", ["on_move_begun", "on_rows_stored"])
async def test_a_persister_that_dies_loses_duplicates_and_restores_nothing(
    step: str, redis_url: str, database_url: str
) -> None:
    clock = FakeClock()
    async with harness(redis_url, database_url, clock=clock, actor="one") as one:
        shared: dict[str, Any] = {"prefix": one.runtime.settings.prefix}
        ids = await one.add_many(6)
        await clock.advance(THRESHOLD_S + 1)
        setattr(one.persisters[0], step, crash)
        with pytest.raises(Crash):
            await one.persist()
        # During the move every message is seen once; one is acknowledged.
        assert await one.count() == 6
        assert await one.queues.remove(QUEUE, ids[:1]) == 1
        assert await one.take(1) == ids[1:2]
        await one.persisters[0].release()
        async with harness(redis_url, database_url, clock=clock, actor="two", **shared) as two:
            await two.persist()
            assert await two.count() == 4
            assert await two.take() == ids[2:]
            assert await two.queues.remove(QUEUE, ids) == 5
            await two.persist()
            assert await two.archive.counts() == []
            events = [event.event for event in await two.events()]
            assert events.count("accepted") == events.count("delivered") == 6


async def test_a_persister_paused_past_its_lease_stores_nothing(
    redis_url: str, database_url: str
) -> None:
    """The persister pauses between reading from Redis and writing to the database."""
    clock = FakeClock()
    async with harness(redis_url, database_url, clock=clock, actor="one") as one:
        shared: dict[str, Any] = {"prefix": one.runtime.settings.prefix}
        ids = await one.add_many(3)
        await clock.advance(THRESHOLD_S + 1)
        async with harness(redis_url, database_url, clock=clock, actor="two", **shared) as two:

            async def paused(_: Mapping[str, Sequence[StoredMessage]]) -> None:
                await one.persisters[0].release()
                assert await _moved(two) == 3
                assert await two.queues.remove(QUEUE, ids) == 3
                await two.persist()

            one.persisters[0].on_move_begun = paused  # type: ignore[method-assign, assignment]
            with pytest.raises(Exception, match="newer persister"):
                await one.persist()
            assert await two.count() == 0
            assert await two.archive.counts() == []


async def _moved(pickup: PickupHarness) -> int:
    return await pickup.persist()


async def test_a_new_session_gets_the_archived_messages_of_the_earlier_one(
    redis_url: str, database_url: str
) -> None:
    async with harness(redis_url, database_url) as pickup:
        ids = await pickup.add_many(5)
        await pickup.archive_all()
        term = await pickup.open(session="s1", socket="k1")
        assert await pickup.pull(term) == ids
        new = await pickup.open(session="s2", socket="k2")
        assert await pickup.pull(new) == []
        assert await pickup.queues.remove(QUEUE, ids[:2]) == 2
        await pickup.clock.advance(GRACE_S + 1)
        await pickup.sweep()
        assert await pickup.pull(new) == ids[2:]


async def test_keyspaces_in_one_database_are_separate(redis_url: str, database_url: str) -> None:
    async with harness(redis_url, database_url) as one, harness(redis_url, database_url) as two:
        await one.add_many(2)
        await two.add_many(3)
        assert await one.archive_all() == 2
        assert await two.archive_all() == 3
        assert await one.archive.counts() == [(QUEUE, 2, 2 * _size(one))]
        assert len(await one.take()) == 2


def _size(pickup: PickupHarness) -> int:
    header = f"{pickup.clock.now_ms() * 1000} {pickup.clock.now_ms()} {DID}\n"
    return len(header) + len('"x"')


async def test_without_the_database_messages_stay_in_redis_and_move_later(
    redis_url: str, postgres: PostgresProcess
) -> None:
    address = postgres.new_database()
    host, _, rest = address.rpartition("@")
    place, _, name = rest.partition("/")
    server, _, port = place.partition(":")
    async with FaultProxy(server, int(port)) as proxy:
        through = f"{host}@127.0.0.1:{proxy.port}/{name}"
        async with harness(redis_url, through) as pickup:
            archived = await pickup.add_many(2, "default:c2")
            await pickup.archive_all()
            ids = await pickup.add_many(5)
            await pickup.clock.advance(THRESHOLD_S + 1)
            proxy.refuse()
            proxy.cut()
            with pytest.raises(DatabaseUnavailable):
                await pickup.persist()
            # A queue without archived messages still works.
            assert await pickup.count() == 5
            assert await pickup.take(2) == ids[:2]
            assert await pickup.queues.remove(QUEUE, ids[:1]) == 1
            term = await pickup.open()
            assert await pickup.pull(term) == ids[2:]
            # A queue with archived messages fails, and gives nothing out of order.
            assert await pickup.count("default:c2") == 2
            with pytest.raises(DatabaseUnavailable):
                await pickup.take(queue="default:c2")
            proxy.accept()
            await pickup.clock.advance(LEASE_S)
            assert await pickup.persist() == 4
            assert await pickup.take(queue="default:c2") == archived
            assert await pickup.queues.remove(QUEUE, ids) == 4
            await pickup.persist()
