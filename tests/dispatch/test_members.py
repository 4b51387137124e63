"""The lists of live consumers and dispatchers."""

from __future__ import annotations

from angarium.dispatch import keys
from angarium.dispatch.store import MEMBER_TTL_MS
from tests.dispatch.harness import store_harness
from tests.kit.clock import FakeClock


async def test_members_are_listed_in_the_order_in_which_they_joined(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        store = ours.store
        assert await store.consumers() == []
        assert await store.join_consumers("b:1") == ["b:1"]
        assert await store.join_consumers("a:1") == ["b:1", "a:1"]
        assert await store.join_consumers("b:1") == ["b:1", "a:1"]
        assert await store.dispatchers() == [], "dispatchers have a list of their own"
        await store.leave_consumers("b:1")
        await store.leave_consumers("b:1")
        await store.leave_consumers("never there")
        assert await store.consumers() == ["a:1"]
        assert await store.join_consumers("b:1") == ["a:1", "b:1"]


async def test_a_member_that_does_not_renew_its_entry_is_removed(any_redis_url: str) -> None:
    clock = FakeClock()
    async with store_harness(any_redis_url, clock=clock) as ours:
        store = ours.store
        await store.join_dispatchers("d1")
        await clock.advance(1)
        await store.join_dispatchers("d2")
        await clock.advance(MEMBER_TTL_MS / 1000 - 1)
        assert await store.dispatchers() == ["d1", "d2"]
        await clock.advance(0.001)
        assert await store.dispatchers() == ["d2"]
        await clock.advance(1)
        assert await store.join_dispatchers("d1") == ["d1"]
        await store.leave_dispatchers("d1")
        assert await store.dispatchers() == []


async def test_a_member_joins_again_after_its_list_was_deleted(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        store = ours.store
        await store.join_consumers("a:1")
        name = ours.runtime.keyspace.name(keys.CONSUMER_IDS, 0)
        await ours.runtime.redis.call("DEL", name, key=name)
        assert await store.join_consumers("a:1") == ["a:1"]
