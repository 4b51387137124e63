"""Checks the Host and Origin headers of requests when the API runs without tokens on loopback.

A web page in a local browser can send requests to loopback ports: through a DNS name that resolves
to 127.0.0.1, or as a cross-origin request. The browser states both in Host and in Origin or
Sec-Fetch-Site, and scripts in a page can't change these headers. Other programs send no Origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from angarium.runtime.sockets import is_loopback


def origin_problem(headers: Mapping[str, str]) -> str | None:
    """The reason to refuse a request without a token, or None. Names in lower case."""
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not _is_local(f"//{host}"):
        return "without tokens only requests to localhost are allowed, not to another host name"
    if origin is not None and not _is_local(origin):
        return "without tokens requests from pages of other hosts are refused"
    # A page may fetch an image or a script without an Origin; the browser still says whose page it
    # is. A link that the user follows is allowed: the page that had it sees nothing of the answer.
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    if origin is None and site in ("cross-site", "same-site") and mode != "navigate":
        return "without tokens requests from pages of other hosts are refused"
    return None


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
