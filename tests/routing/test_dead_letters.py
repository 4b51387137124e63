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
from angarium.runtime.dead_letters import PAGE_MAX, DeadLetterUnknown
from angarium.runtime.errors import InputInvalid
from angarium.runtime.runtime import Runtime
from tests.routing.harness import events, routing

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
        assert await letters.retry_all("ValueError") == {"retried": 151, "unusable": 0}
        assert sorted(await ids(service, kind)) == ["b1", "b2"]
        assert await letters.drop_all("something else") == 0
        assert await letters.drop_all() == 2
        assert await ids(service, kind) == []
        dropped = "dead_dropped" if kind == "inbound" else "outbound_dead_dropped"
        found = await events(runtime, dropped)
        assert sorted(event.subject for event in found) == ["b1", "b2"]
        assert {event.detail for event in found} == {"its instance was lost"}


@KINDS
async def test_letters_are_found_by_a_text_inside_their_reason(
    any_redis_url: str, kind: Kind
) -> None:
    async with routing(any_redis_url) as (runtime, _):
        service = runtime.store(RoutingService)
        letters = service.dead_inbound if kind == "inbound" else service.dead_outbound
        await add(runtime, kind, *(f"a{number}" for number in range(120)), reason="no disk left")
        await add(runtime, kind, "b1", reason="no wallet: key 7")
        await add(runtime, kind, "b2", reason="lost")
        await add(runtime, kind, "b3", reason="a wallet is missing")
        page = await letters.page(reason="wallet")
        assert sorted(each.id for each in page.letters) == ["b1", "b3"]
        assert page.next is None
        first = await letters.page(1, reason="wallet")
        second = await letters.page(1, first.next, "wallet")
        assert sorted(page.letters[0].id for page in (first, second)) == ["b1", "b3"]
        assert second.next is None
        assert await letters.retry_all("wallet") == {"retried": 2, "unusable": 0}
        assert await letters.drop_all("disk") == 120
        assert await ids(service, kind) == ["b2"]


async def test_a_page_has_up_to_its_limit_of_letters(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, _):
        service = runtime.store(RoutingService)
        await add(runtime, "inbound", *(f"m{number}" for number in range(PAGE_MAX + 1)))
        page = await service.dead_inbound.page(PAGE_MAX)
        assert [each.id for each in page.letters] == [f"m{number}" for number in range(PAGE_MAX)]
        rest = await service.dead_inbound.page(PAGE_MAX, page.next)
        assert ([each.id for each in rest.letters], rest.next) == ([f"m{PAGE_MAX}"], None)


async def test_letters_that_can_not_be_read_are_shown_and_dropped_by_their_reason(
    redis_url: str,
) -> None:
    async with routing(redis_url) as (runtime, _):
        letters = runtime.store(RoutingService).dead_inbound
        name = runtime.keyspace.name(keys.INBOUND_DEAD)
        no_date = b'{"id":"m1","reason":"late","message":"{}","at_ms":1e300}'
        await runtime.redis.call("RPUSH", name, b"\xff", no_date, key=name)
        found = (await letters.page()).letters
        assert [(each.id, each.at_ms, each.tries) for each in found] == [("", 0, 0)] * 2
        assert found[1].message == no_date.decode()
        for act in (letters.find, letters.retry, letters.drop):
            with pytest.raises(DeadLetterUnknown):
                await act("")
        assert await letters.retry_all() == {"retried": 0, "unusable": 2}
        assert await letters.drop_all("can't be read") == 2


@KINDS
async def test_two_operators_retry_or_drop_a_letter_once(redis_url: str, kind: Kind) -> None:
    async with routing(redis_url) as (runtime, _):
        service = runtime.store(RoutingService)
        letters = service.dead_inbound if kind == "inbound" else service.dead_outbound
        await add(runtime, kind, "m1", "m2")
        found = await anext(letters.walk())
        assert found.dead == await letters.find("m1")
        both = await asyncio.gather(letters.drop("m1"), letters.drop("m1"), return_exceptions=True)
        assert [type(each) for each in both].count(DeadLetterUnknown) == 1
        drop = (
            dead_letters.DROP_DEAD_INBOUND if kind == "inbound" else dead_letters.DROP_DEAD_OUTBOUND
        )
        item = DropItem("m1", "k", "no", found.raw)
        assert await runtime.call(drop, 0, DropArgs("dead_dropped"), [item]) == ["unknown"]
        with pytest.raises(DeadLetterUnknown):
            await letters.find("m1")
        outbound = OutboundStore(runtime, "native")
        assert await outbound.revive(0, [("m1", found.raw)]) == ["unknown"]
