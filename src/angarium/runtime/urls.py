"""Checks the form of URLs in settings, and removes secrets from URLs.

Each check returns None or the problem. It opens no connection and does not quote the URL, because
the malformed part may be the password. A log, an error or a repr contains a URL only after
`redacted`.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from angarium.redis.url import (
    host_port_problem,
    redis_url_problem,
    scheme_problem,
    split_scheme,
)

__all__ = [
    "database_url_problem",
    "host_port_problem",
    "http_url_problem",
    "lake_url_problem",
    "redacted",
    "redis_url_problem",
]

DATABASE_SCHEMES = ("sqlite", "postgresql")
LAKE_SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss")

# From the first colon to the last @, so that a password with an unescaped slash, colon or @ is
# removed completely.
_PASSWORD = re.compile(
    r"^(?P<start>[a-z][a-z0-9+.-]*://[^:]*:|[^:]*:(?!//)).*@", re.DOTALL | re.IGNORECASE
)
# A user without a password is often a key of an API. URLs come from outside and may be long: no
# expression here looks at a text from each of its positions to the end.
_USER = re.compile(r"(?<=://)[^/?#:@\s]+@")
# Any value: no list of names knows the names that others give to their secrets.
_PARAMETER = re.compile(r"(?P<name>[?&;][^=&;#?\s]*=)[^&;#\s]*")


def redacted(url: str) -> str:
    """The URL with its password, a user without one, and each query value replaced by `***`."""
    url = _USER.sub("***@", _PASSWORD.sub(r"\g<start>***@", url))
    return _PARAMETER.sub(r"\g<name>***", url)


def database_url_problem(url: str) -> str | None:
    scheme, rest = split_scheme(url)
    if scheme not in DATABASE_SCHEMES:
        return scheme_problem(scheme)
    if scheme == "sqlite":
        # A database in memory would lose everything at the end of the process.

        names_file = rest.startswith("/") and rest[1:] not in ("", ":memory:")
        return None if names_file else "it names no file"
    return _authority_problem(url, host_required=False)


def http_url_problem(url: str) -> str | None:
    scheme, _ = split_scheme(url)
    if scheme not in ("http", "https"):
        return scheme_problem(scheme)
    return _authority_problem(url, host_required=True)


def lake_url_problem(url: str) -> str | None:
    """A folder, or an object store."""
    if not url.strip():
        return "it is empty"
    if "://" not in url:
        return None
    scheme, rest = split_scheme(url)
    if not scheme or not rest:
        return "it is neither a folder nor a URL"
    return None if scheme in LAKE_SCHEMES else scheme_problem(scheme)


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
