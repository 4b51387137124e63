"""The relay and bad input: an error, nothing queued, and the next message is accepted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from angarium.routing import relay as relay_module
from angarium.routing.relay import Relay
from angarium.routing.relay_http import REQUEST_S_MAX
from angarium.runtime.errors import SettingInvalid
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.routing.harness import counts, envelope, events

INBOUND = [["http", "127.0.0.1", 0], ["ws", "127.0.0.1", 0]]
DEADLINE_S = 40.0


@asynccontextmanager
async def running(
    redis_url: str, **overrides: Any
) -> AsyncIterator[tuple[Runtime, Relay, aiohttp.ClientSession]]:
    routing = {"inbound": INBOUND, **overrides.pop("routing", {})}
    async with sample_runtime(redis_url, routing=routing, **overrides) as runtime:
        relay = Relay(runtime)
        await relay.start()
        try:
            async with aiohttp.ClientSession() as client:
                yield runtime, relay, client
        finally:
            await relay.stop(5)


def url(relay: Relay) -> str:
    return f"http://127.0.0.1:{relay.ports['http']}/"


async def raw(relay: Relay, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.ports["http"])
    writer.write(data)
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await reader.read()
    finally:
        writer.close()


BAD = [
    (b"not json", 400, "envelope_invalid"),
    (b"{}", 400, "envelope_invalid"),
    (b'{"protected": "!"}', 400, "envelope_invalid"),
    (envelope(*(f"key{number}" for number in range(1_000))), 413, "limit_exceeded"),
]


@pytest.mark.parametrize(("body", "status", "code"), BAD)
async def test_bad_input_over_http_gets_an_error_and_is_not_queued(
    redis_url: str, body: bytes, status: int, code: str
) -> None:
    async with running(redis_url) as (runtime, relay, client):
        answer = await client.post(url(relay), data=body)
        assert answer.status == status
        assert answer.content_type == "application/problem+json"
        assert (await answer.json(content_type=None))["code"] == code
        assert (await client.post(url(relay), data=envelope("k"))).status == 200
        assert await counts(runtime) == {"_k": 1}
        assert [event.key for event in await events(runtime)] == ["k"]


@pytest.mark.limit("http_body_bytes_max")
async def test_a_body_over_the_limit_is_refused_before_it_is_sent(redis_url: str) -> None:
    async with running(redis_url, limits={"http_body_bytes_max": 10_000}) as (_, relay, client):
        answer = await raw(relay, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")
        big = envelope("k", text="x" * 20_000)
        async with client.ws_connect(f"ws://127.0.0.1:{relay.ports['ws']}") as socket:
            await socket.send_bytes(big)
            message = await socket.receive(DEADLINE_S)
            assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        assert (await client.post(url(relay), data=envelope("k"))).status == 200


async def test_bad_input_over_websocket_closes_with_the_reason(redis_url: str) -> None:
    async with running(redis_url) as (runtime, relay, client):
        async with client.ws_connect(f"ws://127.0.0.1:{relay.ports['ws']}") as socket:
            await socket.send_str("not json")
            message = await socket.receive(DEADLINE_S)
            assert message.type == aiohttp.WSMsgType.CLOSE
            assert message.data == 1007
            assert str(message.extra).startswith("envelope_invalid")
        async with client.ws_connect(f"ws://127.0.0.1:{relay.ports['ws']}") as socket:
            for number in range(10):
                await socket.send_bytes(envelope("k", text=str(number)))

            async def queued() -> bool:
                return await counts(runtime) == {"_k": 10}

            await eventually(queued, DEADLINE_S)


async def test_requests_of_one_connection_are_answered_in_order(redis_url: str) -> None:
    async with running(redis_url) as (runtime, relay, _):
        body = envelope("k")
        head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
        good = head + b"\r\n" + body
        bad = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
        asked = b"GET /?c_i=x HTTP/1.1\r\nHost: x\r\n\r\n"
        last = head + b"Connection: close\r\n\r\n" + body
        answer = await raw(relay, good + bad + good + asked + last)
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", answer)
        assert statuses == [b"200", b"400", b"200", b"200", b"200"]
        assert b"invitation" in answer
        assert await counts(runtime) == {"_k": 3}


async def test_a_peer_that_stopped_writing_gets_all_its_answers(redis_url: str) -> None:
    async with running(redis_url) as (runtime, relay, _):
        body = envelope("k")
        one = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.ports["http"])
        writer.write((one + body) * 3)
        writer.write_eof()
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
        writer.close()
        assert answer.count(b"HTTP/1.1 200 ") == 3
        assert await counts(runtime) == {"_k": 3}


async def test_a_client_that_sends_too_slowly_is_disconnected_and_others_are_served(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angarium.routing.relay_http.REQUEST_S_MAX", 0.05)
    assert REQUEST_S_MAX > 1
    async with running(redis_url) as (_, relay, client):
        answer = await raw(relay, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nslow")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert (await client.post(url(relay), data=envelope("k"))).status == 200


@pytest.mark.limit("relay_connections_max")
async def test_a_connection_over_the_limit_is_refused(redis_url: str) -> None:
    async with running(redis_url, limits={"relay_connections_max": 2}) as (_, relay, client):
        held = [await asyncio.open_connection("127.0.0.1", relay.ports["http"]) for _ in range(2)]
        await eventually(lambda: sum(len(d.connections) for d in relay.intakes) == 2, DEADLINE_S)
        answer = await raw(relay, b"")
        assert answer.startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()
        await eventually(lambda: not any(d.connections for d in relay.intakes), DEADLINE_S)
        assert (await client.post(url(relay), data=envelope("k"))).status == 200


async def test_a_caller_without_a_response_gets_an_empty_one_after_the_timeout(
    redis_url: str,
) -> None:
    fast = {"direct_response_timeout_ms": 50}
    async with running(redis_url, routing=fast) as (runtime, relay, client):
        body = envelope("k", return_route="all")
        answer = await client.post(url(relay), data=body)
        assert (answer.status, await answer.read()) == (200, b"")
        assert len(relay.calls) == 0
        assert await counts(runtime) == {"_k": 1}, "the message is there all the same"


@pytest.mark.limit("relay_callers_max")
async def test_a_waiting_caller_over_the_limit_is_refused(redis_url: str) -> None:
    async with running(redis_url, limits={"relay_callers_max": 1}) as (runtime, relay, client):
        body = envelope("k", return_route="all")
        first = asyncio.ensure_future(client.post(url(relay), data=body))
        await eventually(lambda: len(relay.calls) == 1, DEADLINE_S)
        assert (await client.post(url(relay), data=body)).status == 503
        assert (await client.post(url(relay), data=envelope("k"))).status == 200
        relay.calls.end_all()
        assert (await first).status == 200
        assert await counts(runtime) == {"_k": 2}


async def test_other_methods_are_refused_and_get_explains_an_invitation(redis_url: str) -> None:
    async with running(redis_url) as (_, relay, client):
        assert (await client.put(url(relay), data=b"x")).status == 405
        assert (await client.get(url(relay))).status == 200
        assert (await client.head(url(relay))).status == 200
        answer = await client.get(f"{url(relay)}status/ready")
        assert await answer.json() == {"ready": True}
        await relay.quiet()
        assert not relay.ready


def test_a_port_in_use_and_an_impossible_layout_are_refused(redis_url: str) -> None:
    from angarium.runtime.application import Application

    inbound = {"inbound": INBOUND, "layout": "acapy"}
    settings = load(redis_url=redis_url, routing=inbound, partitions=4)
    with pytest.raises(SettingInvalid, match="ANGARIUM_ROUTING__LAYOUT"):
        relay_module.check(settings, Application())
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = {"inbound": [["http", "127.0.0.1", taken.getsockname()[1]]]}
        with pytest.raises(SettingInvalid, match="is taken"):
            relay_module.check(load(redis_url=redis_url, routing=busy), Application())
