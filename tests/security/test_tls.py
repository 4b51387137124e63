"""TLS on every door and towards Redis: who can't prove who it is, is not spoken to."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from angarium.dispatch import security
from angarium.dispatch.dispatcher import Dispatcher
from angarium.dispatch.protocol import Hello, encode_hello
from angarium.runtime.errors import AngariumError
from angarium.settings import load
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess
from tests.kit.tcp_server import tcp_server
from tests.pickup.harness import gateway, sqlite
from tests.routing.test_relay import running
from tests.security.wire import dialled, handshake, heard, request, said, status_of

EXPIRED = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """One that we trust, and certificates of all kinds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trusted, self.other = trustme.CA(), trustme.CA()
        self.trusted.cert_pem.write_to_path(str(folder / "ca.pem"))

    def issue(self, name: str, host: str, **how: Any) -> Path:
        authority = self.other if how.pop("by_other", False) else self.trusted
        issued = authority.issue_cert(host, **how)
        path = self.folder / f"{name}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def trusting(self, certificate: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def served(kind: str, authority: Authority) -> Path:
    """A certificate that nobody should take; `good` is the one to take."""
    match kind:
        case "good":
            return authority.issue(kind, "127.0.0.1")
        case "expired":
            return authority.issue(kind, "127.0.0.1", not_before=EXPIRED, not_after=EXPIRED)
        case "other name":
            return authority.issue(kind, "elsewhere.example")
        case _:
            return authority.issue(kind, "127.0.0.1", by_other=True)


KINDS = ["good", "expired", "other name", "other authority"]


@pytest.mark.parametrize("kind", KINDS)
async def test_redis_with_a_certificate_that_proves_nothing_is_not_used(
    redis_server: ServerProcess, authority: Authority, kind: str
) -> None:
    """Behind a TLS terminator, because not every build of the server speaks TLS itself."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(served(kind, authority))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", redis_server.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, inner[1]))
            group.create_task(_copy(inner[0], writer))

    async with tcp_server(serve, ssl=context) as port:
        url = f"rediss://:pw@127.0.0.1:{port}?ca={authority.folder}/ca.pem"
        settings: dict[str, Any] = {
            "redis": {"unavailable_timeout_ms": 300, "call_timeout_ms": 2_000}
        }
        if kind == "good":
            async with sample_runtime(url.replace(":pw@", ""), **settings) as runtime:
                assert await runtime.redis.call("PING") == b"PONG"
            return
        with pytest.raises(AngariumError, match="CERTIFICATE_VERIFY_FAILED"):
            async with sample_runtime(url, **settings):
                pass


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


@asynccontextmanager
async def doors(
    redis_url: str, authority: Authority, tmp_path: Path
) -> AsyncIterator[dict[str, int]]:
    """Relay, gateway and ACK port with certificates; the last two ask for one themselves."""
    own = str(authority.issue("own", "127.0.0.1"))
    ca = str(authority.folder / "ca.pem")
    routing = {"tls_certificate": own, "tls_key": own}
    pickup: dict[str, Any] = {"tls_certificate": own, "tls_key": own, "tls_client_ca": ca}
    dispatch = {"ack_port": 0, "tls_certificate": own, "tls_key": own, "tls_authority": ca}
    async with (
        running(redis_url, routing=routing) as (_, relay, _),
        gateway(redis_url, sqlite(tmp_path), **pickup) as service,
        sample_runtime(redis_url, dispatch=dispatch) as runtime,
    ):
        dispatcher = Dispatcher(runtime)
        await dispatcher.start()
        try:
            yield {
                "http": relay.ports["http"],
                "ws": relay.ports["ws"],
                "gateway": service.ports["gateway"],
                "ack": dispatcher.ports["ack"],
            }
        finally:
            await dispatcher.stop(5)


FIRST = {
    "http": request("GET /status/live"),
    "ws": handshake(),
    "gateway": handshake(),
    "ack": encode_hello(Hello()),
}


async def test_plain_text_and_old_versions_get_nothing_from_a_door_with_tls(
    redis_url: str, authority: Authority, tmp_path: Path
) -> None:
    async with doors(redis_url, authority, tmp_path) as ports:
        for name, port in ports.items():
            # At most the alert by which TLS says so.
            assert status_of(answer := await said(port, FIRST[name])) == 0, name
            assert answer == b"" or answer[0] == 0x15, name
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await said(port, FIRST[name], ssl=old)


@pytest.mark.parametrize("kind", ["none", "expired", "other authority"])
async def test_who_has_to_show_a_certificate_and_can_not_is_not_heard(
    redis_url: str, authority: Authority, tmp_path: Path, kind: str
) -> None:
    async with doors(redis_url, authority, tmp_path) as ports:
        shown = None if kind == "none" else served(kind, authority)
        for name in ("gateway", "ack"):
            context = authority.trusting(shown)
            try:
                # With TLS 1.3 the client hears of the refusal only when it reads.
                answer = await said(ports[name], FIRST[name], ssl=context)
            except (ssl.SSLError, ConnectionError):
                continue
            assert answer == b"", name
        good = authority.trusting(served("good", authority))
        for name in ("gateway", "ack"):
            async with dialled(ports[name], ssl=good) as (reader, writer):
                writer.write(FIRST[name])
                assert await reader.read(5), name


@pytest.mark.parametrize("kind", KINDS)
async def test_a_dispatcher_sends_nothing_to_a_worker_that_proves_nothing(
    authority: Authority, kind: str
) -> None:
    own = str(authority.issue("own", "127.0.0.1"))
    files = {"tls_certificate": own, "tls_key": own, "tls_authority": f"{authority.folder}/ca.pem"}
    context = security.client_tls(load(dispatch=files))
    worker = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    worker.load_cert_chain(served(kind, authority))
    got = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await heard(reader))
        writer.close()

    async with tcp_server(serve, ssl=worker) as port:
        if kind == "good":
            async with dialled(port, ssl=context):
                return
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)
    assert got == []
