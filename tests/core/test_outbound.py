"""Requests to addresses a stranger chose: what is refused, and servers that behave badly."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
import trustme
from aiohttp import web
from aiohttp.abc import ResolveResult
from hypothesis import example, given, settings
from hypothesis import strategies as st

from angarium.core import outbound
from angarium.core.outbound import (
    ANSWER_BYTES_MAX,
    AddressRefused,
    Answer,
    Outbound,
    OutboundFailed,
    check_url,
    is_public,
)
from tests.kit.eventually import eventually
from tests.kit.ports import free_port

PATIENCE_S = 30.0
# Of a server that never answers, so that the test need not wait long.
SHORT_S = 0.2
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
TURNS = 50  # of the loop, for the other side to read what was written

Talk = Callable[["Peer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A server that does on each connection what the test says, and writes down what it saw."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.port = 0
        self.connections = 0
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def take(self, reader: asyncio.StreamReader) -> str:
        """One request; its head in small letters."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = next(
            (line for line in head.split("\r\n") if line.startswith("content-length")), ":0"
        )
        self.bodies.append(await reader.readexactly(int(size.partition(":")[2])))
        self.heads.append(head)
        return head

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # The client's end of a connection is none of the server's faults.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await self._talk(self, reader, writer)
                if not writer.is_closing():
                    await reader.read()
        except asyncio.CancelledError:
            pass  # asyncio would log it; the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def all_left(self) -> bool:
        """Whether the clients have closed all their connections."""
        return not self._tasks

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await eventually(self.all_left, PATIENCE_S)


@asynccontextmanager
async def serving(
    talk: Talk, hosts: tuple[str, ...] = ("127.0.0.1",), tls: ssl.SSLContext | None = None
) -> AsyncIterator[Peer]:
    peer = Peer(talk)
    port = free_port() if len(hosts) > 1 else 0
    server = await asyncio.start_server(peer, list(hosts), port, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        await peer.end()


def patient(*, allow_private: bool = True) -> Outbound:
    return Outbound(allow_private=allow_private, timeout_s=PATIENCE_S)


def impatient() -> Outbound:
    return Outbound(allow_private=True, timeout_s=SHORT_S)


def answering(*parts: bytes, end: bool = False) -> Talk:
    """Answers every request with these parts, one after the other; `end` drops the connection."""

    async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await peer.take(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            if end:
                writer.close()
                return

    return talk


# Addresses


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"],
)
def test_public_addresses_may_be_reached(address: str) -> None:
    assert is_public(address)
    literal = f"[{address}]" if ":" in address else address
    check_url(f"https://{literal}:8443/hook?x=1", allow_private=False)


PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "fc00::1",
    "fd12:3456::1",
    "ff02::1",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::127.0.0.1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2001:0:7f00:1::",
]


@pytest.mark.parametrize("address", PRIVATE)
async def test_addresses_that_are_not_public_are_refused_unless_allowed(address: str) -> None:
    assert not is_public(address)
    host = f"[{address.replace('%', '%25')}]" if ":" in address else address
    for url in (f"http://{host}/", f"https://me:word@{host}:8443/x", f"wss://{host}/socket"):
        with pytest.raises(AddressRefused, match="ANGARIUM_ALLOW_PRIVATE_ADDRESSES=true"):
            check_url(url, allow_private=False)
        check_url(url, allow_private=True)
    async with patient(allow_private=False) as client:
        with pytest.raises(AddressRefused):
            await client.send("GET", f"http://{host}/")
        with pytest.raises(AddressRefused):
            await client.open_websocket(f"ws://{host}/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hook",
        "//1.1.1.1/hook",
        "http://",
        "http:///hook",
        "http://[1.1.1.1/",
        "http://host:99999/",
        "http://host:port/",
        "file:///etc/passwd",
        "ftp://1.1.1.1/",
        "javascript:alert(1)",
        "http://1.1.1.1\\@127.0.0.1/",
    ],
)
@pytest.mark.parametrize("allow_private", [False, True])
def test_what_is_no_http_url_is_refused_at_once(url: str, allow_private: bool) -> None:
    with pytest.raises(AddressRefused, match=r"is no URL|is no http or https URL"):
        check_url(url, allow_private=allow_private)


def test_a_refusal_tells_no_secret_and_does_not_grow_with_the_url() -> None:
    with pytest.raises(AddressRefused) as caught:
        check_url("http://me:secret@[bad/?token=secret", allow_private=False)
    assert "secret" not in str(caught.value)
    with pytest.raises(AddressRefused) as caught:
        check_url("x" * 100_000, allow_private=False)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "0",
        "①②⑦.⓪.⓪.①",
        "１２７.0.0.1",
        "127。0。0。1",
        "127.0.0.1\t",
        "[::ffff:127.0.0.1]",
        "1.1.1.1@127.0.0.1",
    ],
)
async def test_no_name_and_no_spelling_leads_to_this_machine(host: str) -> None:
    async with serving(answering(EMPTY)) as peer, patient(allow_private=False) as client:
        with pytest.raises(OutboundFailed):
            await client.send("POST", f"http://{host}:{peer.port}/hook", b"x")
        with pytest.raises(OutboundFailed):
            await client.open_websocket(f"ws://{host}:{peer.port}/hook")
        assert peer.connections == 0


async def test_a_name_that_leads_to_this_machine_is_refused_by_name_and_may_be_allowed() -> None:
    async with serving(answering(EMPTY)) as peer:
        url = f"http://localhost:{peer.port}/hook"
        async with patient(allow_private=False) as client:
            with pytest.raises(AddressRefused, match="localhost is not a public address") as caught:
                await client.send("GET", url)
            assert (caught.value.code, caught.value.http_status) == ("address_refused", 422)
        async with patient() as client:
            assert (await client.send("GET", url)).ok


def resolving_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    async def resolve(
        _: object, host: str, port: int = 0, family: int = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)


@pytest.mark.parametrize(
    "addresses", [("10.0.0.1",), ("127.0.0.1", "::1"), ("fe80::1%1", "169.254.169.254")]
)
async def test_a_name_with_nothing_but_private_addresses_is_refused(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    resolving_to(monkeypatch, *addresses)
    async with patient(allow_private=False) as client:
        with pytest.raises(AddressRefused, match=r"inside\.example is not a public address"):
            await client.send("GET", "http://inside.example/")
        with pytest.raises(AddressRefused, match=r"inside\.example is not a public address"):
            await client.open_websocket("wss://inside.example/")


async def test_of_several_addresses_only_the_public_one_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No test leaves this machine, so one loopback address plays the public one."""
    seen = []

    async def talk(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("sockname")[0])
        await peer.take(reader)
        writer.write(EMPTY)

    def plays_public(address: str) -> bool:
        return ipaddress.ip_address(address) == ipaddress.ip_address("127.0.0.2")

    monkeypatch.setattr(outbound, "is_public", plays_public)
    resolving_to(monkeypatch, "127.0.0.1", "127.0.0.2")
    hosts = ("127.0.0.1", "127.0.0.2")
    async with serving(talk, hosts) as peer, patient(allow_private=False) as client:
        assert (await client.send("GET", f"http://both.example:{peer.port}/")).ok
    assert seen == ["127.0.0.2"]


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
        assert answer.body == b"x" * ANSWER_BYTES_MAX
        await eventually(peer.all_left, PATIENCE_S)


# Servers that fail


async def test_nobody_listening_is_a_failure() -> None:
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
async def test_a_server_that_stops_answering_is_given_up_after_the_time_allowed(
    parts: tuple[bytes, ...],
) -> None:
    async with serving(answering(*parts)) as peer, impatient() as client:
        with pytest.raises(OutboundFailed, match=r"no answer within 0\.2 s"):
            await client.send("POST", peer.url, b"x")
        await eventually(peer.all_left, PATIENCE_S)


async def test_a_server_that_drips_for_ever_is_given_up_after_the_time_allowed() -> None:
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
                assert isinstance(await client.send("POST", peer.url), Answer)

    asyncio.run(exchange())


async def test_a_certificate_nobody_vouches_for_is_a_failure() -> None:
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


async def test_a_server_that_hangs_does_not_hold_up_requests_to_others() -> None:
    async with serving(answering()) as hanging, serving(answering(EMPTY)) as peer:
        async with patient() as client:
            stuck = [
                asyncio.ensure_future(client.send("GET", hanging.url))
                for _ in range(outbound.CONNECTIONS_PER_HOST_MAX + 10)
            ]
            await eventually(
                lambda: hanging.connections == outbound.CONNECTIONS_PER_HOST_MAX, PATIENCE_S
            )
            assert (await client.send("GET", peer.url)).ok
            for each in stuck:
                each.cancel()
            await asyncio.wait(stuck)
        assert hanging.connections == outbound.CONNECTIONS_PER_HOST_MAX


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
