"""Dead letters of both kinds: paged, shown, retried and dropped, one by one or all of a reason."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest

from angarium.routing import dead_letters, keys
from angarium.routing.dead_letters import PAGE_BYTES_MAX, DropArgs, DropItem
from angarium.routing.items import encode_inbound
from angarium.routing.outbound_store import OutboundStore
from angarium.routing.service import RoutingService
from angarium.runtime.errors import InputInvalid, NotFound
from angarium.runtime.runtime import Runtime
from tests.routing.harness import events, routing
from tests.server.harness import running_api

Kind = Literal["inbound", "outbound"]
KINDS = pytest.mark.parametrize("kind", ["inbound", "outbound"])


async def add(
    runtime: Runtime, kind: Kind, *ids: str, reason: str = "no", size_bytes: int = 10
) -> None:
    key = keys.INBOUND_DEAD if kind == "inbound" else keys.OUTBOUND_DEAD
    for id in ids:
        partition = runtime.keyspace.partition_of(f"key-{id}")
        item = encode_inbound(b"x" * size_bytes, "http", None, id)
        entry = {"id": id, "reason": reason, "message": item, "at_ms": 1}
        if kind == "inbound":
            entry["recip_key"] = f"key-{id}"
        name = runtime.keyspace.name(key, partition)
        text = json.dumps(entry, separators=(",", ":"))
        await runtime.redis.call("RPUSH", name, text, key=name)


async def ids(service: RoutingService, kind: Kind, limit: int = 100) -> list[str]:
    """All ids, by pages of this length."""
    letters = service.dead_inbound if kind == "inbound" else service.dead_outbound
    found: list[str] = []
    after = None
    while True:
        page = await letters.page(limit, after)
        assert len(page.letters) <= limit
        found += [each.id for each in page.letters]
        after = page.next
        if after is None:
            return found


@KINDS
async def test_f14_every_dead_letter_is_listed_by_pages(any_redis_url: str, kind: Kind) -> None:
    async with routing(any_redis_url) as (runtime, _):
        service = runtime.store(RoutingService)
        assert await ids(service, kind) == []
        wanted = [f"m{number}" for number in range(250)]
        await add(runtime, kind, *wanted)
        assert sorted(await ids(service, kind)) == sorted(wanted)
        assert sorted(await ids(service, kind, 7)) == sorted(wanted)


async def test_letters_removed_between_two_pages_hide_no_others(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, _):
        service = runtime.store(RoutingService)
        await add(runtime, "inbound", *(f"m{number}" for number in range(60)))
        page = await service.dead_inbound.page(50)
        for each in page.letters[:45]:
            await service.dead_inbound.drop(each.id)
        rest = await service.dead_inbound.page(50, page.next)
        assert [each.id for each in rest.letters] == [f"m{number}" for number in range(50, 60)]
        with pytest.raises(InputInvalid):
            await service.dead_inbound.page(50, "0.x")


async def test_a_page_is_limited_in_bytes_and_a_large_letter_comes_alone(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, _):
        service = runtime.store(RoutingService)
        await add(runtime, "inbound", "big", size_bytes=2 * PAGE_BYTES_MAX)
        await add(runtime, "inbound", *"abc", size_bytes=PAGE_BYTES_MAX // 2)
        page = await service.dead_inbound.page()
        assert [each.id for each in page.letters] == ["big"]
        assert await ids(service, "inbound") == ["big", "a", "b", "c"]


@KINDS
async def test_all_letters_of_a_reason_are_retried_or_dropped(
    any_redis_url: str, kind: Kind
) -> None:
    async with routing(any_redis_url) as (runtime, _):
        service = runtime.store(RoutingService)
        letters = service.dead_inbound if kind == "inbound" else service.dead_outbound
        await add(runtime, kind, *(f"a{number}" for number in range(150)), reason="ValueError: x")
        await add(runtime, kind, "b1", "b2", reason="its instance was lost")
        await add(runtime, kind, "c1", reason="ValueError: y")
        statuses = await letters.retry_all("ValueError")
        assert statuses["kept"] + statuses["revived"] == 151
        assert sorted(await ids(service, kind)) == ["b1", "b2"]
        assert await letters.drop_all("something else") == {}
        assert await letters.drop_all() == {"dropped": 2}
        assert await ids(service, kind) == []
        dropped = "dead_dropped" if kind == "inbound" else "outbound_dead_dropped"
        found = await events(runtime, dropped)
        assert sorted(event.subject for event in found) == ["b1", "b2"]
        assert {event.detail for event in found} == {"its instance was lost"}


@KINDS
async def test_two_operators_retry_or_drop_a_letter_once(redis_url: str, kind: Kind) -> None:
    async with routing(redis_url) as (runtime, _):
        service = runtime.store(RoutingService)
        letters = service.dead_inbound if kind == "inbound" else service.dead_outbound
        await add(runtime, kind, "m1", "m2")
        found = await letters.find("m1")
        both = await asyncio.gather(letters.drop("m1"), letters.drop("m1"), return_exceptions=True)
        assert [type(each) for each in both].count(NotFound) == 1
        drop = (
            dead_letters.DROP_DEAD_INBOUND if kind == "inbound" else dead_letters.DROP_DEAD_OUTBOUND
        )
        item = DropItem("m1", "k", "no", found.raw)
        assert await runtime.call(drop, 0, DropArgs("dead_dropped"), [item]) == ["unknown"]
        with pytest.raises(NotFound):
            await letters.find("m1")
        outbound = OutboundStore(runtime, "native")
        assert await outbound.revive(0, [("m1", found.raw)]) == ["unknown"]


async def test_operators_use_dead_letters_and_instances_over_http(
    redis_url: str, no_settings: object
) -> None:
    async with running_api(redis_url) as (runtime, call):
        await add(runtime, "inbound", "m1", "m2", "m3", reason="late")
        path = "/v1/routing/dead-inbound"
        status, page = await call("GET", f"{path}?limit=2")
        assert (status, [each["id"] for each in page["letters"]]) == (200, ["m1", "m2"])
        status, page = await call("GET", f"{path}?after={page['next']}")
        assert ([each["id"] for each in page["letters"]], page["next"]) == (["m3"], None)
        assert (await call("GET", f"{path}/m2"))[1]["reason"] == "late"
        assert (await call("DELETE", f"{path}/m2"))[0] == 204
        assert (await call("DELETE", f"{path}/m2"))[0] == 404
        assert await call("POST", f"{path}/revive?reason=early") == (200, {"revived": 0})
        assert await call("DELETE", f"{path}?reason=late") == (200, {"dropped": 2})
        assert (await call("GET", f"{path}?limit=0"))[0] == 400
        assert (await call("DELETE", "/v1/routing/instances/nobody"))[0] == 404
        assert await call("POST", "/v1/routing/prune") == (200, {"instances": 0, "keys": 0})
