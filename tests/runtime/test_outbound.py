"""Requests to addresses a stranger chose: what goes out, what comes back, and bad servers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import trustme
from aiohttp import web
from aiohttp.abc import ResolveResult
from hypothesis import example, given, settings
from hypothesis import strategies as st

from angarium.runtime.limits import Limits
from angarium.runtime.outbound import (
    RESPONSE_BYTES_MAX,
    AddressRefused,
    Outbound,
    OutboundFailed,
    OutboundResponse,
)
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.runtime.outbound_peer import (
    EMPTY,
    PATIENCE_S,
    Peer,
    answering,
    impatient,
    patient,
    serving,
)

# Requests and answers


async def test_a_request_arrives_as_it_was_given_and_its_answer_comes_back() -> None:
    reply = b"HTTP/1.1 418 Teapot\r\nx-pot: brown\r\ncontent-length: 5\r\n\r\nshort"
    async with serving(answering(reply)) as peer, patient() as client:
        answer = await client.send("POST", f"{peer.url}?a=1", b"\x00body", {"x-id": "7"})
    assert (answer.status, answer.body, answer.ok) == (418, b"short", False)
    assert answer.headers["X-Pot"] == "brown"
    (head,) = peer.heads
    assert head.startswith("post /hook?a=1 http/1.1\r\n")
    assert "x-id: 7\r\n" in head
    assert peer.bodies == [b"\x00body"]


async def test_an_answer_is_asked_for_uncompressed_because_it_is_not_unpacked() -> None:
    packed = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b!"
    async with serving(answering(packed)) as peer, patient() as client:
        assert (await client.send("GET", peer.url)).body == b"\x1f\x8b!"
    assert "accept-encoding: identity\r\n" in peer.heads[0]
    assert "content-length" not in peer.heads[0]


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b"one", b"two", b"six"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n",
            b"3\r\ntwo\r\n",
            b"3\r\nsix\r\n0\r\n",
            b"\r\n",
        ),
    ],
)
async def test_an_answer_in_pieces_is_read_whole_and_its_connection_used_again(
    parts: tuple[bytes, ...],
) -> None:
    async with serving(answering(*parts)) as peer, patient() as client:
        for _ in range(3):
            assert (await client.send("GET", peer.url)).body == b"onetwosix"
        assert peer.connections == 1


async def test_an_answer_that_ends_with_its_connection_is_read_to_the_end() -> None:
    parts = (b"HTTP/1.1 200 OK\r\n\r\none", b"two")
    async with serving(answering(*parts, end=True)) as peer, patient() as client:
        assert (await client.send("GET", peer.url)).body == b"onetwo"


async def test_cookies_are_not_kept() -> None:
    reply = b"HTTP/1.1 204 No Content\r\nset-cookie: who=you; path=/\r\n\r\n"
    async with serving(answering(reply)) as peer, patient() as client:
        for _ in range(2):
            assert (await client.send("GET", peer.url)).status == 204
    assert not any("cookie:" in head for head in peer.heads)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(status: int) -> None:
    async with serving(answering(EMPTY)) as target:
        lines = (f"HTTP/1.1 {status} Moved", f"location: {target.url}", "content-length: 0", "", "")
        async with serving(answering("\r\n".join(lines).encode())) as peer, patient() as client:
            for method in ("GET", "POST"):
                answer = await client.send(method, peer.url)
                assert (answer.status, answer.headers["location"]) == (status, target.url)
            with pytest.raises(OutboundFailed, match=f"{status}, and redirects are not followed"):
                await client.open_websocket(peer.url.replace("http", "ws"))
        assert target.connections == 0


@pytest.mark.parametrize("chunked", [False, True])
async def test_of_an_endless_body_the_beginning_is_kept_and_the_connection_closed(
    chunked: bool,
) -> None:
    async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.take(reader)
        length = "transfer-encoding: chunked" if chunked else f"content-length: {10**15}"
        writer.write(f"HTTP/1.1 200 OK\r\n{length}\r\n\r\n".encode())
        while True:
            writer.write(b"2710\r\n%b\r\n" % (b"x" * 10_000) if chunked else b"x" * 10_000)
            await writer.drain()

    async with serving(talk) as peer, patient() as client:
        answer = await client.send("GET", peer.url)
        assert answer.body == b"x" * RESPONSE_BYTES_MAX
        await eventually(peer.all_left, PATIENCE_S)


# Servers that fail


async def test_a_closed_port_is_a_failure() -> None:
    async with patient() as client:
        with pytest.raises(OutboundFailed, match="ClientConnectorError") as caught:
            await client.send("GET", f"http://127.0.0.1:{free_port()}/")
    assert (caught.value.code, caught.value.http_status) == ("outbound_failed", 502)


async def test_a_name_nobody_knows_is_a_failure_and_no_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(*_: object, **__: object) -> list[ResolveResult]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)
    async with patient(allow_private=False) as client:
        with pytest.raises(OutboundFailed, match="not known") as caught:
            await client.send("GET", "http://nobody.invalid/")
    assert not isinstance(caught.value, AddressRefused)


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"HTTP/1.1 200 OK\r\nx-slow: ",),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345",),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n",),
        (b"HTTP/1.1 100 Continue\r\n\r\n",) * 3,
    ],
    ids=["hanging", "in its head", "in its body", "in its chunks", "only continues"],
)
async def test_a_server_that_stops_answering_fails_after_the_timeout(
    parts: tuple[bytes, ...],
) -> None:
    async with serving(answering(*parts)) as peer, impatient() as client:
        with pytest.raises(OutboundFailed, match=r"no answer within 0\.2 s"):
            await client.send("POST", peer.url, b"x")
        await eventually(peer.all_left, PATIENCE_S)


async def test_a_response_that_never_ends_fails_after_the_timeout() -> None:
    async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n")
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serving(talk) as peer, impatient() as client:
        with pytest.raises(OutboundFailed, match=r"no answer within 0\.2 s"):
            await client.send("GET", peer.url)


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nx-half: ",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12",
    ],
    ids=["before its head", "in its head", "in its body", "in a chunk"],
)
async def test_a_dropped_connection_is_a_failure(part: bytes) -> None:
    async with serving(answering(part, end=True)) as peer, patient() as client:
        with pytest.raises(OutboundFailed):
            await client.send("POST", peer.url, b"x")
        assert peer.connections == 1, "what is not idempotent is not sent twice"


GARBAGE = [
    b"\x00\xff\xfe garbage \r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1 \r\n\r\n",
    b"HTTP/9.9 200 OK\r\n\r\n",
    b"HTTP/1.1 99999 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000,
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_an_answer_that_is_not_http_is_a_failure(garbage: bytes) -> None:
    async with serving(answering(garbage, end=True)) as peer, patient() as client:
        with pytest.raises(OutboundFailed) as caught:
            await client.send("POST", f"{peer.url}?token=secret", b"x")
        assert "secret" not in str(caught.value)
        with pytest.raises(OutboundFailed) as caught:
            await client.open_websocket(peer.url.replace("http", "ws"))
    assert len(str(caught.value)) < 300


@settings(max_examples=60)
@given(
    st.binary(max_size=60)
    | st.builds(
        lambda status, name, value, rest: (
            b"HTTP/1.1 %b\r\n%b: %b\r\n\r\n%b" % (status, name, value, rest)
        ),
        st.sampled_from([b"200 OK", b"101 Up", b"204", b"302 Found", b"304 x", b"\xff"]),
        st.sampled_from(
            [b"content-length", b"transfer-encoding", b"location", b"set-cookie", b"connection"]
        ),
        st.sampled_from([b"3", b"chunked", b"gzip", b"upgrade", b"\xff", b"=;", b""])
        | st.binary(max_size=8),
        st.binary(max_size=20),
    )
)
@example(b"")
def test_whatever_comes_back_is_an_answer_or_a_failure(sent: bytes) -> None:
    async def exchange() -> None:
        async with serving(answering(sent, end=True)) as peer, patient() as client:
            with contextlib.suppress(OutboundFailed):
                assert isinstance(await client.send("POST", peer.url), OutboundResponse)

    asyncio.run(exchange())


async def test_a_certificate_of_an_unknown_authority_is_a_failure() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(tls)
    async with serving(answering(EMPTY), tls=tls) as peer, patient() as client:
        with pytest.raises(OutboundFailed, match="Certificate"):
            await client.send("GET", f"https://localhost:{peer.port}/")
        assert peer.heads == []


async def test_a_header_that_would_smuggle_another_is_a_failure_and_nothing_is_sent() -> None:
    async with serving(answering(EMPTY)) as peer, patient() as client:
        with pytest.raises(OutboundFailed):
            await client.send("GET", peer.url, headers={"x-a": "1\r\nx-b: 2"})
        with pytest.raises(OutboundFailed):
            await client.send("GET /\r\nx: y\r\n", peer.url)
        assert peer.heads == []


async def test_a_closed_client_fails_like_any_other() -> None:
    client = patient()
    await client.close()
    with pytest.raises(OutboundFailed):
        await client.send("GET", "http://127.0.0.1:1/")
    with pytest.raises(OutboundFailed):
        await client.open_websocket("ws://127.0.0.1:1/")


async def test_a_cancelled_request_is_cancelled_and_its_connection_closed() -> None:
    async with serving(answering()) as peer, patient() as client:
        sending = asyncio.ensure_future(client.send("GET", peer.url))
        await eventually(lambda: peer.heads, PATIENCE_S)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await eventually(peer.all_left, PATIENCE_S)


async def test_a_server_that_hangs_does_not_delay_requests_to_others() -> None:
    async with serving(answering()) as hanging, serving(answering(EMPTY)) as peer:
        async with patient() as client:
            stuck = [
                asyncio.ensure_future(client.send("GET", hanging.url))
                for _ in range(Limits().outbound_host_connections_max + 10)
            ]
            await eventually(
                lambda: hanging.connections == Limits().outbound_host_connections_max, PATIENCE_S
            )
            assert (await client.send("GET", peer.url)).ok
            for each in stuck:
                each.cancel()
            await asyncio.wait(stuck)
        assert hanging.connections == Limits().outbound_host_connections_max


# WebSockets


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """A WebSocket server that sends everything back; its URL."""

    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket_ = web.WebSocketResponse()
        await socket_.prepare(request)
        await socket_.send_str(request.headers.get("x-id", ""))
        async for message in socket_:
            await socket_.send_bytes(message.data)
        return socket_

    app = web.Application()
    app.add_routes([web.get("/socket", echo)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"ws://127.0.0.1:{runner.addresses[0][1]}/socket"
    finally:
        await runner.cleanup()


async def test_a_websocket_is_opened_with_its_headers_and_outlives_the_time_for_opening() -> None:
    async with echoing() as url, Outbound(allow_private=True, timeout_s=2.0) as client:
        loop = asyncio.get_running_loop()
        opened = await client.open_websocket(url, {"x-id": "7"})
        assert await opened.receive_str(timeout=PATIENCE_S) == "7"
        end = loop.time() + 2.5
        await eventually(lambda: loop.time() > end, PATIENCE_S)
        await opened.send_bytes(b"\x00frame")
        assert await opened.receive_bytes(timeout=PATIENCE_S) == b"\x00frame"
        await opened.close()


async def test_a_websocket_to_this_machine_is_refused_unless_allowed() -> None:
    async with echoing() as url, patient(allow_private=False) as client:
        for each in (url, url.replace("127.0.0.1", "localhost")):
            with pytest.raises(AddressRefused):
                await client.open_websocket(each)


async def test_a_handshake_that_is_refused_or_never_answered_is_a_failure() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
    async with serving(answering(refusal)) as peer, patient() as client:
        with pytest.raises(OutboundFailed, match="403"):
            await client.open_websocket(peer.url.replace("http", "ws"))
    async with serving(answering()) as peer, impatient() as client:
        with pytest.raises(OutboundFailed, match=r"no connection within 0\.2 s"):
            await client.open_websocket(peer.url.replace("http", "ws"))
        await eventually(peer.all_left, PATIENCE_S)
