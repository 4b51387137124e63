"""Requests that leave for addresses a stranger chose: webhooks, callbacks, pushes, deliveries.

One pooled client for each role. An address that is not public is refused, after its name was
resolved and for the very address that is connected to, so a name can't change its mind in
between. Redirects are answers, not followed. Every answer is bounded in time and size. What went
wrong is an `OutboundFailed`, never a foreign exception.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from angarium.core.errors import AngariumError

# 64:ff9b::/96 and 2002::/16 carry an IPv4 address inside: what counts is that one.
NAT64 = ipaddress.ip_network("64:ff9b::/96")
# An answer is a status and perhaps a reason; a receiver that streams for ever must not fill us.
ANSWER_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 512
CONNECTIONS_PER_HOST_MAX = 64


class OutboundFailed(AngariumError):
    """No answer: refused, unreachable, too slow, or not what HTTP allows."""

    code = "outbound_failed"
    http_status = 502


class AddressRefused(OutboundFailed):
    """The URL leads to this machine or its private surroundings, and settings do not allow it."""

    code = "address_refused"
    http_status = 422


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes  # the beginning of it, at most ANSWER_BYTES_MAX

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def is_public(address: str) -> bool:
    """Whether an address may be reached on behalf of a stranger."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def check_url(url: str, *, allow_private: bool) -> None:
    """Refuse at once what can be seen from the URL itself: scheme, host, a literal address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise AddressRefused(f"{url[:200]!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https", "ws", "wss") or not host:
        raise AddressRefused(f"{url[:200]!r} is no http or https URL")
    try:
        public = is_public(host)
    except ValueError:
        return  # a name: the resolver decides
    if not (public or allow_private):
        raise AddressRefused(_refusal(host))


class Outbound:
    """Use as an async context manager, or call `close`."""

    def __init__(self, *, allow_private: bool, timeout_s: float) -> None:
        self._allow_private = allow_private
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._connector = aiohttp.TCPConnector(
            resolver=None if allow_private else _PublicResolver(),
            limit=CONNECTIONS_MAX,
            limit_per_host=CONNECTIONS_PER_HOST_MAX,
            ttl_dns_cache=30,
        )
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def send(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer, whatever its status; `OutboundFailed` when there was none."""
        check_url(url, allow_private=self._allow_private)
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                head = await response.content.read(ANSWER_BYTES_MAX)
                if not response.content.at_eof():
                    response.close()  # the rest is not worth reading
                return Answer(response.status, response.headers, head)
        except TimeoutError:
            raise OutboundFailed(f"no answer within {self._timeout.total:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failure(error) from None

    async def open_websocket(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> aiohttp.ClientWebSocketResponse:
        check_url(url, allow_private=self._allow_private)
        try:
            async with asyncio.timeout(self._timeout.total):
                return await self._session.ws_connect(url, headers=headers)
        except TimeoutError:
            raise OutboundFailed(f"no connection within {self._timeout.total:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failure(error) from None

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _PublicResolver(AbstractResolver):
    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        public = [each for each in found if is_public(each["host"])]
        if not public:
            raise AddressRefused(_refusal(host))
        return public

    async def close(self) -> None:
        await self._inner.close()


def _refusal(host: str) -> str:
    return (
        f"{host} is not a public address; "
        "set ANGARIUM_ALLOW_PRIVATE_ADDRESSES=true if requests may go there"
    )


def _failure(error: Exception) -> OutboundFailed:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OutboundFailed):
            return cause
        cause = cause.__cause__ or cause.__context__
    return OutboundFailed(f"{type(error).__name__}: {str(error)[:200]}")
