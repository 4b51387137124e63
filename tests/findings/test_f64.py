"""F64: headers that users give hide no second request in a connection that deliveries share."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.kit.tcp_server import tcp_server

PATIENCE_S = 60.0
HIDDEN = b"0\r\n\r\nPOST /hidden HTTP/1.1\r\nHost: receiver\r\nContent-Length: 0\r\n\r\n"
REFUSED = {
    "Transfer-Encoding": "chunked",
    "transfer_encoding": "chunked",
    "Content-Length": "5",
    "Host": "another.example",
    "Connection": "x-api-key",
    "Keep-Alive": "timeout=1",
    "Proxy-Authorization": "Basic eA==",
    "TE": "trailers",
    "Trailer": "x-a",
    "Upgrade": "h2c",
    "Expect": "100-continue",
    "x a": "1",
    "": "1",
    "x-line": "1\r\nx-other: 2",
    "x-null": "a\x00b",
    "x-text": "日本",
    "x-long": "x" * 70_000,
}


class Receiver:
    """An HTTP/1.1 server as RFC 9112 has it: chunks go before a length, and it keeps connections.

    `/fails` is answered with 500, everything else with 200.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.port = 0
        self._writer: asyncio.StreamWriter

    def answer_unasked(self) -> None:
        """On the last connection, one answer more than there were requests."""
        self._writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
                if "chunked" in lines.get("transfer-encoding", ""):
                    await reader.readuntil(b"0\r\n\r\n")
                else:
                    await reader.readexactly(int(lines.get("content-length", "0")))
                path = head.split(" ")[1]
                self.paths.append(path)
                status = b"500 No" if path == "/fails" else b"200 OK"
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)
                self._writer = writer
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
        except asyncio.CancelledError:
            writer.transport.abort()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with tcp_server(receiver) as receiver.port:
        yield receiver


@asynccontextmanager
async def roles(redis: ServerProcess) -> AsyncIterator[str]:
    """An API and a deliverer as one process; the address of the API."""
    settings = {"ANGARIUM_REDIS_URL": redis.url, "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true"}
    async with RoleProcess(["serve", "api", "deliverer"], settings, ready_lines=2) as role:
        yield f"http://127.0.0.1:{role.port_of('api', 'http')}"


def item(url: str, payload: bytes = b"x", headers: dict[str, Any] | None = None) -> str:
    """As another program writes it into the list."""
    text = base64.urlsafe_b64encode(payload).decode()
    return json.dumps({"service": {"url": url}, "payload": text, "headers": headers or {}})


async def got(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as answer:
        return await answer.json()


async def outcomes(session: aiohttp.ClientSession, api: str) -> dict[str, float]:
    """How the deliverer counted its attempts."""
    async with session.get(f"{api}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = {}
    for line in lines:
        if line.startswith("angarium_deliveries_total{"):
            name, value = line.rsplit(" ", 1)
            found[name.split('"')[1]] = float(value)
    return found


@pytest.fixture
def redis() -> Any:
    with ServerProcess() as server:
        yield server


async def test_a_hidden_request_never_reaches_the_receiver_and_nobody_gets_its_answer(
    redis: ServerProcess,
) -> None:
    async with (
        receiving() as receiver,
        roles(redis) as api,
        aiohttp.ClientSession() as session,
    ):
        url = f"http://127.0.0.1:{receiver.port}"
        queue = redis.client()
        queue.rpush(
            "acapy_outbound", item(f"{url}/cover", HIDDEN, {"Transfer-Encoding": "chunked"})
        )

        async def ended() -> bool:
            found = await outcomes(session, api)
            return found.get("dead", 0) + found.get("delivered", 0) == 1

        await eventually(ended, PATIENCE_S)
        if "/cover" in receiver.paths:
            await eventually(lambda: "/hidden" in receiver.paths, PATIENCE_S)
        # Somebody else's delivery to the same receiver, which fails.
        queue.rpush("acapy_outbound", item(f"{url}/fails"))

        async def tried() -> bool:
            found = await outcomes(session, api)
            return sum(found.values()) == 2

        await eventually(tried, PATIENCE_S)
        assert await outcomes(session, api) == {"dead": 1, "retried": 1}
        assert receiver.paths == ["/fails"]
        (letter,) = (await got(session, f"{api}/v1/routing/dead-deliveries"))["letters"]
        assert "'Transfer-Encoding'" in letter["reason"]


async def test_each_refused_header_is_named_where_it_comes_in_and_nothing_is_queued(
    redis: ServerProcess,
) -> None:
    async with roles(redis) as api, aiohttp.ClientSession() as session:
        for name, value in REFUSED.items():
            wanted = {"url": "http://127.0.0.1:1/", "payload": "eA==", "headers": {name: value}}
            async with session.post(f"{api}/v1/routing/deliveries", json=wanted) as answer:
                problem = await answer.json()
                assert (answer.status, problem.get("code")) == (400, "header_refused"), name
                assert repr(name) in problem["detail"] or name == "x-long"
        many = {f"x-{number}": "1" for number in range(1_000)}
        wanted = {"url": "http://127.0.0.1:1/", "payload": "eA==", "headers": many}
        async with session.post(f"{api}/v1/routing/deliveries", json=wanted) as answer:
            assert answer.status == 400
        assert redis.client().llen("acapy_outbound") == 0


async def test_headers_that_users_need_are_sent(redis: ServerProcess) -> None:
    async with receiving() as receiver, roles(redis) as api, aiohttp.ClientSession() as session:
        headers = {
            "Content-Type": "application/json",
            "X-Api-Key": "k",
            "Authorization": "Bearer t",
        }
        url = f"http://127.0.0.1:{receiver.port}/taken"
        wanted = {"url": url, "payload": "eA==", "headers": headers}
        async with session.post(f"{api}/v1/routing/deliveries", json=wanted) as answer:
            assert answer.status == 202
        await eventually(lambda: receiver.paths == ["/taken"], PATIENCE_S)


async def test_an_answer_that_nobody_asked_for_is_not_the_answer_to_the_next_delivery(
    redis: ServerProcess,
) -> None:
    async with (
        receiving() as receiver,
        roles(redis) as api,
        aiohttp.ClientSession() as session,
    ):
        url = f"http://127.0.0.1:{receiver.port}"
        queue = redis.client()
        queue.rpush("acapy_outbound", item(f"{url}/first"))

        async def delivered() -> bool:
            return await outcomes(session, api) == {"delivered": 1}

        await eventually(delivered, PATIENCE_S)
        receiver.answer_unasked()
        queue.rpush("acapy_outbound", item(f"{url}/fails"))

        async def tried() -> bool:
            return sum((await outcomes(session, api)).values()) == 2

        await eventually(tried, PATIENCE_S)
        assert await outcomes(session, api) == {"delivered": 1, "retried": 1}
