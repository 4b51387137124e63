"""Requests to addresses a stranger chose: which of them are refused."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import aiohttp
import pytest
from aiohttp.abc import ResolveResult

from angarium.runtime import outbound
from angarium.runtime.outbound import (
    AddressRefused,
    OutboundFailed,
    check_url,
    is_public,
)
from tests.runtime.outbound_peer import (
    EMPTY,
    Peer,
    answering,
    patient,
    serving,
)


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
