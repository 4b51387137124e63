"""The limits of the pickup gateway, filled by real clients."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from angarium.pickup.client import CallRefused, PickupClient
from angarium.pickup.client_messages import Delivery, QueuedMessage
from angarium.pickup.limits import PickupLimits
from angarium.pickup.model import PushToken
from angarium.runtime.errors import AngariumError
from tests.kit.eventually import eventually
from tests.kit.server import ServerProcess
from tests.pickup.harness import DID, all_done, connected, gateway, sqlite
from tests.pickup.test_backpressure import hear, say, unread


async def refusal(call: Any) -> str | None:
    with pytest.raises(CallRefused) as error:
        await call
    return error.value.reason


@pytest.mark.limit("pickup_client_sessions_max")
async def test_a_client_full_of_sessions_opens_one_when_another_has_ended(
    redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_client_sessions_max": 2}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, inbox),
    ):
        for name in ("c1", "c2"):
            await client.add_live_session(name, "s")
        assert await refusal(client.add_live_session("c3", "s")) == "sessions_exceeded"
        await client.remove_live_session("c1", "s")
        await client.add_live_session("c3", "s")
        await inbox.has(await client.add_message("c3", [DID], 1))


@pytest.mark.limit("pickup_client_calls_max")
async def test_a_client_that_calls_too_often_is_refused_for_a_second(
    redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_client_calls_max": 8}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, _),
    ):
        calls = await asyncio.gather(*(client.ping() for _ in range(60)), return_exceptions=True)
        refused = [each for each in calls if isinstance(each, CallRefused)]
        assert {each.reason for each in refused} == {"rate_exceeded"}
        assert await eventually(client.ping, 30, ignoring=(CallRefused,)) == "pong"


@pytest.mark.limit("pickup_queue_messages_max")
async def test_a_full_queue_takes_a_message_when_one_is_removed(
    redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_queue_messages_max": 2}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, _),
    ):
        first, second = [await client.add_message("c", [DID], number) for number in range(2)]
        assert await refusal(client.add_message("c", [DID], 2)) == "queue_full"
        await client.remove_messages("c", [first])
        third = await client.add_message("c", [DID], 3)
        assert [each.id for each in await client.take_from_queue("c")] == [second, third]


async def _fits(client: PickupClient, payload: Any) -> None:
    message = await client.add_message("c", [DID], payload)
    assert [each.id for each in await client.take_from_queue("c")] == [message]


@pytest.mark.limit(
    "pickup_message_bytes_max",
    "pickup_payload_levels_max",
    "pickup_message_dids_max",
    "pickup_remove_messages_max",
)
async def test_a_call_over_a_limit_changes_nothing(redis_url: str, tmp_path: Path) -> None:
    limits = {
        "pickup_message_bytes_max": 100,
        "pickup_payload_levels_max": 5,
        "pickup_message_dids_max": 3,
        "pickup_remove_messages_max": 4,
    }
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, _),
    ):
        deep: Any = 1
        for _ in range(5):
            deep = [deep]
        for payload in ("x" * 101, [deep]):
            assert await refusal(client.add_message("c", [DID], payload)) is not None
        assert await refusal(client.add_message("c", [DID] * 4, 1)) == "limit_exceeded"
        assert await client.take_from_queue("c") == []
        message = await client.add_message("c", [DID] * 3, deep)
        assert await refusal(client.remove_messages("c", [message] * 5)) == "limit_exceeded"
        assert [each.id for each in await client.take_from_queue("c")] == [message]
        await client.remove_messages("c", [message, "a", "b", "c"])
        await _fits(client, "x" * 98)


@pytest.mark.limit("pickup_push_token_bytes_max")
async def test_a_push_token_over_the_limit_is_refused_with_its_message(
    redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_push_token_bytes_max": 50}
    urls = {"push_url": "http://127.0.0.1:9/push"}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits, **urls) as service,
        connected(service) as (client, _),
    ):
        long, short = PushToken("x" * 50), PushToken("x" * 40)
        assert await refusal(client.add_message("c", [DID], 1, long)) == "limit_exceeded"
        message = await client.add_message("c", [DID], 1, short)
        assert [each.id for each in await client.take_from_queue("c")] == [message]


@pytest.mark.limit("pickup_take_messages_max", "pickup_take_bytes_max")
async def test_a_take_gives_a_limited_answer_and_the_next_one_the_rest(
    redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_take_messages_max": 4, "pickup_take_bytes_max": 5_000}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, _),
    ):
        small = [await client.add_message("small", [DID], number) for number in range(6)]
        large = [await client.add_message("large", [DID], "x" * 2_000) for _ in range(4)]
        for queue, ids, most in (("small", small, 4), ("large", large, 2)):
            taken = [each.id for each in await client.take_from_queue(queue)]
            assert taken == ids[:most]
            taken += [each.id for each in await client.take_from_queue(queue)]
            assert taken == ids


@pytest.mark.limit("pickup_batch_calls_max")
async def test_a_batch_of_too_many_calls_is_refused_whole(redis_url: str, tmp_path: Path) -> None:
    limits = {"pickup_batch_calls_max": 3}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        unread(service) as wire,
    ):
        await say(wire, *[("ping", [])] * 4)
        assert (await hear(wire))["error"]["code"] == -32600
        await say(wire, *[("ping", [])] * 3)
        assert [each["result"] for each in await hear(wire)] == ["pong"] * 3


@pytest.mark.limit("pickup_client_answer_bytes_max")
async def test_the_answers_of_a_batch_are_limited_and_the_rest_can_be_asked_for(
    redis_url: str, tmp_path: Path
) -> None:
    limits = {"pickup_client_answer_bytes_max": 1_500_000, "pickup_take_bytes_max": 500_000}
    async with (
        gateway(redis_url, sqlite(tmp_path), limits=limits) as service,
        connected(service) as (client, _),
        unread(service) as wire,
    ):
        await all_done(*(client.add_message("c", [DID], "x" * 400_000) for _ in range(10)))
        await say(wire, *[("takeFromQueue", {"connectionId": "c", "limit": 1})] * 10)
        answers = await hear(wire)
        taken = [each["result"][0]["id"] for each in answers if "result" in each]
        refused = {each["error"]["data"]["code"] for each in answers if "error" in each}
        assert 0 < len(taken) < 10
        assert refused == {"answers_exceeded"}
        while len(taken) < 10:
            await say(wire, ("takeFromQueue", {"connectionId": "c", "limit": 1}))
            taken.append((await hear(wire))["result"][0]["id"])
        assert len(set(taken)) == 10


@pytest.mark.limit("pickup_client_request_bytes_max", "pickup_gateway_request_bytes_max")
@pytest.mark.parametrize("limit", ["client", "gateway"])
async def test_calls_without_an_answer_are_limited_in_bytes(tmp_path: Path, limit: str) -> None:
    """While Redis does not answer, the gateway stops reading; then every message is stored."""
    limits = {f"pickup_{limit}_request_bytes_max": 200_000}
    with ServerProcess() as server:
        async with (
            gateway(server.url, sqlite(tmp_path), limits=limits) as service,
            connected(service, call_timeout_s=60) as (client, _),
        ):
            await client.ping()
            with server.paused():
                adding = [
                    asyncio.ensure_future(client.add_message("c", [DID], "x" * 20_000))
                    for _ in range(100)
                ]
                await eventually(lambda: service.rpc.unanswered.total_bytes >= 200_000, 30)
                await asyncio.sleep(0)
                assert service.rpc.unanswered.total_bytes < 400_000
            ids = await asyncio.gather(*adding)
            assert len(set(ids)) == 100
            assert await client.get_available_message_count("c", DID) == 100
            await eventually(lambda: service.rpc.unanswered.total_bytes == 0, 30)


def delivery(number: int, size: int = 10) -> Delivery:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Delivery("c", [QueuedMessage(str(number), at, None, raw=b"x" * size)])


@pytest.mark.limit("pickup_unread_deliveries_max", "pickup_unread_bytes_max")
async def test_a_program_that_does_not_read_its_deliveries_keeps_the_newest() -> None:
    """The gateway has the others: nobody acknowledged them."""
    limits = PickupLimits(pickup_unread_deliveries_max=3, pickup_unread_bytes_max=1_000)
    client = PickupClient("ws://127.0.0.1:1/", limits=limits)
    for number in range(10):
        client._delivered(delivery(number))
    assert client.dropped == 7
    client._delivered(delivery(10, 995))
    assert client.dropped == 10, "its bytes leave no space for others"
    client._delivered(delivery(11, 5_000))
    deliveries = client.deliveries()
    assert (await anext(deliveries)).messages[0].id == "11"
    for number in (12, 13):
        client._delivered(delivery(number))
    assert [(await anext(deliveries)).messages[0].id for _ in range(2)] == ["12", "13"]


@pytest.mark.limit("pickup_tenant_clients_max")
async def test_a_tenant_full_of_connections_leaves_those_of_others(
    redis_url: str, tmp_path: Path
) -> None:
    limits, tokens = {"pickup_tenant_clients_max": 2}, ["one:a", "other:b"]
    async with gateway(redis_url, sqlite(tmp_path), limits=limits, tokens=tokens) as service:
        url = f"ws://127.0.0.1:{service.ports['gateway']}/"
        async with PickupClient(url, token="a") as first, PickupClient(url, token="a") as second:
            assert await first.ping()
            assert await second.ping()
            third = PickupClient(url, token="a", call_timeout_s=1)
            with pytest.raises(AngariumError):
                async with third:
                    await third.ping()
            async with PickupClient(url, token="b") as foreign:
                assert await foreign.ping()
            assert await first.ping()
        await eventually(lambda: not service.rpc.clients, 10)
        async with PickupClient(url, token="a") as again:
            assert await again.ping()
