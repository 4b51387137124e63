"""Relay, inbox and deliverer as a user runs them: real processes, over HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from angarium.routing.outbound_store import OutboundStore
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.routing.harness import envelope, events, routing

DEADLINE_S = 40.0
APP = ["--app", "tests.routing.app:app"]


def environment(settings: Any, folder: Path | None = None, **more: str) -> dict[str, str]:
    found = {
        "ANGARIUM_REDIS_URL": settings.redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_PARTITIONS": str(settings.partitions),
        "INBOUND_TRANSPORT_CONFIG": '[["http","127.0.0.1","0"],["ws","127.0.0.1","0"]]',
        **more,
    }
    return found if folder is None else {**found, "HISTORY": str(folder)}


def received(folder: Path) -> list[str]:
    records = History.read(*folder.glob("inbox-*.jsonl")).records()
    return [record.id for record in records if record.kind == "received"]


@asynccontextmanager
async def sink(statuses: dict[str, int]) -> AsyncIterator[tuple[str, list[tuple[str, bytes]]]]:
    """Somebody to deliver to: its URL, and what came; a path may have a status of its own."""
    came: list[tuple[str, bytes]] = []

    async def take(request: web.Request) -> web.StreamResponse:
        if request.headers.get("upgrade", "").lower() == "websocket":
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            async for message in socket:
                came.append((request.path, message.data))
            return socket
        came.append((request.path, await request.read()))
        status = statuses.get(request.path, 200)
        headers = {"location": "/elsewhere"} if 300 <= status < 400 else {}
        return web.Response(status=status, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", take)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}", came
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("layout", ["native", "acapy"])
async def test_a_message_goes_from_a_post_to_the_handler_and_back(
    redis_url: str, tmp_path: Path, layout: str
) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        env = environment(runtime.settings, tmp_path, ANGARIUM_ROUTING__LAYOUT=layout)
        async with (
            RoleProcess(["serve", "relay"], env) as relay,
            RoleProcess(["serve", "inbox", *APP], env) as inbox,
            aiohttp.ClientSession() as client,
        ):
            url = f"http://127.0.0.1:{relay.ports['http']}"
            for number in range(20):
                answer = await client.post(url, data=envelope("key", text=f"m{number}"))
                assert answer.status == 200
                assert await answer.read() == b""
            asked = envelope("key", text="hi", return_route="all")
            answer = await client.post(url, data=asked)
            assert await answer.json() == {"answer": "hi", "transport": "http"}
            async with client.ws_connect(f"ws://127.0.0.1:{relay.ports['ws']}") as socket:
                await socket.send_bytes(envelope("other", text="w1"))
                await socket.send_str(envelope("other", text="w2").decode())
                asked = envelope("other", text="w3", version=2, return_route="thread")
                await socket.send_bytes(asked)
                message = await socket.receive(DEADLINE_S)
                assert json.loads(message.data) == {"answer": "w3", "transport": "ws"}
            assert received(tmp_path)[:21] == [f"m{number}" for number in range(20)] + ["hi"]
            assert received(tmp_path)[21:] == ["w1", "w2", "w3"]
            state = await store.show("key")
            assert (state.pending, state.waiting) == (0, 0)

            async def all_handled() -> bool:
                # An answer leaves before its message counts as handled.
                names = [event.event for event in await events(runtime)]
                return names.count("accepted") == names.count("handled") == 24

            await eventually(all_handled, DEADLINE_S)
            assert relay.terminate() == 0
            assert inbox.terminate() == 0
        instances, _ = await store.instances()
        assert [each.live for each in instances] == [layout == "acapy"], "retired, with its keys"


async def test_one_process_may_run_relay_inbox_and_deliverer(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with routing(any_redis_url) as (runtime, _):
        env = environment(runtime.settings, tmp_path, ANGARIUM_ALLOW_PRIVATE_ADDRESSES="true")
        roles = ["serve", "relay", "inbox", "deliverer", *APP]
        async with (
            RoleProcess(roles, env, ready_lines=3) as process,
            aiohttp.ClientSession() as client,
            sink({}) as (url, came),
        ):
            relay = f"http://127.0.0.1:{process.ports['http']}"
            assert (await client.post(relay, data=envelope("k", text="one"))).status == 200
            await eventually(lambda: received(tmp_path) == ["one"], DEADLINE_S)
            await OutboundStore(runtime, "native").push(f"{url}/a", b"out", {})
            await eventually(lambda: came == [("/a", b"out")], DEADLINE_S)
            process.send(signal.SIGTERM)
            assert process.wait() == 0


async def test_the_deliverer_uses_http_and_websocket_and_makes_unreadable_items_dead_letters(
    redis_server: ServerProcess,
) -> None:
    async with routing(redis_server.url) as (runtime, _):
        env = environment(runtime.settings, ANGARIUM_ALLOW_PRIVATE_ADDRESSES="true")
        store = OutboundStore(runtime, "native")
        witness = redis_server.client()
        queue = f"{runtime.settings.prefix}acapy_outbound"
        async with RoleProcess(["serve", "deliverer"], env) as role, sink({}) as (url, came):
            for nonsense in (b"not json", b"{}", b'{"service":{"url":1}}', b"\xff\xfe", b"[]"):
                witness.rpush(queue, nonsense)
            published = {"service": {"url": f"{url}/p"}, "payload": "cA==", "headers": {"a": "b"}}
            witness.rpush(queue, json.dumps(published))
            await store.push(f"{url}/h", b"over http", {"Content-Type": "text/plain"})
            await store.push(url.replace("http:", "ws:") + "/w", b"over ws", {})
            expected = {("/p", b"p"), ("/h", b"over http"), ("/w", b"over ws")}
            await eventually(lambda: set(came) == expected, DEADLINE_S)

            async def all_ended() -> bool:
                names = [event.event for event in await events(runtime)]
                ends = names.count("outbound_delivered"), names.count("outbound_dead")
                assert ends == (3, 5), "\n".join(role.stderr()[-5:])
                return True

            await eventually(all_ended, DEADLINE_S)
            assert len(await store.dead_letters(10)) == 5
            assert role.alive
            assert role.terminate() == 0
        assert len(await events(runtime, "outbound_accepted")) == 8


async def test_failures_are_retried_and_private_addresses_are_refused(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, _):
        store = OutboundStore(runtime, "native")
        env = environment(runtime.settings, ANGARIUM_ALLOW_PRIVATE_ADDRESSES="true")
        statuses = {"/500": 500, "/302": 302, "/404": 404}
        async with RoleProcess(["serve", "deliverer"], env), sink(statuses) as (url, came):
            for path in statuses:
                await store.push(url + path, b"x", {})
            await store.push("http://127.0.0.1:1/refused", b"x", {})

            async def all_failed() -> bool:
                # By what was noted: on a busy machine the first is back from its pause before
                # the last has failed, so that they never wait together.
                found = await events(runtime, "outbound_retried")
                first = {event.key: event.detail for event in found if event.attempt == 1}
                assert len(first) == 4, first
                answers = {str(detail) for detail in first.values()}
                return {"answered 500", "answered 302", "answered 404"} < answers

            await eventually(all_failed, DEADLINE_S)
            assert {path for path, _ in came} == set(statuses), "redirects are not followed"
        env = environment(runtime.settings)
        async with RoleProcess(["serve", "deliverer"], env), sink({}) as (url, came):
            await store.push(f"{url}/private", b"x", {})

            async def refused() -> bool:
                return any(b"not a public address" in each for each in await store.dead_letters(10))

            await eventually(refused, DEADLINE_S)
            assert came == []


async def test_two_relays_give_each_caller_its_own_response(redis_url: str, tmp_path: Path) -> None:
    for layout in ("native", "acapy"):
        async with routing(redis_url, layout=layout) as (runtime, _):
            env = environment(runtime.settings, ANGARIUM_ROUTING__LAYOUT=layout)
            async with (
                RoleProcess(["serve", "relay"], env) as one,
                RoleProcess(["serve", "relay"], env) as two,
                RoleProcess(["serve", "inbox", *APP], env),
                aiohttp.ClientSession() as client,
            ):

                async def ask(
                    relay: RoleProcess, text: str, client: aiohttp.ClientSession = client
                ) -> str:
                    body = envelope(f"k-{text}", text=text, return_route="all")
                    url = f"http://127.0.0.1:{relay.ports['http']}"
                    answer = await client.post(url, data=body)
                    return str((await answer.json())["answer"])

                texts = [f"t{number}" for number in range(30)]
                asked = [ask(two if n % 2 else one, text) for n, text in enumerate(texts)]
                assert await asyncio.gather(*asked) == texts


async def test_status_endpoints_require_their_key(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, _):
        env = environment(
            runtime.settings,
            STATUS_ENDPOINT_HOST="127.0.0.1",
            STATUS_ENDPOINT_PORT="0",
            STATUS_ENDPOINT_API_KEY="secret",
        )
        for role in ("relay", "deliverer"):
            async with (
                RoleProcess(["serve", role], env) as process,
                aiohttp.ClientSession() as client,
            ):
                url = f"http://127.0.0.1:{process.ports['status']}/status"
                key = {"access_token": "secret"}
                assert (await client.get(f"{url}/ready")).status == 403
                answer = await client.get(f"{url}/ready", headers=key)
                assert await answer.json() == {"ready": True}
                answer = await client.get(f"{url}/live", headers=key)
                assert await answer.json() == {"alive": True}
                assert (await client.get(f"{url}/else", headers=key)).status == 404
