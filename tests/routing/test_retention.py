"""Every stored thing of the module has an end: instances, recipient keys, records of attempts."""

from __future__ import annotations

from typing import Any

import pytest

from angarium.routing.errors import InstanceLive, InstanceUnknown, RecipientUnknown
from angarium.routing.service import RoutingService
from tests.kit.clock import FakeClock
from tests.routing.harness import counts, handle_all, owner, post, routing, subjects

LAYOUTS = pytest.mark.parametrize("layout", ["native", "acapy"])
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


async def test_a_silent_instance_without_messages_is_removed_after_its_retention(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock, moves_max=10) as (runtime, store):
        await store.touch("gone")
        await store.assign_recip_key_to_new_uid([f"k{number}" for number in range(25)])
        await post(store, "k1")
        await handle_all(store, "gone", "k1")
        clock.jump(HOUR_MS)
        await store.touch("b")
        assert (await store.sweep()).removed == 0
        clock.jump(1_000)
        swept = await store.sweep()
        assert (swept.forgotten, swept.removed, swept.again) == (10, 0, True)
        while swept.again:
            swept = await store.sweep()
        assert [each.uid for each in (await store.instances())[0]] == ["b"]
        assert len(await subjects(runtime, "forgotten")) == 25
        with pytest.raises(RecipientUnknown):
            await store.show("k1")
        assert await post(store, "k1") == ["queued"]
        assert await owner(store, "k1") == "b"


async def test_a_key_that_nobody_uses_is_forgotten_and_one_in_use_is_not(redis_url: str) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock) as (_, store):
        await store.touch("a")
        for key in ("used", "waiting", "unused"):
            await post(store, key)
        for key in ("used", "unused"):
            await handle_all(store, "a", key)
        for _ in range(3):
            await store.touch("a")
            await store.sweep()
            await post(store, "used")
            await handle_all(store, "a", "used")
            clock.jump(7 * DAY_MS)
        await store.touch("a")
        await store.sweep()
        assert (await store.show("used")).uid == "a"
        assert (await store.show("waiting")).pending == 1
        with pytest.raises(RecipientUnknown):
            await store.show("unused")


@LAYOUTS
async def test_an_operator_removes_an_instance_and_its_messages_are_kept(
    redis_url: str, layout: str
) -> None:
    clock = FakeClock()
    settings: Any = {"routing": {"layout": layout}}
    async with routing(redis_url, layout=layout, clock=clock, **settings) as (runtime, store):
        service = runtime.store(RoutingService)
        with pytest.raises(InstanceUnknown):
            await service.remove_instance("a")
        await store.touch("a")
        await post(store, "k", b"1", b"2")
        with pytest.raises(InstanceLive):
            await service.remove_instance("a")
        await service.remove_instance("a", force=True)
        assert await counts(runtime) == {"_k": 2}
        await store.touch("b")
        assert (await store.sweep()).assigned == 1
        assert len(await handle_all(store, "b", "k")) == 2
        clock.jump(16_000)
        await service.remove_instance("b")
        assert (await store.instances())[0] == []


async def test_a_large_instance_is_removed_in_pieces(redis_url: str) -> None:
    async with routing(redis_url, moves_max=10) as (_, store):
        await store.touch("a")
        await store.assign_recip_key_to_new_uid([f"k{number}" for number in range(35)])
        assert await store.remove("a", force=True)
        assert (await store.instances())[0] == []


async def test_pruning_removes_what_is_silent_and_forgets_idle_keys(any_redis_url: str) -> None:
    clock = FakeClock()
    async with routing(any_redis_url, clock=clock) as (runtime, store):
        service = runtime.store(RoutingService)
        for number in range(300):
            await store.touch(f"u{number}")
        names = [f"k{number}" for number in range(900)]
        await store.assign_recip_key_to_new_uid(names)
        await post(store, "k7")
        clock.jump(60_000)
        await store.touch("live")
        await store.assign_recip_key_to_new_uid(["more"])
        await service.prune()
        assert (await store.show("k8")).uid is not None, "the retention is an hour"
        pruned = await service.prune(30_000, idle_keys=True)
        assert [each.uid for each in (await store.instances())[0]] == ["live"]
        assert pruned.instances > 0
        assert (await store.show("k7")).pending == 1
        for name in ("k8", "more"):
            with pytest.raises(RecipientUnknown):
                await store.show(name)
