"""The relay and bad peers: each gets a response or is disconnected, and none disturbs others."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme

from angarium.routing import relay as relay_module
from angarium.routing.relay import Relay
from angarium.runtime.application import Application
from angarium.runtime.errors import Overloaded, SettingInvalid
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.routing.harness import counts, envelope
from tests.routing.test_relay import DEADLINE_S, INBOUND, raw, running, url

WS_KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"


def connections(relay: Relay) -> int:
    return sum(len(intake.connections) for intake in relay.intakes)


def post(body: bytes, *headers: str) -> bytes:
    lines = ["POST / HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def test_a_peer_that_sends_far_too_much_can_still_read_the_reason(redis_url: str) -> None:
    """Closing at once would reset the connection under an upload, and the 413 would be lost."""
    async with running(redis_url, limits={"http_body_bytes_max": 10_000}) as (_, relay, client):
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.ports["http"])
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
            async with asyncio.timeout(DEADLINE_S):
                for _ in range(50):
                    writer.write(b"x" * 100_000)
                    await writer.drain()
                assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
            writer.close()
        await eventually(lambda: connections(relay) == 0, DEADLINE_S)
        assert (await client.post(url(relay), data=envelope("k"))).status == 200


async def test_an_endless_upload_is_disconnected(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angarium.routing.relay_http.LINGER_S_MAX", 0.05)
    async with running(redis_url, limits={"http_body_bytes_max": 10_000}) as (_, relay, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.ports["http"])
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")

        async def cut_off() -> bool:
            writer.write(b"x" * 1_000)
            await writer.drain()
            return False

        with pytest.raises(ConnectionError):
            await eventually(cut_off, DEADLINE_S)
        await eventually(lambda: connections(relay) == 0, DEADLINE_S)


async def test_a_peer_that_does_not_read_its_responses_is_disconnected(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angarium.routing.relay_http.REQUEST_S_MAX", 0.5)
    async with running(redis_url) as (_, relay, client):
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(("127.0.0.1", relay.ports["http"]))
            peer.setblocking(False)
            ask = b"GET /?c_i=x HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000

            async def cut_off() -> bool:
                try:
                    peer.send(ask)
                except BlockingIOError:
                    return False
                except ConnectionError:
                    return True
                return False

            await eventually(cut_off, DEADLINE_S)
        await eventually(lambda: connections(relay) == 0, DEADLINE_S)
        assert (await client.post(url(relay), data=envelope("k"))).status == 200


async def test_blank_lines_do_not_keep_a_connection_open(redis_url: str) -> None:
    async with running(redis_url) as (_, relay, _):
        assert (await raw(relay, b"\r\n" * 10)).startswith(b"HTTP/1.1 400 ")


async def test_a_caller_that_has_gone_frees_its_slot(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angarium.routing.relay_http.LINGER_S_MAX", 0.05)
    patient = {"direct_response_timeout_ms": 600_000}
    limits = {"relay_callers_max": 2}
    async with running(redis_url, routing=patient, limits=limits) as (runtime, relay, client):
        body = envelope("k", return_route="all")
        for number in range(1, 4):
            _, writer = await asyncio.open_connection("127.0.0.1", relay.ports["http"])
            writer.write(post(body))
            await eventually(lambda: len(relay.calls) == 1, DEADLINE_S)
            writer.close()
            await eventually(lambda: len(relay.calls) == 0, DEADLINE_S)
            socket_url = f"ws://127.0.0.1:{relay.ports['ws']}"
            async with client.ws_connect(socket_url) as peer:
                await peer.send_bytes(body)
                await eventually(lambda: len(relay.calls) == 1, DEADLINE_S)
            await eventually(lambda: len(relay.calls) == 0, DEADLINE_S)
            assert await counts(runtime) == {"_k": 2 * number}, (
                "what it sent is queued all the same"
            )


async def test_a_message_that_can_not_be_queued_uses_no_caller_slot(redis_url: str) -> None:
    async with running(redis_url, limits={"batch_waiting_items_max": 1}) as (_, relay, _):
        body, intake = envelope("k", return_route="all"), relay.intakes[0]
        first = intake.accept(body)
        for _ in range(3):
            with pytest.raises(Overloaded):
                intake.accept(body)
        await asyncio.sleep(0)  # whoever waits for a future hears of its end in the next turn
        assert len(relay.calls) == 1
        relay.calls.end_all()
        assert await first is None


def frame(payload: bytes, opcode: int, *, fin: bool) -> bytes:
    assert len(payload) < 126
    return bytes([opcode | (0x80 if fin else 0), 0x80 | len(payload)]) + b"\0" * 4 + payload


async def websocket(relay: Relay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.ports["ws"])
    head = f"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{WS_KEY}\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(DEADLINE_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return reader, writer


async def test_a_peer_with_an_endless_websocket_message_is_disconnected(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty pieces do not count against the size of a message; their time does."""
    monkeypatch.setattr("angarium.routing.relay_ws.PEER_S_MAX", 0.5)
    async with running(redis_url) as (runtime, relay, client):
        reader, writer = await websocket(relay)
        writer.write(frame(b"{", 2, fin=False))

        async def cut_off() -> bool:
            writer.write(frame(b"", 0, fin=False) * 100)
            try:
                await writer.drain()
            except ConnectionError:
                return True
            return reader.at_eof()

        await eventually(cut_off, DEADLINE_S)
        writer.close()
        await eventually(lambda: connections(relay) == 0, DEADLINE_S)
        async with client.ws_connect(f"ws://127.0.0.1:{relay.ports['ws']}") as peer:
            await peer.send_bytes(envelope("k"))
            await eventually(lambda: relay.queued == 1, DEADLINE_S)
        assert await counts(runtime) == {"_k": 1}


async def test_messages_after_a_bad_one_are_not_queued(redis_url: str) -> None:
    async with running(redis_url) as (runtime, relay, client):
        async with client.ws_connect(f"ws://127.0.0.1:{relay.ports['ws']}") as peer:
            await peer.send_str("not json")
            for _ in range(5):
                await peer.send_bytes(envelope("k"))
            message = await peer.receive(DEADLINE_S)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1007)
        await eventually(lambda: connections(relay) == 0, DEADLINE_S)
        assert await counts(runtime) == {}


async def test_with_a_certificate_http_and_websocket_use_tls(
    redis_url: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(chain))
    issued.private_key_pem.write_to_path(str(key))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    files = {"tls_certificate": str(chain), "tls_key": str(key)}
    async with running(redis_url, routing=files) as (runtime, relay, client):
        secure = f"https://127.0.0.1:{relay.ports['http']}/"
        for _ in range(3):
            answer = await client.post(secure, data=envelope("k"), ssl=trusting)
            assert answer.status == 200
        assert (await client.post(secure, data=b"{}", ssl=trusting)).status == 400
        answer = await client.get(f"{secure}status/ready", ssl=trusting)
        assert await answer.json() == {"ready": True}
        peer_url = f"wss://127.0.0.1:{relay.ports['ws']}"
        async with client.ws_connect(peer_url, ssl=trusting) as peer:
            await peer.send_bytes(envelope("k"))
            await eventually(lambda: relay.queued == 4, DEADLINE_S)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await client.post(secure, data=envelope("k"))
        with pytest.raises(aiohttp.ClientError):
            await client.post(url(relay), data=envelope("k"))
        # A refused peer gets its answer here too, though half a connection can't be closed.
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", relay.ports["http"], ssl=trusting
        )
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
        writer.close()
        assert await counts(runtime) == {"_k": 4}


def test_a_certificate_that_can_not_be_used_is_refused_with_its_setting(
    redis_url: str, tmp_path: Path
) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    for files in (
        {"tls_key": str(nonsense)},
        {"tls_certificate": str(nonsense)},
        {"tls_certificate": str(tmp_path / "missing.pem")},
    ):
        settings = load(redis_url=redis_url, routing={"inbound": INBOUND, **files})
        with pytest.raises(SettingInvalid, match="ANGARIUM_ROUTING__TLS_CERTIFICATE"):
            relay_module.check(settings, Application())


@pytest.mark.limit("relay_idle_s_max", "relay_ws_idle_s_max")
async def test_connections_without_messages_are_closed_on_every_port(redis_url: str) -> None:
    """Nobody keeps a place by sending nothing, or a little at a time."""
    limits = {"relay_idle_s_max": 1, "relay_ws_idle_s_max": 1}
    async with running(redis_url, limits=limits) as (_, relay, client):
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", relay.ports["http"])
        slow, slow_writer = await asyncio.open_connection("127.0.0.1", relay.ports["http"])
        slow_writer.write(b"POST / HTTP/1.1\r\n")
        sockets = f"ws://127.0.0.1:{relay.ports['ws']}"
        async with (
            client.ws_connect(sockets) as first,
            client.ws_connect(sockets) as second,
        ):
            await second.send_bytes(envelope("k"))
            async with asyncio.timeout(DEADLINE_S):
                assert (await silent.read()) == b""
                assert (await slow.read()).startswith(b"HTTP/1.1 408 ")
                for socket_ in (first, second):
                    message = await socket_.receive()
                    assert message.type is aiohttp.WSMsgType.CLOSE
                    assert message.data == 1008
        for writer in (silent_writer, slow_writer):
            writer.close()
        await eventually(lambda: connections(relay) == 0, DEADLINE_S)
        assert (await client.post(url(relay), data=envelope("k"))).status == 200
