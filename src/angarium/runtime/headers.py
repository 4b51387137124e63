"""Checks the headers that users give for requests to receivers. No I/O.

All deliveries to a receiver share connections. A header that changes the framing of a request or
the state of the connection would allow request smuggling: one user's request could contain another,
and later responses would go to the wrong delivery. So only the HTTP client writes such headers. A
user's are refused when they are given and again before they are sent; none is dropped silently.
`Connection` itself is refused, so no header can declare another one as hop-by-hop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from angarium.runtime.errors import InputInvalid

# Common servers take 100 headers of 8 KiB in all; the client adds a few of its own.
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 6 * 1024
# Characters of a refused name that an error quotes.
SHOWN_CHARS_MAX = 60

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# RFC 9110: visible characters, spaces and tabs. Latin-1 is allowed, control characters are not.
_VALUE = re.compile(r"[\t -~\xa0-\xff]*")
# RFC 9110, 7.6.1 and RFC 9112: framing, and headers that concern one connection only.
_OF_THE_CONNECTION = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "sec-websocket-accept",
        "sec-websocket-extensions",
        "sec-websocket-key",
        "sec-websocket-version",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
    }
)


class HeaderRefused(InputInvalid):
    """A header that users may not give; the text begins with its name. Nothing was sent."""

    code = "header_refused"


def check_headers(headers: Mapping[str, object]) -> dict[str, str]:
    """The same headers with their values as text, or HeaderRefused."""
    if len(headers) > HEADERS_MAX:
        raise HeaderRefused(f"{len(headers)} headers are more than the {HEADERS_MAX} allowed")
    checked, size_bytes = {}, 0
    for name, value in headers.items():
        text = _checked_value(name, value)
        checked[name] = text
        # The size as sent: UTF-8, a colon, a space and a line end.
        size_bytes += len(name) + len(text.encode()) + 4
    if size_bytes > HEADERS_BYTES_MAX:
        problem = f"the headers have {size_bytes} bytes, more than the {HEADERS_BYTES_MAX} allowed"
        raise HeaderRefused(problem)
    return checked


def _checked_value(name: str, value: object) -> str:
    if not _NAME.fullmatch(name):
        raise HeaderRefused(f"{_shown(name)} is not the name of a header")
    # Some servers treat an underscore as a dash.

    plain = name.lower().replace("_", "-")
    if plain in _OF_THE_CONNECTION or plain.startswith("proxy-"):
        raise HeaderRefused(f"{_shown(name)}: this header is written by the HTTP client only")
    if not isinstance(value, str | int | float):
        raise HeaderRefused(f"{_shown(name)}: its value is neither text nor a number")
    text = str(value)
    if not _VALUE.fullmatch(text):
        raise HeaderRefused(f"{_shown(name)}: its value has characters that no header may have")
    return text


def _shown(name: str) -> str:
    return ascii(name[:SHOWN_CHARS_MAX])
