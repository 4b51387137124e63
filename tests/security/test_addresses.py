"""Webhooks that lead inside: a real role, and a name server that says what the attacker likes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from angarium.runtime.outbound import AddressRefused, check_url
from tests.kit.eventually import eventually
from tests.kit.roles import ROOT, RoleProcess
from tests.kit.tcp_server import tcp_server

PATIENCE_S = 60.0
INSIDE = ("127.0.0.1", "0.0.0.0", "169.254.169.254", "10.0.0.1", "100.64.0.1", "224.0.0.1")
INSIDE_6 = ("::1", "::ffff:127.0.0.1", "fd00:ec2::254", "fe80::1", "64:ff9b::7f00:1", "::")
# In the role's process names are asked of the test's own server; nothing else is changed.
RESOLVER = """
import asyncio, os, socket
import aiohttp

def ask(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(10)
        asking.sendto(host.encode(), ("127.0.0.1", int(os.environ["TEST_RESOLVER"])))
        return asking.recv(1000).decode()

async def resolve(self, host, port=0, family=socket.AF_INET):
    address = await asyncio.to_thread(ask, host)
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    return [dict(hostname=host, host=address, port=port, family=kind, proto=0,
                 flags=socket.AI_NUMERICHOST)]

aiohttp.ThreadedResolver.resolve = resolve
"""


class NameServer(asyncio.DatagramProtocol):
    """Another answer each time, as in rebinding; every one of them leads inside."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        inside = [*INSIDE, *INSIDE_6]
        answer = inside[len(self.asked) % len(inside)]
        self.asked.append(data.decode())
        self._transport.sendto(answer.encode(), addr)  # type: ignore[attr-defined]


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[int, NameServer]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield transport.get_extra_info("sockname")[1], server
    finally:
        transport.close()


@asynccontextmanager
async def inner_service() -> AsyncIterator[tuple[int, list[object]]]:
    """Something inside that must not be reached, on all addresses of this machine."""
    reached: list[object] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(writer.get_extra_info("peername"))
        writer.close()

    async with tcp_server(serve, None, family=socket.AF_INET) as port:
        yield port, reached


async def test_no_answer_of_a_name_server_lets_a_webhook_inside(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(RESOLVER)
    async with name_server() as (resolver, names), inner_service() as (inside, reached):
        settings = {
            "ANGARIUM_HTTP__PORT": "0",
            "ANGARIUM_TRANSACTIONS__WEBHOOK_RETRY_DELAY_MS": "1",
            "ANGARIUM_TRANSACTIONS__WEBHOOK_RETRY_FACTOR": "1",
            "ANGARIUM_TRANSACTIONS__MAX_WEBHOOK_RETRIES": "3",
            "ANGARIUM_TRANSACTIONS__WEBHOOK_FAIL_LIMIT": "1000",
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "TEST_RESOLVER": str(resolver),
        }
        roles = ["serve", "api", "node", "webhooks", "--app", "tests.deploy.application:app"]
        async with RoleProcess(roles, settings, ready_lines=3, deadline_s=PATIENCE_S) as role:
            url = f"http://127.0.0.1:{role.ports['http']}"
            async with aiohttp.ClientSession() as session:
                pipeline = {"name": "p", "steps": [{"type": "noop"}]}
                async with session.put(f"{url}/v1/pipelines/p", json=pipeline) as answer:
                    assert answer.status == 200
                for number in range(12):
                    hook = f"http://rebound{number}.example:{inside}/"
                    start = {"pipeline": "p", "webhook": hook}
                    async with session.post(f"{url}/v1/transactions", json=start) as answer:
                        assert answer.status == 201
                await eventually(lambda: len(names.asked) >= 12, PATIENCE_S)
            assert reached == []
            assert role.alive


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/latest/",
        "http://0.0.0.0:8400/",
        "http://[::]:8400/",
        "http://[::ffff:10.0.0.1]/",
        "http://[::ffff:a00:1]/",
        "http://user:pw@127.0.0.1/",
        "http://public.example@127.0.0.1/",
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/containers",
        "unix:///var/run/docker.sock",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "//127.0.0.1/",
        "http:///127.0.0.1/",
        "http://",
    ],
)
def test_what_leads_inside_by_its_own_spelling_is_refused_at_once(url: str) -> None:
    with pytest.raises(AddressRefused) as refused:
        check_url(url, allow_private=False)
    assert "pw" not in str(refused.value)
