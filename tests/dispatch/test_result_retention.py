"""Old results leave the stream, unless a consumer group of the stream still needs them."""

from __future__ import annotations

import pytest

from angarium.dispatch import dispatcher as dispatcher_module
from angarium.dispatch import keys
from tests.dispatch.harness import StoreHarness, dispatch_services, store_harness
from tests.kit.clock import EPOCH_MS
from tests.kit.eventually import eventually

DAY_MS = 86_400_000
KEEP_MS = 7 * DAY_MS


async def add_results(ours: StoreHarness, days_old: int, count: int) -> None:
    """Results as the workers' script stores them, at an earlier time."""
    name = ours.name(keys.MESSAGES_PROCESSED)
    for number in range(count):
        entry_id = f"{EPOCH_MS - days_old * DAY_MS}-{number}"
        fields = ("n", number, "message_id", f"{days_old}-{number}", "consumer_id", "w")
        await ours.runtime.redis.call("XADD", name, entry_id, *fields, key=name)


async def ids(ours: StoreHarness) -> list[bytes]:
    name = ours.name(keys.MESSAGES_PROCESSED)
    return [each for each, _ in await ours.runtime.redis.call("XRANGE", name, "-", "+", key=name)]


async def trim(ours: StoreHarness, keep_ms: int = KEEP_MS, entries_max: int = 100_000) -> int:
    return await ours.store.trim_results(ours.partition, keep_ms, entries_max)


async def test_results_end_when_their_time_is_over(any_redis_url: str) -> None:
    async with store_harness(any_redis_url) as ours:
        assert await trim(ours) == 0, "without a stream"
        await add_results(ours, 8, 500)
        await add_results(ours, 6, 300)
        assert await trim(ours, 9 * DAY_MS) == 0
        # Redis removes whole nodes of the stream, 100 entries each.
        assert 400 <= await trim(ours) <= 500
        assert 300 <= len(await ids(ours)) <= 400
        assert await trim(ours, 2**52) == 0, "longer than there is time"


async def test_a_call_removes_a_limited_number_of_results(redis_url: str) -> None:
    async with store_harness(redis_url) as ours:
        await add_results(ours, 8, 500)
        assert 0 < await trim(ours, entries_max=200) <= 200
        assert len(await ids(ours)) >= 300


async def test_results_that_a_consumer_group_has_not_read_stay(redis_url: str) -> None:
    async with store_harness(redis_url) as ours:
        name, redis = ours.name(keys.MESSAGES_PROCESSED), ours.runtime.redis
        await add_results(ours, 8, 400)
        await redis.call("XGROUP", "CREATE", name, "readers", "0", key=name)
        assert await trim(ours) == 0, "nothing is read"
        read = ("XREADGROUP", "GROUP", "readers", "one", "COUNT", 250, "STREAMS", name, ">")
        entries = [each for each, _ in (await redis.call(*read, key=name))[0][1]]
        assert await trim(ours) == 0, "nothing is acknowledged"
        await redis.call("XACK", name, "readers", *entries, key=name)
        before = await ids(ours)
        assert 100 <= await trim(ours) <= 250
        left = await ids(ours)
        assert left[-150:] == before[250:], "what is unread is there"
        await redis.call("XGROUP", "DESTROY", name, "readers", key=name)
        await trim(ours)
        assert len(await ids(ours)) < 100


async def test_a_dispatcher_goes_on_while_there_are_more_old_results(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So results never come faster than old ones are removed."""
    monkeypatch.setattr(dispatcher_module, "TRIM_ENTRIES_MAX", 200)
    async with dispatch_services(redis_url) as ours:
        dispatcher = await ours.add_dispatcher()
        await eventually(lambda: dispatcher.partitions[0].leading)
        redis = ours.runtime.redis
        name = ours.runtime.keyspace.name(keys.MESSAGES_PROCESSED)
        for number in range(1_000):
            await redis.call("XADD", name, f"1-{number}", "n", number, key=name)
        passes = 1
        while (await dispatcher._trim_results_once()).again:
            passes += 1
        assert passes > 3
        assert await redis.call("XLEN", name, key=name) <= 100
