"""The addresses a user may set: checked for shape, and shown without their secrets.

Each check returns None or what is wrong; it opens no connection, and it does not repeat the
address, because what is malformed may well be the password. `redacted` is the only way a URL
reaches a log, an error or a repr.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

REDIS_SCHEMES = (
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)
DATABASE_SCHEMES = ("sqlite", "postgresql")
LAKE_SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss")

# From the first colon to the last @: a password with an unescaped slash, colon or @ in it must
# not leak its second half.
_USERINFO = re.compile(
    r"^(?P<start>[a-z][a-z0-9+.-]*://[^:]*:|[^:]*:(?!//)).*@", re.DOTALL | re.IGNORECASE
)
_SECRET_PARAMETER = re.compile(
    r"(?P<name>[?&;][^=&;]*(?:pass|pwd|secret|token|key|credential|sig)[^=&;]*=)[^&;#]*",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}")
_HOST_PORT = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[^\s:/\[\],@?#]+)(:(?P<port>\d{1,5}))?", re.ASCII
)


def redacted(url: str) -> str:
    """The URL with each password and secret parameter replaced by `***`."""
    url = _USERINFO.sub(r"\g<start>***@", url)
    return _SECRET_PARAMETER.sub(r"\g<name>***", url)


def host_port_problem(text: str, *, port_required: bool = True) -> str | None:
    match = _HOST_PORT.fullmatch(text)
    if match is None or (port_required and match["port"] is None):
        return "is not host:port"
    if match["port"] is not None and not 1 <= int(match["port"]) <= 65535:
        return "has a port that is not between 1 and 65535"
    return None


def redis_url_problem(url: str) -> str | None:
    if url == "embedded":
        return None
    scheme, rest = _split(url)
    if scheme not in REDIS_SCHEMES:
        return _scheme_problem(scheme)
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


def database_url_problem(url: str) -> str | None:
    scheme, rest = _split(url)
    if scheme not in DATABASE_SCHEMES:
        return _scheme_problem(scheme)
    if scheme == "sqlite":
        # A database in memory would forget what it was given to keep.
        names_file = rest.startswith("/") and rest[1:] not in ("", ":memory:")
        return None if names_file else "it names no file"
    return _authority_problem(url, host_required=False)


def http_url_problem(url: str) -> str | None:
    scheme, _ = _split(url)
    if scheme not in ("http", "https"):
        return _scheme_problem(scheme)
    return _authority_problem(url, host_required=True)


def lake_url_problem(url: str) -> str | None:
    """A folder, or an object store."""
    if not url.strip():
        return "it is empty"
    if "://" not in url:
        return None
    scheme, rest = _split(url)
    if not scheme or not rest:
        return "it is neither a folder nor a URL"
    return None if scheme in LAKE_SCHEMES else _scheme_problem(scheme)


def _split(url: str) -> tuple[str, str]:
    """Scheme and rest; an empty scheme when there is none that could be shown."""
    scheme, separator, rest = url.partition("://")
    return (scheme, rest) if separator and _SCHEME.fullmatch(scheme) else ("", "")


def _scheme_problem(scheme: str) -> str:
    return f"the scheme '{scheme}' is not known" if scheme else "it is not a URL"


def _authority_problem(url: str, *, host_required: bool) -> str | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "its host or port is malformed"
    if port == 0 or any(letter.isspace() for letter in url):
        return "its host or port is malformed"
    # PostgreSQL without a host means the socket on this machine.
    return "it names no host" if host_required and not host else None
