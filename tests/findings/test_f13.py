"""The limit of moved keys is one of the call, not of each stale instance."""

from __future__ import annotations

import asyncio

from tests.kit.clock import FakeClock
from tests.routing.harness import counts, events, post, routing


async def test_f13_one_batch_moves_a_limited_number_of_keys_over_all_stale_instances(
    redis_url: str,
) -> None:
    """A batch for many stale instances moved `moves_max` keys of each of them."""
    clock = FakeClock()
    async with routing(redis_url, clock=clock, moves_max=3) as (runtime, store):
        for uid in ("a", "c", "d"):
            await store.touch(uid)
        await store.assign_recip_key_to_new_uid([f"k{number}" for number in range(40)])
        await post(store, "k0")
        await post(store, "k1")
        await post(store, "k2")
        clock.jump(16_000)
        await store.touch("b")
        batch = [store.process_payload_recip_key(f"k{number}", b"x") for number in range(9)]
        assert set(await asyncio.gather(*batch)) == {"queued"}
        calls = 2  # a batch may be sent in two calls
        assert 1 <= len(await events(runtime, "reassigned")) <= 3 * calls
        assert sum((await counts(runtime)).values()) == 12
        swept = await store.sweep()
        assert (swept.moved, swept.again) == (3, True)


async def test_f13_one_sweep_moves_a_limited_number_of_keys_over_all_instances(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock, moves_max=3) as (_, store):
        for uid in ("a", "b", "c", "d"):
            await store.touch(uid)
        for number in range(12):
            await post(store, f"k{number}")
        clock.jump(16_000)
        await store.touch("e")
        swept = await store.sweep()
        assert (swept.moved, swept.again) == (3, True)
        while swept.again:
            swept = await store.sweep()
        assert [each.keys for each in (await store.instances())[0]] == [12]
