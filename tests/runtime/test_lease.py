"""Leases: one holder, growing terms, and an old term that can write nothing."""

from __future__ import annotations

import pytest

from angarium.runtime.errors import LeaseLost
from angarium.runtime.lease import Lease, LeaseOutcome
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import SampleStore, sample_runtime


async def test_one_holds_it_and_the_other_waits(any_redis_url: str) -> None:
    async with (
        sample_runtime(any_redis_url, actor="one") as one,
        sample_runtime(any_redis_url, actor="two", prefix=one.settings.prefix) as two,
    ):
        keys_ = SampleStore(one).lease_keys
        first, second = Lease(one, keys_, 60_000), Lease(two, keys_, 60_000)
        assert await first.run_once() is LeaseOutcome.GAINED
        assert await second.run_once() is LeaseOutcome.WAITING
        assert first.trusted
        assert not second.trusted
        assert await first.run_once() is LeaseOutcome.RENEWED
        await first.release()
        assert not first.trusted
        assert await second.run_once() is LeaseOutcome.GAINED
        assert second.term == 2


async def test_two_holders_in_one_process_are_two(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        keys_ = SampleStore(runtime).lease_keys
        first, second = Lease(runtime, keys_, 60_000), Lease(runtime, keys_, 60_000)
        assert await first.acquire()
        assert not await second.acquire()
        assert await first.acquire(), "asking again keeps it"
        assert first.term == 1


async def test_an_expired_lease_is_lost_even_when_nobody_took_it(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        lease = Lease(runtime, SampleStore(runtime).lease_keys, 60_000)
        assert await lease.acquire()
        await runtime.redis.call("DEL", SampleStore(runtime).lease_keys.lock)
        assert await lease.run_once() is LeaseOutcome.LOST
        with pytest.raises(LeaseLost):
            _ = lease.term
        assert await lease.run_once() is LeaseOutcome.GAINED
        assert lease.term == 2


async def test_redis_lets_the_lock_go_when_its_time_is_over(redis_url: str) -> None:
    async with (
        sample_runtime(redis_url, actor="one") as one,
        sample_runtime(redis_url, actor="two", prefix=one.settings.prefix) as two,
    ):
        keys_ = SampleStore(one).lease_keys
        first, second = Lease(one, keys_, 80), Lease(two, keys_, 80)
        assert await first.acquire()
        await eventually(second.acquire)
        assert await first.run_once() is LeaseOutcome.LOST
        assert second.term == 2


async def test_trust_ends_before_the_lock_does(redis_url: str) -> None:
    clock = FakeClock()
    async with sample_runtime(redis_url, clock=clock) as runtime:
        lease = Lease(runtime, SampleStore(runtime).lease_keys, 2_000)
        await lease.acquire()
        await clock.advance(1.79)
        assert lease.trusted
        await clock.advance(0.02)
        assert not lease.trusted
        with pytest.raises(LeaseLost):
            _ = lease.term


async def test_an_old_term_writes_nothing(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        store = SampleStore(runtime)
        lease = Lease(runtime, store.lease_keys, 60_000)
        await lease.acquire()
        old = lease.term
        assert await store.append_fenced(old, "mine") == "appended"
        await runtime.redis.call("DEL", store.lease_keys.lock, key=store.lease_keys.lock)
        # Expired, but nobody else began: the write does no harm and is taken.
        assert await store.append_fenced(old, "still alone") == "appended"
        newer = Lease(runtime, store.lease_keys, 60_000)
        await newer.acquire()
        assert await store.append_fenced(old, "too late") == "stale_term"
        assert await store.append_fenced(newer.term, "new") == "appended"
        assert await store.order(0) == ["mine", "still alone", "new"]


async def test_a_foreign_value_in_the_lock_is_respected(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        store = SampleStore(runtime)
        await runtime.redis.call("SET", store.lease_keys.lock, "4711", "PX", 60_000)
        lease = Lease(runtime, store.lease_keys, 60_000)
        assert await lease.run_once() is LeaseOutcome.WAITING
        assert (await runtime.redis.call("GET", store.lease_keys.lock)) == b"4711"
