"""The address of Redis as a user writes it, taken apart. `runtime/urls.py` checked its shape.

    embedded
    redis://[user:password@]host[:port][/database]
    redis+cluster://[user:password@]host:port,host:port
    redis+sentinel://[user:password@]host:port,host:port/primary-name[/database]

`rediss` in place of `redis` means TLS, with the options `ca`, `cert`, `key` (files) and
`verify=false` for a certificate that can't be checked.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from angarium.runtime.address import Address
from angarium.runtime.errors import SettingInvalid

SETTING = "ANGARIUM_REDIS_URL"
OPTIONS = ("ca", "cert", "key", "verify")


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
            raise SettingInvalid(SETTING, problem, "check ca, cert and key") from error
        if options.get("verify") == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse_redis_url(text: str) -> RedisUrl:
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
        options=_options(query),
    )


def _address(text: str, default_port: int) -> Address:
    parts = urlsplit(f"//{text}")
    return Address(parts.hostname or "127.0.0.1", parts.port or default_port)


def _options(query: str) -> tuple[tuple[str, str], ...]:
    options = tuple(parse_qsl(query))
    for name, value in options:
        if name not in OPTIONS or (name == "verify" and value not in ("true", "false")):
            # The value is not repeated: it may be a secret in the wrong place.
            problem = f"the option '{name}' is not known, or not with this value"
            raise SettingInvalid(SETTING, problem, "known are ca, cert, key and verify=false")
    return options
