"""What a browser tells of the page behind a request, where no token guards a door on loopback.

A page of the web reaches this machine's doors as any program on it does: by a name of its own that
leads here, or by a request that its own server never sees. A browser names both in Host and Origin,
and no script of a page can change them. Programs send no Origin. Pure.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from angarium.runtime.sockets import is_loopback


def origin_problem(host: str | None, origin: str | None) -> str | None:
    """Why a request that needs no token is refused all the same, or None."""
    if host is not None and not _is_local(f"//{host}"):
        return "without tokens only localhost is answered, not another name that leads here"
    if origin is not None and not _is_local(origin):
        return "without tokens no page of another host is answered"
    return None


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
