"""What waits long: the same on SQLite and PostgreSQL, with the database away, and after crashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from angarium.pickup.model import Message
from angarium.runtime.errors import DatabaseUnavailable
from tests.kit.clock import FakeClock
from tests.kit.postgres import PostgresProcess
from tests.kit.proxy import FaultProxy
from tests.pickup.rig import DID, GRACE_S, LEASE_S, OTHER_DID, QUEUE, THRESHOLD_S, Rig, rig


class Crash(Exception):
    """The persister dies here."""


async def crash(_: Mapping[str, Sequence[Message]]) -> None:
    raise Crash


async def test_both_stores_are_one_queue_in_order_of_arrival(
    redis_url: str, database_url: str
) -> None:
    async with rig(redis_url, database_url) as made:
        old = await made.add_many(250)
        await made.archive_all()
        young = await made.add_many(30)
        assert await made.count() == 280
        assert await made.take(100) == old[:100]
        assert await made.take(160) == [*old[100:], *young[:10]]
        assert await made.count() == 20
        assert await made.mailbox.remove(QUEUE, [*old, *young]) == 280
        assert await made.count() == 0
        await made.persist()
        assert await made.archive.figures() == []
        assert await made.store.show(QUEUE) is None


async def test_payloads_and_times_come_back_as_they_were(redis_url: str, database_url: str) -> None:
    async with rig(redis_url, database_url) as made:
        payload = '{"a": "é\\u0000\\n", "b": [1.0, {}]}'.encode()
        message_id = await made.add(payload=payload, did=f"{DID} {OTHER_DID}")
        before = made.clock.now_ms()
        await made.archive_all()
        (found,) = await made.mailbox.take(QUEUE, OTHER_DID, 9, 999)
        assert (found.id, found.payload, found.received_ms) == (message_id, payload, before)


async def test_recipients_are_told_apart_in_the_database(redis_url: str, database_url: str) -> None:
    async with rig(redis_url, database_url) as made:
        anna = [await made.add(did=DID) for _ in range(3)]
        bert = [await made.add(did=OTHER_DID) for _ in range(3)]
        both = await made.add(did=f"{DID} {OTHER_DID}")
        await made.archive_all()
        fresh = await made.add(did=OTHER_DID)
        assert await made.count(did=OTHER_DID) == 5
        assert await made.take(2, did=OTHER_DID) == bert[:2]
        assert await made.count(did=OTHER_DID) == 3
        await made.mailbox.remove(QUEUE, bert)
        assert await made.count(did=OTHER_DID) == 2
        assert await made.take(did=OTHER_DID) == [both, fresh]
        assert await made.take() == anna


async def test_limits_count_what_both_stores_hold(redis_url: str, database_url: str) -> None:
    async with rig(redis_url, database_url) as made:
        for _ in range(4):
            await made.add(payload=b"1" * 100)
        await made.archive_all()
        for _ in range(4):
            await made.add(payload=b"1" * 100)
        assert len(await made.mailbox.take(QUEUE, "", 100, 650)) == 6
        assert len(await made.mailbox.take(QUEUE, "", 1, 650)) == 1


@pytest.mark.parametrize("step", ["on_marked", "on_stored"])
async def test_a_persister_that_dies_neither_loses_nor_doubles_nor_revives(
    step: str, redis_url: str, database_url: str
) -> None:
    clock = FakeClock()
    async with rig(redis_url, database_url, clock=clock, actor="one") as one:
        shared: dict[str, Any] = {"prefix": one.runtime.settings.prefix}
        ids = await one.add_many(6)
        await clock.advance(THRESHOLD_S + 1)
        setattr(one.persisters[0], step, crash)
        with pytest.raises(Crash):
            await one.persist()
        # Half-way: every message is seen once, and one is acknowledged.
        assert await one.count() == 6
        assert await one.mailbox.remove(QUEUE, ids[:1]) == 1
        assert await one.take(1) == ids[1:2]
        await one.persisters[0].release()
        async with rig(redis_url, database_url, clock=clock, actor="two", **shared) as two:
            await two.persist()
            assert await two.count() == 4
            assert await two.take() == ids[2:]
            assert await two.mailbox.remove(QUEUE, ids) == 5
            await two.persist()
            assert await two.archive.figures() == []
            events = [event.event for event in await two.events()]
            assert events.count("accepted") == events.count("delivered") == 6


async def test_a_persister_that_wakes_up_late_brings_nothing_back(
    redis_url: str, database_url: str
) -> None:
    """It was paused between reading from Redis and writing to the database."""
    clock = FakeClock()
    async with rig(redis_url, database_url, clock=clock, actor="one") as one:
        shared: dict[str, Any] = {"prefix": one.runtime.settings.prefix}
        ids = await one.add_many(3)
        await clock.advance(THRESHOLD_S + 1)
        async with rig(redis_url, database_url, clock=clock, actor="two", **shared) as two:

            async def paused(_: Mapping[str, Sequence[Message]]) -> None:
                await one.persisters[0].release()
                assert await _moved(two) == 3
                assert await two.mailbox.remove(QUEUE, ids) == 3
                await two.persist()

            one.persisters[0].on_marked = paused  # type: ignore[method-assign, assignment]
            with pytest.raises(Exception, match="newer persister"):
                await one.persist()
            assert await two.count() == 0
            assert await two.archive.figures() == []


async def _moved(made: Rig) -> int:
    return await made.persist()


async def test_a_session_takes_over_what_lies_in_the_database(
    redis_url: str, database_url: str
) -> None:
    async with rig(redis_url, database_url) as made:
        ids = await made.add_many(5)
        await made.archive_all()
        term = await made.open(session="s1", socket="k1")
        assert await made.pull(term) == ids
        new = await made.open(session="s2", socket="k2")
        assert await made.pull(new) == []
        assert await made.mailbox.remove(QUEUE, ids[:2]) == 2
        await made.clock.advance(GRACE_S + 1)
        await made.sweep()
        assert await made.pull(new) == ids[2:]


async def test_keyspaces_share_a_database_and_nothing_else(
    redis_url: str, database_url: str
) -> None:
    async with rig(redis_url, database_url) as one, rig(redis_url, database_url) as two:
        await one.add_many(2)
        await two.add_many(3)
        assert await one.archive_all() == 2
        assert await two.archive_all() == 3
        assert await one.archive.figures() == [(QUEUE, 2, 2 * _size(one))]
        assert len(await one.take()) == 2


def _size(made: Rig) -> int:
    header = f"{made.clock.now_ms() * 1000} {made.clock.now_ms()} {DID}\n"
    return len(header) + len('"x"')


async def test_with_the_database_away_messages_stay_in_redis_and_move_later(
    redis_url: str, postgres: PostgresProcess
) -> None:
    address = postgres.new_database()
    host, _, rest = address.rpartition("@")
    place, _, name = rest.partition("/")
    server, _, port = place.partition(":")
    async with FaultProxy(server, int(port)) as proxy:
        through = f"{host}@127.0.0.1:{proxy.port}/{name}"
        async with rig(redis_url, through) as made:
            archived = await made.add_many(2, "default:c2")
            await made.archive_all()
            ids = await made.add_many(5)
            await made.clock.advance(THRESHOLD_S + 1)
            proxy.refuse()
            proxy.cut()
            with pytest.raises(DatabaseUnavailable):
                await made.persist()
            # A queue that has nothing in the database does not notice.
            assert await made.count() == 5
            assert await made.take(2) == ids[:2]
            assert await made.mailbox.remove(QUEUE, ids[:1]) == 1
            term = await made.open()
            assert await made.pull(term) == ids[2:]
            # One that has says so, and gives nothing out of order.
            assert await made.count("default:c2") == 2
            with pytest.raises(DatabaseUnavailable):
                await made.take(queue="default:c2")
            proxy.accept()
            await made.clock.advance(LEASE_S)
            assert await made.persist() == 4
            assert await made.take(queue="default:c2") == archived
            assert await made.mailbox.remove(QUEUE, ids) == 4
            await made.persist()
