"""The limits of routing: recipient keys of a message, keys of an instance, bytes of a deliverer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from angarium.routing.errors import OutboundQueueFull, RecipientQueueFull
from angarium.routing.inbox import Inbox
from angarium.routing.items import InboundMessage
from angarium.routing.outbound_store import OutboundStore, Settlement
from angarium.routing.service import RoutingService
from angarium.runtime.application import Application
from angarium.runtime.runtime import Runtime
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.routing.harness import counts, envelope
from tests.routing.test_consumer import DEADLINE_S, settled
from tests.routing.test_deliverer import delivering
from tests.routing.test_relay import running, url


@pytest.mark.limit("recip_key_bytes_max")
async def test_a_message_for_too_many_recipients_is_refused(redis_url: str) -> None:
    async with running(redis_url, limits={"recip_key_bytes_max": 10}) as (runtime, relay, client):
        answer = await client.post(url(relay), data=envelope("key1", "key2", "key3"))
        assert answer.status == 413
        assert await counts(runtime) == {}
        assert (await client.post(url(relay), data=envelope("key1"))).status == 200


@pytest.mark.limit("recip_key_messages_max")
async def test_a_key_with_too_many_messages_gets_more_when_some_are_handled(
    redis_url: str,
) -> None:
    app, gate, handled = Application(), asyncio.Event(), list[bytes]()

    @app.inbox()
    async def handle(message: InboundMessage) -> None:
        await gate.wait()
        handled.append(message.payload)

    limits = {"recip_key_messages_max": 2}
    async with running(redis_url, limits=limits) as (runtime, relay, client):
        service = runtime.store(RoutingService)
        for _ in range(2):
            assert (await client.post(url(relay), data=envelope("key1"))).status == 200
        refused = await client.post(url(relay), data=envelope("key1"))
        assert refused.status == 503
        assert (await refused.json(content_type=None))["code"] == "queue_full"
        with pytest.raises(RecipientQueueFull, match="recip_key_messages_max"):
            await service.send("key1", b"x")
        assert await service.send("key2", b"x") == "kept"
        assert (await service.show("key1")).waiting == 2
        assert await counts(runtime) == {"_key1": 2, "_key2": 1}
        gate.set()
        async with inbox(runtime, app):
            await eventually(lambda: settled(runtime), DEADLINE_S)
            assert (await client.post(url(relay), data=envelope("key1"))).status == 200
            await eventually(lambda: len(handled) == 4, DEADLINE_S)


@pytest.mark.limit("outbound_messages_max")
async def test_outbound_messages_over_the_limit_are_refused_until_some_are_delivered(
    redis_url: str,
) -> None:
    """Messages that wait for their next attempt count too."""
    async with sample_runtime(redis_url, limits={"outbound_messages_max": 3}) as runtime:
        service = runtime.store(RoutingService)
        store = OutboundStore(runtime, "native", messages_max=3)

        async def deliver() -> None:
            await service.deliver("http://example.org/", "eA==", {})

        for _ in range(3):
            await deliver()
        with pytest.raises(OutboundQueueFull, match="outbound_messages_max"):
            await deliver()
        (lease, other) = await store.take(0, 2)
        ends = [("retried", lease), ("delivered", other)]
        for outcome, each in ends:
            end = Settlement(
                each, outcome, "m", "http://example.org/", 1, each.item, delay_ms=60_000
            )
            assert await store.settle(end) == "settled"
        lengths = await service.lengths()
        assert (lengths.outbound, lengths.retrying) == (1, 1)
        await deliver()
        with pytest.raises(OutboundQueueFull):
            await deliver()
        assert await store.push("http://example.org/", b"x", {}) == "full"


@asynccontextmanager
async def inbox(runtime: Runtime, app: Application) -> AsyncIterator[Inbox]:
    service = Inbox(runtime, app)
    await service.start()
    try:
        yield service
    finally:
        await service.stop(10)


@pytest.mark.limit("inbox_keys_max")
async def test_an_instance_takes_no_more_keys_than_it_may_hold(redis_url: str) -> None:
    app, gate, begun = Application(), asyncio.Event(), list[bytes]()

    @app.inbox()
    async def handle(message: InboundMessage) -> None:
        begun.append(message.payload)
        await gate.wait()

    async with sample_runtime(redis_url, limits={"inbox_keys_max": 3}) as runtime:
        for number in range(10):
            await runtime.store(RoutingService).send(f"k{number}", b"x")
        async with inbox(runtime, app) as service:
            await eventually(lambda: len(begun) == 3, DEADLINE_S)
            assert service.claimed_keys == 3
            assert len(begun) == 3
            gate.set()
            await eventually(lambda: settled(runtime), DEADLINE_S)
    assert len(begun) == 10


@pytest.mark.limit("inbox_delayed_keys_max")
async def test_an_instance_holds_a_limited_number_of_failing_keys_until_they_end(
    redis_url: str,
) -> None:
    app, healed, done, held = Application(), asyncio.Event(), set[bytes](), list[int]()

    @app.inbox(retries=50, backoff="fixed")
    async def handle(message: InboundMessage) -> None:
        held.append(service.claimed_keys)
        if not healed.is_set():
            raise ValueError("not yet")
        done.add(message.payload)

    limits, rules = {"inbox_delayed_keys_max": 3}, {"inbox_handlers": 1, "inbox_attempts": 50}
    async with sample_runtime(redis_url, limits=limits, routing=rules) as runtime:
        for number in range(10):
            await runtime.store(RoutingService).send(f"k{number}", b"%d" % number)
        async with inbox(runtime, app) as service:
            await eventually(lambda: service.metrics.failed >= 10, DEADLINE_S)
            assert max(held) <= 3 + 1, "those that wait, and the one that is handled"
            healed.set()
            await eventually(lambda: settled(runtime), DEADLINE_S)
    assert len(done) == 10


@pytest.mark.limit("deliveries_bytes_max")
async def test_a_deliverer_holds_a_limited_number_of_bytes_and_delivers_all(
    redis_url: str,
) -> None:
    gate, arrived = asyncio.Event(), list[int]()

    async def receive(request: web.Request) -> web.Response:
        arrived.append(len(await request.read()))
        await gate.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/{name}", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    limits: dict[str, Any] = {"limits": {"deliveries_bytes_max": 10_000}}
    try:
        async with delivering(redis_url, **limits) as (runtime, store, _):
            for number in range(10):
                await store.push(f"http://127.0.0.1:{port}/{number}", b"x" * 3_000, {})
            await eventually(lambda: len(arrived) >= 3, DEADLINE_S)
            assert len(arrived) <= 4, "one call may exceed the limit by one item"
            gate.set()
            await eventually(lambda: len(arrived) == 10, DEADLINE_S)
            assert runtime is not None
    finally:
        await runner.cleanup()
