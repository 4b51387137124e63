"""Peers that take places and give nothing: slow, silent, unread, too many."""

from __future__ import annotations

import asyncio
import importlib
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from angarium import Angarium
from angarium.dispatch import security
from angarium.dispatch.dispatcher import Dispatcher
from angarium.dispatch.protocol import Hello, SendBytes, WorkerProtocol, encode_hello
from angarium.dispatch.worker import UNAUTHENTICATED_MAX
from angarium.pickup import gateway as pickup_gateway
from angarium.routing import relay as relay_module
from angarium.runtime.errors import SettingInvalid
from angarium.server import connections, http
from angarium.settings import load
from tests.dispatch.harness import dispatch_services
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.pickup.harness import gateway, sqlite
from tests.routing.test_relay import running
from tests.security.wire import PATIENCE_S, api, dialled, handshake, heard, request, said, status_of

SHORT_S = 0.3


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API's patience, so short that a test can outlast it."""

    def limited(connections_max: int) -> type[connections.ApiConnection]:
        return connections.limited(connections_max, SHORT_S, SHORT_S)

    monkeypatch.setattr(http, "limited", limited)


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /healthz",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"ffff\r\n",
        # Answered at once, because there is no such page; its body goes on for ever.
        b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    ],
)
async def test_a_request_to_the_api_that_never_ends_is_given_up(
    redis_url: str, beginning: bytes, short: None, no_settings: object
) -> None:
    async with api(redis_url) as (_, port), dialled(port) as (reader, writer):
        writer.write(beginning)

        async def drip() -> None:
            while beginning and not writer.is_closing():
                writer.write(b"x")
                await asyncio.sleep(SHORT_S / 5)

        async with asyncio.TaskGroup() as group:
            dripping = group.create_task(drip())
            assert status_of(await heard(reader)) in (0, 404)
            dripping.cancel()
        assert status_of(await said(port, request("GET /healthz"))) == 200


async def test_a_connection_that_is_used_outlives_the_time_for_one_request(
    redis_url: str, short: None, no_settings: object
) -> None:
    async with api(redis_url) as (_, port), dialled(port) as (reader, writer):
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 3 * SHORT_S
        while loop.time() < end_s:
            writer.write(request("GET /healthz", close=False))
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                assert status_of(head) == 200
                await reader.readexactly(len(b'{"status":"ok"}'))
            await asyncio.sleep(SHORT_S / 6)


async def test_answers_of_the_api_that_nobody_reads_are_given_up(
    redis_url: str, short: None, no_settings: object
) -> None:
    async with api(redis_url) as (_, port), dialled(port, limit=1) as (_, writer):
        asked = request("GET /openapi.json", close=False)

        async def ask_without_reading() -> None:
            while True:
                writer.write(asked * 20)
                await writer.drain()
                await asyncio.sleep(0)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ask_without_reading(), PATIENCE_S)
        assert status_of(await said(port, request("GET /healthz"))) == 200


@pytest.mark.limit("http_connections_max")
async def test_connections_over_the_limit_of_the_api_are_told_so(
    redis_url: str, no_settings: object
) -> None:
    async with api(redis_url, limits={"http_connections_max": 3}) as (_, port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in held:
            writer.write(request("GET /healthz", close=False))
            assert status_of(await reader.readuntil(b"\r\n\r\n")) == 200
        answer = await said(port, request("GET /healthz"))
        assert status_of(answer) == 503
        assert b'"code":"overloaded"' in answer
        for _, writer in held:
            writer.transport.abort()

        async def module() -> bool:
            return status_of(await said(port, request("GET /healthz"))) == 200

        await eventually(module, PATIENCE_S)


@pytest.mark.limit("pickup_clients_max")
async def test_a_handshake_with_the_gateway_that_never_ends_takes_no_place(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickup_gateway, "HANDSHAKE_S_MAX", 1)
    limits = {"pickup_clients_max": 1}
    async with gateway(redis_url, sqlite(tmp_path), limits=limits) as service:
        port = service.ports["gateway"]
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in slow:
            writer.write(handshake()[:-4])
        async with dialled(port) as (reader, writer):
            writer.write(handshake())
            async with asyncio.timeout(PATIENCE_S):
                assert status_of(await reader.readuntil(b"\r\n\r\n")) == 101
            await eventually(lambda: len(service.rpc.clients) == 1, PATIENCE_S)
            # The one after it is over the limit, and is let go.
            async with dialled(port) as (other, opening):
                opening.write(handshake())
                assert (await heard(other)).endswith(b"\x03\xf0")  # 1008
        for reader, writer in slow:
            assert await heard(reader) == b""
            writer.transport.abort()


async def test_a_handshake_with_the_relay_that_never_ends_is_given_up(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "HANDSHAKE_S_MAX", 1)
    async with running(redis_url) as (_, relay, _), dialled(relay.ports["ws"]) as (reader, writer):
        writer.write(handshake()[:-4])
        assert status_of(await heard(reader)) != 101


@pytest.mark.limit("ack_connections_max")
async def test_who_does_not_prove_to_know_the_token_at_the_ack_port_soon_loses_its_place(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_S_MAX", SHORT_S)
    limits, rules = {"ack_connections_max": 2}, {"ack_port": 0, "token": "secret"}
    async with sample_runtime(redis_url, limits=limits, dispatch=rules) as runtime:
        dispatcher = Dispatcher(runtime)
        await dispatcher.start()
        port = dispatcher.ports["ack"]
        try:
            async with dialled(port) as (kept, writer), dialled(port) as (silent, _):
                await prove(kept, writer)
                # The third takes the place of the one that never spoke, until its own time is up.
                assert b"token_refused" in await said(port)
                assert b"token_refused" not in await heard(silent)
                writer.write(encode_hello(Hello()))
                async with asyncio.timeout(PATIENCE_S):
                    assert await kept.read(5)
        finally:
            await dispatcher.stop(5)


async def prove(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a worker at an ACK port whose token is `secret`."""
    protocol = WorkerProtocol(10_000, "secret", dials=True)
    writer.write(protocol.opening())
    async with asyncio.timeout(PATIENCE_S):
        while not protocol.authenticated:
            for event in protocol.receive(await reader.read(10_000)):
                if isinstance(event, SendBytes):
                    writer.write(event.data)


async def test_who_does_not_prove_to_know_the_token_at_a_workers_port_soon_loses_its_place(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_S_MAX", SHORT_S)
    async with dispatch_services(redis_url, token="secret") as ours:
        worker = await ours.add_worker()
        async with dialled(worker.ports["worker"]) as (silent, _):
            assert b"token_refused" in await heard(silent)


@pytest.mark.parametrize("token", [None, "secret"])
async def test_strangers_at_a_workers_port_without_a_first_frame_soon_lose_their_place(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    monkeypatch.setattr(security, "HANDSHAKE_S_MAX", SHORT_S)
    async with dispatch_services(redis_url, token=token) as ours:
        worker = await ours.add_worker()
        await ours.add_dispatcher()
        await ours.publish(b'{"n":1}')
        await ours.wait_for_results(1)
        async with dialled(worker.ports["worker"]) as (silent, _):
            await heard(silent)
        async with dialled(worker.ports["worker"]) as (cut, writer):
            writer.write(encode_hello(Hello())[:3])
            await heard(cut)
        await ours.publish(b'{"n":2}')
        await ours.wait_for_results(2)
        assert worker.dispatchers == 1


async def test_idle_connections_end_and_busy_ones_stay(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "IDLE_S_MAX", 1.0)
    async with dispatch_services(redis_url, heartbeat_ms=100) as ours:
        worker = await ours.add_worker()
        dispatcher = await ours.add_dispatcher()
        await ours.wait_until(lambda: worker.dispatchers == 1)
        (connection,) = worker._connections
        async with dialled(worker.ports["worker"]) as (once, writer):
            writer.write(encode_hello(Hello()))
            await heard(once)  # it spoke once
        async with dialled(dispatcher.ports["ack"]) as (never, _):
            assert await heard(never) == b"", "no frame that the seed's worker does not know"
        assert worker._connections == {connection}, "the dispatcher's heartbeats keep its own"


async def test_a_flood_of_mute_connections_at_the_ack_port_leaves_a_place_for_a_worker(
    redis_url: str,
) -> None:
    limits = {"ack_connections_max": 10}
    async with dispatch_services(redis_url, limits=limits) as ours, AsyncExitStack() as stack:
        dispatcher = await ours.add_dispatcher()
        port = dispatcher.ports["ack"]
        spoke, writer = await stack.enter_async_context(dialled(port))
        writer.write(encode_hello(Hello()))
        async with asyncio.timeout(PATIENCE_S):
            assert await spoke.read(5)
        for _ in range(50):
            await stack.enter_async_context(dialled(port))
        late, writer = await stack.enter_async_context(dialled(port))
        writer.write(encode_hello(Hello()))
        async with asyncio.timeout(PATIENCE_S):
            assert await late.read(5)
        assert not spoke.at_eof()


@pytest.mark.parametrize("role", ["worker", "dispatcher"])
def test_f67_a_port_beyond_loopback_needs_a_token(role: str) -> None:
    module = importlib.import_module(f"angarium.dispatch.{role}")
    setting = "worker_host" if role == "worker" else "ack_host"
    app = Angarium()
    app.worker(lambda message: message)
    rules = {"ack_port": 0, "worker_port": 0, setting: "0.0.0.0"}
    with pytest.raises(SettingInvalid, match=rf"{setting.upper()}.*ANGARIUM_DISPATCH__TOKEN"):
        module.check(load(dispatch=rules), app)
    with pytest.raises(SettingInvalid):
        module.check(load(dispatch={**rules, "token": ""}), app)
    module.check(load(dispatch={**rules, "token": "secret"}), app)
    module.check(load(dispatch={**rules, setting: "127.0.0.1"}), app)


async def test_strangers_at_a_workers_port_take_few_places_and_never_a_dispatchers(
    redis_url: str,
) -> None:
    async with dispatch_services(redis_url, token="secret") as ours, AsyncExitStack() as stack:
        worker = await ours.add_worker()
        await ours.add_dispatcher()
        await ours.publish(b'{"n":1}')
        await ours.wait_for_results(1)
        opened = [
            await stack.enter_async_context(dialled(worker.ports["worker"]))
            for _ in range(UNAUTHENTICATED_MAX + 50)
        ]
        for reader, _ in opened[:50]:
            await heard(reader)  # the oldest are gone, long before their time is over
        await ours.publish(b'{"n":2}')
        await ours.wait_for_results(2)
        await ours.add_dispatcher()
        await eventually(lambda: worker.dispatchers == 2, PATIENCE_S)


async def test_requests_that_are_sent_at_once_are_answered_in_turn(
    redis_url: str, no_settings: object
) -> None:
    """A client sends thousands without reading; another one is answered meanwhile."""
    count = 5_000
    async with api(redis_url) as (_, port), dialled(port) as (reader, writer):
        writer.write(request("GET /healthz", close=False) * count)
        async with asyncio.timeout(PATIENCE_S):
            assert status_of(await said(port, request("GET /healthz"))) == 200
            answers = 0
            while answers < count:
                head = await reader.readuntil(b"\r\n\r\n")
                assert status_of(head) == 200
                length = re.search(rb"content-length: (\d+)", head)
                assert length is not None
                await reader.readexactly(int(length[1]))
                answers += 1
