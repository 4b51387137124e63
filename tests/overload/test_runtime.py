"""The limits of the runtime and the server that no other test fills."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest

from angarium.runtime.errors import Overloaded
from angarium.runtime.limits import Limits
from angarium.runtime.outbound import Outbound
from angarium.runtime.tokens import TokenStore
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.runtime.outbound_peer import EMPTY, answering, serving
from tests.security.wire import PATIENCE_S, api


@pytest.mark.limit("tokens_max")
async def test_a_full_list_of_tokens_takes_one_when_another_is_revoked(redis_url: str) -> None:
    async with sample_runtime(redis_url, limits={"tokens_max": 2}) as runtime:
        store = TokenStore(runtime)
        for name in ("a", "b"):
            await store.create(name, "read")
        with pytest.raises(Overloaded, match="tokens_max is full at 2"):
            await store.create("c", "read")
        first, _ = await store.listed()
        await store.revoke(first.id)
        await store.create("c", "read")
        assert len(await store.all()) == 2


@pytest.mark.limit("live_clients_max")
async def test_live_views_over_the_limit_are_refused_until_one_has_gone(
    redis_url: str, no_settings: object
) -> None:
    async with api(redis_url, limits={"live_clients_max": 2}) as (_, port):
        url = f"http://127.0.0.1:{port}/v1/live"
        async with aiohttp.ClientSession() as session, AsyncExitStack() as views:
            for _ in range(2):
                view = await views.enter_async_context(session.get(url))
                assert (await view.content.readline()).startswith(b"event: overview")
            async with session.get(url) as refused:
                assert refused.status == 503
                assert (await refused.json(content_type=None))["code"] == "overloaded"
            view.close()

            async def accepted() -> bool:
                async with session.get(url) as another:
                    return another.status == 200

            await eventually(accepted, PATIENCE_S)


@pytest.mark.limit("subscription_messages_max", "subscription_bytes_max")
@pytest.mark.parametrize(
    "limits", [{"subscription_messages_max": 10}, {"subscription_bytes_max": 100_000}]
)
async def test_a_subscriber_that_does_not_handle_its_notices_stops_reading(
    redis_url: str, limits: dict[str, int]
) -> None:
    """Redis keeps the others, and the subscriber reads them when it has space."""
    count, size = 1_000, 10_000
    async with sample_runtime(redis_url, limits=limits) as runtime:
        channel = f"{runtime.settings.prefix}notices"
        async with runtime.subscribe(channel) as subscription:
            await subscription.receive()  # the subscription is confirmed
            for number in range(count):
                payload = str(number).encode().ljust(size)
                await runtime.redis.call("PUBLISH", channel, payload)
            await eventually(lambda: len(subscription._messages) >= 10, PATIENCE_S)
            assert len(subscription._messages) < count / 2
            seen: list[int] = []
            while len(seen) < count:
                batch = await subscription.receive()
                assert not batch.gap
                seen += [int(each.payload) for each in batch.messages]
            assert seen == list(range(count))


@pytest.mark.limit("outbound_connections_max", "outbound_host_connections_max")
async def test_requests_beyond_the_connections_wait_for_one() -> None:
    limits = Limits(outbound_connections_max=3, outbound_host_connections_max=2)
    async with (
        serving(answering()) as one,
        serving(answering()) as other,
        Outbound(allow_private=True, timeout_s=PATIENCE_S, limits=limits) as client,
    ):
        sending = [
            asyncio.ensure_future(client.send("GET", peer.url)) for peer in [one] * 5 + [other] * 5
        ]
        await eventually(lambda: one.connections + other.connections == 3, PATIENCE_S)
        assert (one.connections, other.connections) == (2, 1)
        for each in sending:
            each.cancel()
        await asyncio.wait(sending)
        async with serving(answering(EMPTY)) as peer:
            assert (await client.send("GET", peer.url)).ok
