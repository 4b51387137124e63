"""The address of Redis as a user writes it, checked for shape and taken apart.

    embedded
    redis://[user:password@]host[:port][/database]
    redis+cluster://[user:password@]host:port,host:port
    redis+sentinel://[user:password@]host:port,host:port/primary-name[/database]

`rediss` in place of `redis` means TLS, with the options `ca`, `cert`, `key` (files) and
`verify=false` for a certificate that can't be checked.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from angarium.redis.address import Address
from angarium.redis.errors import SettingInvalid

REDIS_SCHEMES = (
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)
OPTIONS = ("ca", "cert", "key", "verify")
FIX = "use embedded, redis://host:6379, redis+cluster://… or redis+sentinel://…/primary"

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}")
_HOST_PORT = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[^\s:/\[\],@?#]+)(:(?P<port>\d{1,5}))?", re.ASCII
)


@dataclass(frozen=True)
class RedisUrl:
    kind: str
    """embedded, single, cluster or sentinel"""
    addresses: tuple[Address, ...] = ()
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    primary: str = ""
    tls: bool = False
    options: tuple[tuple[str, str], ...] = ()
    name: str = "url"
    """How the option is called where the user set it."""

    def tls_context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        options = dict(self.options)
        try:
            context = ssl.create_default_context(cafile=options.get("ca"))
            if "cert" in options:
                context.load_cert_chain(options["cert"], options.get("key"))
        except (OSError, ssl.SSLError) as error:
            problem = f"a TLS file can't be used ({error})"
            raise SettingInvalid(self.name, problem, "check ca, cert and key") from error
        if options.get("verify") == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse_redis_url(text: str, name: str = "url") -> RedisUrl:
    """SettingInvalid, under `name`, for what is no such URL."""
    problem = redis_url_problem(text)
    if problem is not None:
        raise SettingInvalid(name, problem, FIX)
    if text == "embedded":
        return RedisUrl("embedded")
    scheme, _, rest = text.partition("://")
    family, _, kind = scheme.partition("+")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    username, _, password = userinfo.partition(":")
    places = [unquote(part) for part in path.split("/") if part]
    default_port = 26379 if kind == "sentinel" else 6379
    return RedisUrl(
        kind or "single",
        tuple(_address(host, default_port) for host in hosts.split(",")),
        unquote(username) or None,
        unquote(password) or None,
        primary=places.pop(0) if kind == "sentinel" else "",
        database=int(places[0]) if places else 0,
        tls=family == "rediss",
        options=_options(query, name),
        name=name,
    )


def _address(text: str, default_port: int) -> Address:
    parts = urlsplit(f"//{text}")
    return Address(parts.hostname or "127.0.0.1", parts.port or default_port)


def _options(query: str, name: str) -> tuple[tuple[str, str], ...]:
    options = tuple(parse_qsl(query))
    for option, value in options:
        if option not in OPTIONS or (option == "verify" and value not in ("true", "false")):
            # The value is not repeated: it may be a secret in the wrong place.
            problem = f"the option '{option}' is not known, or not with this value"
            raise SettingInvalid(name, problem, "known are ca, cert, key and verify=false")
    return options


def redis_url_problem(url: str) -> str | None:
    if url == "embedded":
        return None
    scheme, rest = split_scheme(url)
    if scheme not in REDIS_SCHEMES:
        return scheme_problem(scheme)
    authority, _, path = rest.partition("?")[0].partition("/")
    hosts = authority.rpartition("@")[2].split(",")
    kind = scheme.partition("+")[2]
    if not all(hosts):
        return "it names no server"
    for host in hosts:
        problem = host_port_problem(host, port_required=False)
        if problem is not None:
            return f"its server {problem}"
    if len(hosts) > 1 and not kind:
        return f"it names {len(hosts)} servers, and {scheme}:// takes one"
    return _redis_path_problem(kind, path.rstrip("/"))


def _redis_path_problem(kind: str, path: str) -> str | None:
    if kind == "sentinel":
        primary, _, path = path.partition("/")
        if not primary:
            return "it does not name the primary behind its sentinels"
    if path and not (path.isascii() and path.isdecimal()):
        return "its database is not a number"
    if kind == "cluster" and path.strip("0"):
        return "a cluster has only database 0"
    return None


def host_port_problem(text: str, *, port_required: bool = True) -> str | None:
    match = _HOST_PORT.fullmatch(text)
    if match is None or (port_required and match["port"] is None):
        return "is not host:port"
    if match["port"] is not None and not 1 <= int(match["port"]) <= 65535:
        return "has a port that is not between 1 and 65535"
    return None


def split_scheme(url: str) -> tuple[str, str]:
    """Scheme and rest; an empty scheme when there is none that could be shown."""
    scheme, separator, rest = url.partition("://")
    return (scheme, rest) if separator and _SCHEME.fullmatch(scheme) else ("", "")


def scheme_problem(scheme: str) -> str:
    return f"the scheme '{scheme}' is not known" if scheme else "it is not a URL"
