"""Input larger, deeper or emptier than anybody means: answered, and nothing else happens."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from tests.kit.eventually import eventually
from tests.pickup.harness import connected, gateway, sqlite
from tests.routing.harness import counts, envelope
from tests.routing.test_relay import running
from tests.security.wire import PATIENCE_S, api, dialled, frame, handshake, heard, request, said
from tests.security.wire import status_of as status

DEEP = b"[" * 100_000 + b"]" * 100_000
DIGITS = b"9" * 100_000
OFFER = "permessage-deflate; client_max_window_bits=15, permessage-deflate"
BOMB = zlib.compress(b"\x00" * 50_000_000, 9)


async def post(port: int, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    told = {
        "Content-Type": "application/json",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    answer = await said(port, request(f"POST {path}", told, body))
    text = answer.partition(b"\r\n\r\n")[2]
    return status(answer), json.loads(text) if text.startswith((b"{", b"[")) else text


HEADS = {
    "path": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "header": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 50_000 + b"\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length below zero": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 300 + b"\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


async def test_a_head_that_can_not_be_is_refused_by_api_and_relay(
    redis_url: str, no_settings: object
) -> None:
    async with api(redis_url) as (_, port), running(redis_url) as (runtime, relay, _):
        for name, head in HEADS.items():
            answer = await said(port, head)
            # Nothing is heard where the connection was reset while the rest still came.
            assert status(answer) in (0, 400, 404, 431, 505), name
            assert not answer or b"application/problem+json" in answer, name
            assert status(await said(relay.ports["http"], head)) != 200, name
            assert status(await said(port, request("GET /healthz"))) == 200
        assert await counts(runtime) == {}


def many(item: bytes) -> bytes:
    return b",".join([item] * 100_000)


BODIES = {
    "deep": (b'{"payload":' + DEEP + b"}", "/v1/messages"),
    "deep list": (DEEP, "/v1/messages"),
    "number": (b'{"payload":' + DIGITS + b"}", "/v1/messages"),
    "exponent": (b'{"payload":1e' + DIGITS + b"}", "/v1/messages"),
    "data deep": (b'{"pipeline":"p","data":' + DEEP + b"}", "/v1/transactions"),
    "data number": (b'{"pipeline":"p","data":' + DIGITS + b"}", "/v1/transactions"),
    "batch": (b'{"transactions":[' + many(b'{"pipeline":"p"}') + b"]}", "/v1/transactions/batch"),
    "messages": (b"[" + many(b'{"payload":1}') + b"]", "/v1/messages"),
    "no text": (b'{"payload":"\xff\xfe"}', "/v1/messages"),
    "half a letter": (b'{"pipeline":"p","external_id":"\\ud800"}', "/v1/transactions"),
    "zero bytes": (b"\x00" * 1000, "/v1/transactions"),
    "gzip": (BOMB, "/v1/messages"),
}  # fmt: skip


async def test_a_body_that_nobody_means_is_no_fault_of_the_api(
    redis_url: str, no_settings: object
) -> None:
    async with api(redis_url) as (_, port):
        for name, (body, path) in BODIES.items():
            encoding = {"Content_Encoding": "gzip"} if name == "gzip" else {}
            code, told = await post(port, path, body, **encoding)
            assert 0 < code < 500, (name, told)
            assert status(await said(port, request("GET /healthz"))) == 200


async def test_numbers_no_machine_has_travel_as_they_were_written(
    redis_url: str, no_settings: object
) -> None:
    """A payload is text to us: Lua's numbers, which have 53 bits, never see it."""
    async with api(redis_url) as (runtime, port):
        code, _ = await post(
            port, "/v1/messages", b'{"payload":{"n":12345678901234567890123,"e":1e400}}'
        )
        assert code == 202
        found = await runtime.redis.call(
            "XRANGE", f"{runtime.settings.prefix}messages:inbox", "-", "+"
        )
        assert b"12345678901234567890123" in repr(found).encode()


async def test_a_gateway_unpacks_nothing(redis_url: str, tmp_path: Path) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        async with dialled(service.ports["gateway"]) as (reader, writer):
            writer.write(handshake({"Sec-WebSocket-Extensions": OFFER}))
            head = await reader.readuntil(b"\r\n\r\n")
            assert status(head) == 101
            assert b"sec-websocket-extensions" not in head.lower()
            packer = zlib.compressobj(9, zlib.DEFLATED, -15)
            packed = packer.compress(b" " * 20_000_000) + packer.flush(zlib.Z_SYNC_FLUSH)
            writer.write(frame(packed[:-4], 0xC1))
            # No extension was agreed on, so the bit that says "compressed" ends the connection.
            answer = await heard(reader)
            assert answer[:4] == b"\x88\x02\x03\xea"  # 1002, a protocol error
            assert len(answer) < 10_000
        async with connected(service) as (client, _):
            assert await client.add_message("c", ["did:a"], 1)


async def test_a_relay_unpacks_nothing(redis_url: str) -> None:
    async with running(redis_url) as (runtime, relay, client):
        async with dialled(relay.ports["ws"]) as (reader, writer):
            writer.write(handshake({"Sec-WebSocket-Extensions": "permessage-deflate"}))
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"sec-websocket-extensions" not in head.lower()
            writer.write(frame(zlib.compress(envelope("k")), 0xC1))
            assert await heard(reader)  # a close frame
        packed = zlib.compress(envelope("k"))
        answer = await client.post(
            f"http://127.0.0.1:{relay.ports['http']}/",
            data=packed, headers={"Content-Encoding": "deflate"},
        )  # fmt: skip
        assert answer.status in (400, 415)
        assert await counts(runtime) == {}


async def test_deep_and_huge_json_at_the_gateway_is_answered(
    redis_url: str, tmp_path: Path
) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        async with dialled(service.ports["gateway"]) as (reader, writer):
            writer.write(handshake())
            await reader.readuntil(b"\r\n\r\n")
            for body in (DEEP, b'{"jsonrpc":"2.0","method":"addMessage","id":' + DIGITS + b"}"):
                writer.write(frame(body))
                assert b"-32" in await reader.readuntil(b"}}")
        await eventually(lambda: not service.rpc.clients, PATIENCE_S)
