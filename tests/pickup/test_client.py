"""The clients of the gateway: what they restore after a lost connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from angarium.pickup.client import CallRefused, PickupClient, SyncPickupClient
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.pickup.harness import DID, Inbox, connected, gateway, sqlite, url_of


async def test_the_client_connects_again_with_its_sessions(redis_url: str, tmp_path: Path) -> None:
    inbox, port, database = Inbox(), free_port(), sqlite(tmp_path)
    prefix = f"t{tmp_path.name}:"
    async with gateway(redis_url, database, prefix=prefix, port=port) as service:
        client = PickupClient(url_of(service), on_messages=inbox)
        await client.__aenter__()
        await client.add_live_session("c1", "s1")
        first = await client.add_message("c1", [DID], 1)
        await inbox.has(first)
        await client.remove_messages("c1", [first])
    async with gateway(redis_url, database, prefix=prefix, port=port):
        await eventually(lambda: client.connections == 2, 60)
        second = await client.add_message("c1", [DID], 2)
        await inbox.has(second)
        assert inbox.ids == [first, second]
        await client.__aexit__()


async def test_the_client_connects_again_if_the_gateway_dies_during_its_first_call(
    redis_url: str, tmp_path: Path
) -> None:
    port, met = free_port(), asyncio.Event()

    async def rude(request: web.Request) -> web.WebSocketResponse:
        """Accepts the connection, reads the first call, and aborts."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        met.set()
        assert request.transport is not None
        request.transport.abort()
        return socket

    app = web.Application()
    app.router.add_get("/", rude)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    client = PickupClient(f"ws://127.0.0.1:{port}/")
    async with asyncio.TaskGroup() as tasks:
        entering = tasks.create_task(client.__aenter__())
        await asyncio.wait_for(met.wait(), 30)
        await runner.cleanup()
        async with gateway(redis_url, sqlite(tmp_path), port=port):
            await entering
            assert await client.ping() == "pong"
            await client.__aexit__()


async def test_removing_another_session_keeps_the_clients_own(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path)) as service,
        connected(service) as (client, inbox),
    ):
        await client.add_live_session("c1", "s2")
        assert await client.remove_live_session("c1", "s1") is False
        client.reconnect()
        await eventually(lambda: client.connections == 2, 60)
        message = await client.add_message("c1", [DID], 1)
        await inbox.has(message)


async def test_the_sync_client_has_every_method(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        url = url_of(service)

        def use() -> None:
            with SyncPickupClient(url) as client:
                assert client.ping() == "pong"
                message = client.add_message("c1", [DID], {"a": 1})
                assert client.get_available_message_count("c1") == 1
                client.add_live_session("c1", "s1")
                delivery = next(client.deliveries(timeout_s=30))
                assert [each.id for each in delivery.messages] == [message]
                assert delivery.messages[0].encrypted_message == {"a": 1}
                client.remove_messages("c1", [message])
                assert client.get_live_session("c1")
                assert client.remove_live_session("c1")
                assert client.take_from_queue("c1") == []
                client.remove_all_messages("c1", DID)
                with pytest.raises(CallRefused) as error:
                    client.get_available_message_count("a b")
                assert error.value.rpc_code == -32602

        await asyncio.to_thread(use)
