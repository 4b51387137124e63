"""The HTTP client for URLs that users give: webhooks, callbacks, push notifications, deliveries.

Each role has one client with a connection pool. Private addresses are refused when the socket is
created, after the name was resolved, so neither DNS rebinding nor an unusual spelling of an address
passes. Headers that `check_headers` refuses are not sent. A connection is reused only if no bytes
have arrived on it since its last response ended. Redirects are returned, not followed. Every
response is limited in time and size. Every failure is raised as `OutboundFailed`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
from yarl import URL

from angarium.runtime.errors import AngariumError
from angarium.runtime.headers import HeaderRefused, check_headers
from angarium.runtime.limits import Limits
from angarium.runtime.urls import redacted

# Addresses in 64:ff9b::/96 and 2002::/16 contain an IPv4 address, which decides.
NAT64 = ipaddress.ip_network("64:ff9b::/96")
# All addresses that are routed publicly. `is_global` also accepts old tunnels and local ranges.
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# A response is a status and perhaps a reason. A receiver that never stops sending must not fill
# this process's memory.
RESPONSE_BYTES_MAX = 64 * 1024
# Characters of a URL or of another library's error that are quoted in an error.
TEXT_CHARS_MAX = 200
# The exceptions that aiohttp raises. uvloop raises RuntimeError where asyncio raises OSError.
FAULTS = (aiohttp.ClientError, OSError, ValueError, RuntimeError)


class OutboundFailed(AngariumError):
    """There is no response: refused, unreachable, too slow, or not valid HTTP."""

    code = "outbound_failed"
    http_status = 502


class RequestRefused(OutboundFailed):
    """The request was not sent because of its headers or address; a retry would fail as well."""

    code = "request_refused"
    http_status = 422


class AddressRefused(RequestRefused):
    """The URL leads to a private or loopback address, and the settings do not allow that."""

    code = "address_refused"


@dataclass(frozen=True)
class OutboundResponse:
    status: int
    headers: Mapping[str, str]
    body: bytes  # its first RESPONSE_BYTES_MAX bytes at most

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip not in GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast


def check_url(url: str, *, allow_private: bool) -> None:
    """Check the URL's scheme and host, and its address if it is a literal. Resolves no names."""
    try:
        # The HTTP client's own parser, because another parser reads some hosts differently.
        parts = URL(url)
    except ValueError:
        raise AddressRefused(f"{_shown(url)!r} is no URL") from None
    host = parts.raw_host
    if parts.scheme not in ("http", "https", "ws", "wss") or not host:
        raise AddressRefused(f"{_shown(url)!r} is no http or https URL")
    try:
        public = is_public(host)
    except ValueError:
        return  # a name; its addresses are checked when the socket is created
    if not (public or allow_private):
        raise AddressRefused(_refusal(host))


def _shown(url: str) -> str:
    return redacted(url)[:TEXT_CHARS_MAX]


class Outbound:
    """Use as an async context manager, or call `close`."""

    def __init__(
        self, *, allow_private: bool, timeout_s: float, limits: Limits | None = None
    ) -> None:
        limits = limits or Limits()
        self._allow_private = allow_private
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._connector = _SilentConnections(
            socket_factory=None if allow_private else _public_socket,
            limit=limits.outbound_connections_max,
            limit_per_host=limits.outbound_host_connections_max,
            ttl_dns_cache=30,
        )
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse_redirect)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            # A small compressed response can expand to any size, so none is requested or expanded.
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            trace_configs=[tracing],
        )

    async def send(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> OutboundResponse:
        """The response, whatever its status. Raises `OutboundFailed` if there is none."""
        self._check(url, headers)
        try:
            async with self._session.request(
                method, url, data=body or None, headers=headers, allow_redirects=False
            ) as response:
                return OutboundResponse(
                    response.status, response.headers, await _read_head(response)
                )
        except TimeoutError:
            raise OutboundFailed(f"no answer within {self._timeout.total:g} s") from None
        except FAULTS as error:
            raise _failure(error, url) from None

    async def open_websocket(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> aiohttp.ClientWebSocketResponse:
        self._check(url, headers)
        try:
            async with asyncio.timeout(self._timeout.total):
                return await self._session.ws_connect(url, headers=headers)
        except TimeoutError:
            raise OutboundFailed(f"no connection within {self._timeout.total:g} s") from None
        except FAULTS as error:
            raise _failure(error, url) from None

    def _check(self, url: str, headers: Mapping[str, str] | None) -> None:
        check_url(url, allow_private=self._allow_private)
        try:
            check_headers(headers or {})
        except HeaderRefused as error:
            raise RequestRefused(str(error)) from None

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _SilentConnections(aiohttp.TCPConnector):
    """A pool that closes a connection if bytes arrived on it while no request was in progress.

    aiohttp would take those bytes as the response to the next request. `should_close` tells of
    bytes that aiohttp has read, polling the socket tells of bytes that it has not.
    """

    async def _get(self, key: Any, traces: Any) -> Any:
        for entry in list(self._conns.get(key, ())):
            if not _is_silent(entry[0]):
                self._conns[key].remove(entry)
                entry[0].close()
        return await super()._get(key, traces)


def _is_silent(connection: Any) -> bool:
    transport = connection.transport
    if connection.should_close or transport is None or transport.is_closing():
        return False
    waiting = select.poll()  # unlike select(), it takes descriptors above 1023
    waiting.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return not waiting.poll(0)


class _NotPublic(OSError):
    """An OSError, so that aiohttp tries the name's other addresses. Its text is always the same, so
    that aiohttp raises this error unchanged if all addresses fail."""


def _public_socket(info: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, address = info
    if not is_public(str(address[0])):
        raise _NotPublic("not a public address")
    return socket.socket(family, kind, protocol)


async def _refuse_redirect(
    _session: aiohttp.ClientSession,
    _context: object,
    redirect: aiohttp.TraceRequestRedirectParams,
) -> None:
    # Only a WebSocket handshake gets here: aiohttp has no option that stops it from following.
    redirect.response.close()
    raise OutboundFailed(f"answered {redirect.response.status}, and redirects are not followed")


async def _read_head(response: aiohttp.ClientResponse) -> bytes:
    head = bytearray()
    while len(head) < RESPONSE_BYTES_MAX:
        chunk = await response.content.read(RESPONSE_BYTES_MAX - len(head))
        if not chunk:
            return bytes(head)
        head += chunk
    if not response.content.at_eof():
        response.close()  # the rest of the body is not read

    return bytes(head)


def _refusal(host: str) -> str:
    return (
        f"{host} is not a public address; "
        "set ANGARIUM_ALLOW_PRIVATE_ADDRESSES=true if requests may go there"
    )


def _failure(error: Exception, url: str) -> OutboundFailed:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _NotPublic):
            return AddressRefused(_refusal(URL(url).raw_host or ""))
        cause = cause.__cause__ or cause.__context__
    return OutboundFailed(f"{type(error).__name__}: {redacted(str(error))[:TEXT_CHARS_MAX]}")
