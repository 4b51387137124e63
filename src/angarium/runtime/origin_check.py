"""Checks the Host and Origin headers of requests when the API runs without tokens on loopback.

A web page in a local browser can send requests to loopback ports: through a DNS name that resolves
to 127.0.0.1, or as a cross-origin request. The browser states both in Host and Origin, and scripts
in a page cannot change these headers. Other programs send no Origin. No I/O.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from angarium.runtime.sockets import is_loopback


def origin_problem(host: str | None, origin: str | None) -> str | None:
    """The reason to refuse a request without a token, or None."""
    if host is not None and not _is_local(f"//{host}"):
        return "without tokens only requests to localhost are allowed, not to another host name"
    if origin is not None and not _is_local(origin):
        return "without tokens requests from pages of other hosts are refused"

    return None


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
