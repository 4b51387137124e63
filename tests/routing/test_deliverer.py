"""Deliveries: retries, leases of a deliverer that died, hosts that hang."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from angarium.routing.deliverer import Deliverer, host_of
from angarium.routing.items import RETRY_DELAYS_MS
from angarium.routing.outbound_store import LEASE_MS, OutboundStore, Settlement
from angarium.runtime.runtime import Runtime
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.kit.tcp_server import tcp_server
from tests.routing.harness import dead_outbound, events
from tests.routing.test_roles import sink

DEADLINE_S = 40.0


@asynccontextmanager
async def delivering(
    redis_url: str, clock: FakeClock | None = None, **overrides: Any
) -> AsyncIterator[tuple[Runtime, OutboundStore, Deliverer]]:
    async with sample_runtime(
        redis_url, clock=clock, allow_private_addresses=True, **overrides
    ) as runtime:
        deliverer = Deliverer(runtime)
        await deliverer.start()
        try:
            yield runtime, OutboundStore(runtime, "native"), deliverer
        finally:
            await deliverer.stop(5)


async def test_five_retries_at_growing_pauses_and_then_a_dead_letter(any_redis_url: str) -> None:
    clock = FakeClock()
    async with (
        delivering(any_redis_url, clock) as (runtime, store, _),
        sink({"/no": 500}) as (url, came),
    ):
        await store.push(f"{url}/no", b"x", {})

        async def attempts(wanted: int) -> bool:
            # Its loops sleep on the test's clock.
            await clock.advance(0.01)
            found = await events(runtime, "outbound_retried", "outbound_dead")
            assert len(found) <= wanted, "too early"
            return len(found) == wanted

        for number, delay_ms in enumerate(RETRY_DELAYS_MS, 1):
            await eventually(partial(attempts, number), DEADLINE_S)
            assert len(came) == number
            clock.jump(delay_ms)
            await clock.advance(0.5)
        await eventually(partial(attempts, 6), DEADLINE_S)
        assert len(came) == 6
        (dead,) = await dead_outbound(runtime, store)
        assert (dead.reason, dead.tries) == ("answered 500", 6)
        names = [event.event for event in await events(runtime)]
        assert names == ["outbound_accepted", *["outbound_retried"] * 5, "outbound_dead"]
        found = await events(runtime, "outbound_retried")
        assert [event.attempt for event in found] == [1, 2, 3, 4, 5]


async def test_messages_leased_by_a_dead_deliverer_are_delivered_by_another(redis_url: str) -> None:
    clock = FakeClock()
    async with sample_runtime(redis_url, clock=clock) as runtime:
        store = OutboundStore(runtime, "native")
        for number in range(3):
            await store.push("http://example.org", b"%d" % number, {})
        first = await store.take(0, 10)
        assert len(first) == 3
        assert await store.take(0, 10) == []
        clock.jump(LEASE_MS - 1)
        assert await store.take(0, 10) == []
        clock.jump(1)
        again = await store.take(0, 10)
        assert [lease.item for lease in again] == [lease.item for lease in first]

        def end(lease: Any) -> Settlement:
            return Settlement(lease, "delivered", "id", "http://example.org", 1, b"")

        assert await store.settle(end(first[0])) == "gone", "the first one comes too late"
        assert await store.settle(end(again[0])) == "settled"
        assert await store.settle(end(again[0])) == "gone", "a lease ends once"


async def test_a_lease_is_longer_than_a_delivery_may_take(redis_url: str) -> None:
    clock = FakeClock()
    async with sample_runtime(redis_url, clock=clock) as runtime:
        store = OutboundStore(runtime, "native", delivery_timeout_ms=60_000)
        await store.push("http://example.org", b"x", {})
        assert len(await store.take(0, 10)) == 1
        clock.jump(2 * 60_000)
        assert await store.take(0, 10) == [], "a second deliverer would deliver it twice"
        clock.jump(60_000)
        assert len(await store.take(0, 10)) == 1


async def test_two_equal_messages_that_fail_are_two_retries(redis_url: str) -> None:
    clock = FakeClock()
    async with sample_runtime(redis_url, clock=clock) as runtime:
        store = OutboundStore(runtime, "acapy")
        for _ in range(3):
            await store.push("http://example.org", b"same", {})
        leases = await store.take(0, 10)
        ends = [
            Settlement(lease, "retried", "id", "u", 1, lease.item, foreign=True, delay_ms=5_000)
            for lease in leases
        ]
        assert await asyncio.gather(*map(store.settle, ends)) == ["settled"] * 3
        clock.jump(5_000)
        again = await store.take(0, 10)
        assert len(again) == 3
        assert len({json.dumps(json.loads(lease.item)) for lease in again}) == 1
        assert len(await events(runtime, "outbound_accepted")) == 3


@pytest.mark.limit("deliveries_max")
async def test_a_host_that_hangs_does_not_delay_the_others(redis_url: str) -> None:
    hanging: list[asyncio.StreamWriter] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.append(writer)
        await asyncio.Event().wait()

    settings: dict[str, Any] = {
        "routing": {"delivery_timeout_ms": 3_000},
        "limits": {"deliveries_max": 64},
    }
    async with (
        tcp_server(hang) as port,
        delivering(redis_url, **settings) as (_, store, deliverer),
        sink({}) as (url, came),
    ):
        for number in range(150):
            await store.push(f"http://127.0.0.1:{port}/{number}", b"x", {})
        for number in range(100):
            await store.push(f"{url}/{number}", b"x", {})
        await eventually(lambda: len(came) == 100, DEADLINE_S)
        assert deliverer.counts["deferred"] > 0
        assert deliverer.counts["dead"] == 0
        assert len(hanging) < 150


async def test_a_websocket_receiver_that_hangs_redirects_or_complains_is_retried(
    redis_url: str,
) -> None:
    async def no_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/redirects":
            return web.Response(status=302, headers={"location": "/takes"})
        peer = web.WebSocketResponse(autoclose=False, max_msg_size=0)
        await peer.prepare(request)
        if request.path == "/complains":
            await peer.receive()
            await peer.close(code=1011)
        elif request.path == "/takes":
            async for _ in peer:
                pass
        else:
            await hold.wait()
        return peer

    hold = asyncio.Event()
    app = web.Application()
    app.router.add_get("/{path}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with (
            tcp_server(no_handshake) as port,
            delivering(redis_url, routing={"delivery_timeout_ms": 2_000}) as (runtime, store, _),
        ):
            url = f"ws://127.0.0.1:{runner.addresses[0][1]}"
            urls = [f"{url}/redirects", f"{url}/complains", f"{url}/never-closes"]
            urls.append(f"ws://127.0.0.1:{port}/no-handshake")
            for each in urls:
                await store.push(each, b"x", {})

            async def all_failed() -> bool:
                found = await events(runtime, "outbound_retried")
                assert {event.key for event in found} == set(urls)
                return True

            await eventually(all_failed, DEADLINE_S)
            # More than the buffers between the two hold; by itself, for it takes its time.
            urls.append(f"{url}/never-reads")
            await store.push(urls[-1], b"x" * 8_000_000, {})
            await eventually(all_failed, DEADLINE_S)
            found = await events(runtime, "outbound_retried")
            reasons = {event.key: event.detail for event in found if event.attempt == 1}
            assert "302" in str(reasons[f"{url}/redirects"])
            assert "1011" in str(reasons[f"{url}/complains"])
            assert await events(runtime, "outbound_delivered", "outbound_dead") == []
    finally:
        hold.set()
        await runner.cleanup()


async def test_secrets_of_a_url_reach_the_receiver_and_not_the_journal(redis_url: str) -> None:
    async with delivering(redis_url) as (runtime, store, _), sink({}) as (url, came):
        secret = url.replace("://", "://user:hidden@") + "/in?token=hidden&a=b"
        await store.push(secret, b"x", {})
        await eventually(lambda: len(came) == 1, DEADLINE_S)

        async def ended() -> bool:
            return len(await events(runtime, "outbound_delivered")) == 1

        await eventually(ended, DEADLINE_S)
        noted = {str(event.key) for event in await events(runtime)}
        assert len(noted) == 1
        assert "hidden" not in noted.pop()


def test_a_host_is_scheme_name_and_port() -> None:
    for url in ("http://a:1", "http://a:1/", "http://a:1/b/c?d=/"):
        assert host_of(url) == "http://a:1"
    assert host_of("nonsense") == "nonsense"
