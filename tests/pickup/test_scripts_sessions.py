"""Calls the scripts of live sessions and of the leases of gateways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from angarium.runtime.scripts import status_of
from tests.kit.clock import FakeClock
from tests.pickup.harness import (
    DID,
    GRACE_S,
    LEASE_S,
    QUEUE,
    harness,
    sqlite,
)


async def test_a_new_session_takes_over_after_the_grace_period(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        ids = await pickup.add_many(2)
        old = await pickup.open(session="s1", socket="k1")
        assert await pickup.pull(old) == ids
        new = await pickup.open(session="s2", socket="k2")
        assert await pickup.pull(new) == [], "the old client may still acknowledge"
        assert await pickup.queues.remove(QUEUE, ids[:1]) == 1
        await pickup.clock.advance(GRACE_S + 0.1)
        assert await pickup.sweep() == 1
        assert await pickup.pull(new) == ids[1:]
        found = await pickup.event_names()
        assert found.count("session_opened") == 2
        assert found.count("session_replaced") == 1


async def test_the_same_session_again_is_kept(redis_url: str, tmp_path: Path) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        assert await pickup.open() == await pickup.open()


async def test_without_a_lease_no_session_is_opened(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        assert status_of(await pickup.store.sessions.open(QUEUE, "s1", "k1")) == "no_lease"
        assert status_of(await pickup.store.sessions.read(QUEUE)) == "offline"


async def test_only_the_matching_session_is_closed(any_redis_url: str, tmp_path: Path) -> None:
    async with harness(any_redis_url, sqlite(tmp_path)) as pickup:
        gateway = pickup.store.gateway

        async def close(socket: str = "", session: str = "") -> str:
            closing = pickup.store.sessions.close(
                QUEUE, gateway=gateway, socket=socket, session=session
            )
            return status_of(await closing)

        assert await close(socket="k1") == "none"
        await pickup.open(session="s1", socket="k1")
        await pickup.open(session="s2", socket="k2")
        assert await close(socket="k1") == "other"
        assert await close(session="s1") == "other"
        reply = await pickup.store.sessions.read(QUEUE)
        assert [reply[0], reply[1], reply[2].decode()] == [b"live", b"s2", gateway]
        assert await close(session="s2") == "closed"
        assert await close(session="s2") == "none"
        assert status_of(await pickup.store.sessions.read(QUEUE)) == "offline"


async def test_sessions_of_a_dead_gateway_end_and_those_of_a_live_one_do_not(
    any_redis_url: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    database = sqlite(tmp_path)
    async with harness(any_redis_url, database, clock=clock, actor="one") as one:
        shared: dict[str, Any] = {"prefix": one.runtime.settings.prefix}
        async with harness(any_redis_url, database, clock=clock, actor="two", **shared) as two:
            message_id = await one.add()
            term = await one.open()
            assert await one.pull(term) == [message_id]
            assert status_of(await two.store.add(QUEUE, "m2", DID, b"1")) == "elsewhere"
            await two.sweep()
            assert status_of(await two.store.sessions.read(QUEUE)) == "live"
            await clock.advance(LEASE_S + 1)
            assert status_of(await two.store.add(QUEUE, "m3", DID, b"1")) == "offline"
            await two.sweep()
            assert await two.take() == ["m2", "m3"]
            await clock.advance(GRACE_S + 1)
            await two.sweep()
            assert await two.take() == [message_id]
            assert "session_closed" in await one.event_names()
            # The gateway continues: it has a new lease, and its old term gets nothing.
            assert (
                await one.store.sessions.renew_gateway(one.store.partition_of(QUEUE)) == "revived"
            )
            assert status_of(await one.store.pull(QUEUE, term, resend=False)) == "lost"


async def test_a_session_is_restored_unless_another_replaced_it(
    any_redis_url: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    database = sqlite(tmp_path)
    async with harness(any_redis_url, database, clock=clock, actor="one") as one:
        shared: dict[str, Any] = {"prefix": one.runtime.settings.prefix}
        async with harness(any_redis_url, database, clock=clock, actor="two", **shared) as two:
            partition = one.store.partition_of(QUEUE)
            term = await one.open()
            assert status_of(await one.store.sessions.open(QUEUE, "s1", "k1", term)) == "kept"
            await clock.advance(LEASE_S + 1)
            await two.sweep()
            await one.store.sessions.renew_gateway(partition)
            reply = await one.store.sessions.open(QUEUE, "s1", "k1", term)
            assert status_of(reply) == "opened"
            await two.open(session="s9", socket="k9")
            again = await one.store.sessions.open(QUEUE, "s1", "k1", reply[1].decode())
            assert status_of(again) == "taken"


async def test_an_older_request_does_not_replace_a_newer_session(
    any_redis_url: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    database = sqlite(tmp_path)
    async with harness(any_redis_url, database, clock=clock, actor="one") as one:
        shared: dict[str, Any] = {"prefix": one.runtime.settings.prefix}
        async with harness(any_redis_url, database, clock=clock, actor="two", **shared) as two:
            partition = one.store.partition_of(QUEUE)
            await one.store.sessions.renew_gateway(partition)
            asked_ms = one.store.sessions.asked_ms(partition)

            async def ask(socket: str, asked_ms: int) -> str:
                opening = one.store.sessions.open(QUEUE, "s1", socket, asked_ms=asked_ms)
                return status_of(await opening)

            await clock.advance(1)
            await two.open(session="s9", socket="k9")
            assert await ask("k1", asked_ms) == "late"
            reply = await one.store.sessions.read(QUEUE)
            assert [reply[0], reply[1]] == [b"live", b"s9"]
            assert "session_replaced" not in await one.event_names()
            await clock.advance(1)
            for _ in range(2):
                await one.store.sessions.renew_gateway(partition)
            assert await ask("k1", one.store.sessions.asked_ms(partition)) == "opened"
            # A repeated request of the same client finds it open, at any time.
            assert await ask("k1", asked_ms) == "kept"
            # A session of a dead gateway can be replaced by any request.
            await two.open(session="s9", socket="k9")
            await clock.advance(LEASE_S + 1)
            await one.store.sessions.renew_gateway(partition)
            assert await ask("k1", asked_ms) == "opened"


async def test_a_gateway_that_ends_is_forgotten_with_its_last_session(
    redis_url: str, tmp_path: Path
) -> None:
    async with harness(redis_url, sqlite(tmp_path)) as pickup:
        await pickup.open()
        assert await pickup.store.sessions.renew_gateway(0) == "renewed"
        assert await pickup.store.sessions.forget_gateway(0, pickup.store.gateway) == "kept"
        assert await pickup.store.sessions.renew_gateway(0, end=True) == "ended"
        assert await pickup.store.sessions.forget_gateway(0, pickup.store.gateway) == "kept"
        await pickup.sweep()
        assert (await pickup.store.due_work(0, 10)).dead_gateways == []


async def test_a_session_closed_by_another_gateway_is_not_restored(
    any_redis_url: str, tmp_path: Path
) -> None:
    clock, database = FakeClock(), sqlite(tmp_path)
    async with harness(any_redis_url, database, clock=clock, actor="g1") as one:
        prefix = one.runtime.settings.prefix
        async with harness(any_redis_url, database, clock=clock, actor="g2", prefix=prefix) as two:
            term = await one.open()
            closing = two.store.sessions.close(QUEUE, gateway="g1", session="s1")
            assert status_of(await closing) == "closed"
            assert status_of(await one.store.sessions.open(QUEUE, "s1", "k1", term)) == "taken"
            mending = one.store.sessions.close(QUEUE, gateway="g1", term=term)
            assert status_of(await mending) == "none"
            assert await one.store.sessions.queues_of(one.store.partition_of(QUEUE), "g1", 10) == []
            assert await one.store.queue_status(QUEUE) is None, "the queue is deleted"


async def test_the_sweep_removes_ended_sessions_from_the_list_of_a_dead_gateway(
    redis_url: str, tmp_path: Path
) -> None:
    clock, database = FakeClock(), sqlite(tmp_path)
    async with harness(redis_url, database, clock=clock, actor="g1") as one:
        prefix = one.runtime.settings.prefix
        async with harness(redis_url, database, clock=clock, actor="g2", prefix=prefix) as two:
            await one.open()
            await two.store.sessions.close(QUEUE, gateway="g1", session="s1")
            await clock.advance(LEASE_S + 1)
            await two.sweep()
            assert await two.store.queue_status(QUEUE) is None
            assert await two.store.sessions.queues_of(0, "g1", 10) == []
