"""Requests that leave for addresses a stranger chose: webhooks, callbacks, pushes, deliveries.

One pooled client for each role. An address that is not public is refused where its socket is
made, after its name was resolved, so neither a name that changes its mind nor an odd spelling
gets by. Headers that `check_headers` refuses are not sent. A connection is used again only if
nothing has arrived on it since its last answer ended. Redirects are answers, not followed. Every
answer is bounded in time and size. What went wrong is an `OutboundFailed`, never a foreign
exception.
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
from angarium.runtime.urls import redacted

# 64:ff9b::/96 and 2002::/16 carry an IPv4 address inside: what counts is that one.
NAT64 = ipaddress.ip_network("64:ff9b::/96")
# All that is routed in the world. `is_global` also takes old tunnels and local ranges for public.
GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# An answer is a status and perhaps a reason; a receiver that streams for ever must not fill us.
ANSWER_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 512
CONNECTIONS_PER_HOST_MAX = 64
# Of a URL or a foreign error, inside an error of ours.
TEXT_CHARS_MAX = 200
# What aiohttp lets out; uvloop has RuntimeError where others have OSError.
FAULTS = (aiohttp.ClientError, OSError, ValueError, RuntimeError)


class OutboundFailed(AngariumError):
    """No answer: refused, unreachable, too slow, or not what HTTP allows."""

    code = "outbound_failed"
    http_status = 502


class RequestRefused(OutboundFailed):
    """It was not sent, and would not be the next time either: its headers, or its address."""

    code = "request_refused"
    http_status = 422


class AddressRefused(RequestRefused):
    """The URL leads to this machine or its private surroundings, and settings do not allow it."""

    code = "address_refused"


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
        if ip not in GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast


def check_url(url: str, *, allow_private: bool) -> None:
    """Refuse at once what can be seen from the URL itself: scheme, host, a literal address."""
    try:
        # The client's own parser: another one would read some hosts differently.
        parts = URL(url)
    except ValueError:
        raise AddressRefused(f"{_shown(url)!r} is no URL") from None
    host = parts.raw_host
    if parts.scheme not in ("http", "https", "ws", "wss") or not host:
        raise AddressRefused(f"{_shown(url)!r} is no http or https URL")
    try:
        public = is_public(host)
    except ValueError:
        return  # a name: what it leads to is looked at when the socket is made
    if not (public or allow_private):
        raise AddressRefused(_refusal(host))


def _shown(url: str) -> str:
    return redacted(url)[:TEXT_CHARS_MAX]


class Outbound:
    """Use as an async context manager, or call `close`."""

    def __init__(self, *, allow_private: bool, timeout_s: float) -> None:
        self._allow_private = allow_private
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._connector = _SilentConnections(
            socket_factory=None if allow_private else _public_socket,
            limit=CONNECTIONS_MAX,
            limit_per_host=CONNECTIONS_PER_HOST_MAX,
            ttl_dns_cache=30,
        )
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse_redirect)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            # A compressed answer could be a bomb: it is not unpacked, and so not asked for.
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            trace_configs=[tracing],
        )

    async def send(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """The answer, whatever its status; `OutboundFailed` when there was none."""
        self._check(url, headers)
        try:
            async with self._session.request(
                method, url, data=body or None, headers=headers, allow_redirects=False
            ) as response:
                return Answer(response.status, response.headers, await _read_head(response))
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
    """A pool that closes a connection on which bytes came while no request was under way.

    aiohttp would give them to the next request as its answer. `should_close` covers what it has
    read already, the socket covers what it has not.
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
    """An OSError, so that a name's other addresses are tried; always with the same text, so that
    it comes back as itself when none of them was better."""


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
    # Only a WebSocket's handshake comes here: it would follow, and has no option against it.
    redirect.response.close()
    raise OutboundFailed(f"answered {redirect.response.status}, and redirects are not followed")


async def _read_head(response: aiohttp.ClientResponse) -> bytes:
    head = bytearray()
    while len(head) < ANSWER_BYTES_MAX:
        chunk = await response.content.read(ANSWER_BYTES_MAX - len(head))
        if not chunk:
            return bytes(head)
        head += chunk
    if not response.content.at_eof():
        response.close()  # the rest is not worth reading
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
