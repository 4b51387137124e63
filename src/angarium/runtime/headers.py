"""Checks the headers that users give for requests to receivers. Pure.

Connections to a receiver are shared by all deliveries to it. A header that changes where a request
ends, or what a connection does next, would let one user's request hide another one in its body,
and the answers behind it would go to the wrong delivery. So the HTTP client alone writes such
headers, and a user's are refused: where they come in, and again before they are sent. None is
dropped in silence, and no header can name a further one as hop-by-hop, because `Connection` itself
is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from angarium.runtime.errors import InputInvalid

# Common servers take 100 headers of 8 KiB in all; the client adds a few of its own.
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 6 * 1024
# Of a refused name or value, inside an error.
SHOWN_CHARS_MAX = 60

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# RFC 9110: visible characters, blanks and tabs. Latin-1 beyond ASCII is allowed, controls are not.
_VALUE = re.compile(r"[\t -~\xa0-\xff]*")
# RFC 9110, 7.6.1 and RFC 9112: framing, and what concerns one connection only.
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
        # As on the wire: the client sends UTF-8, a colon, a blank and a line end.
        size_bytes += len(name) + len(text.encode()) + 4
    if size_bytes > HEADERS_BYTES_MAX:
        problem = f"the headers have {size_bytes} bytes, more than the {HEADERS_BYTES_MAX} allowed"
        raise HeaderRefused(problem)
    return checked


def _checked_value(name: str, value: object) -> str:
    if not _NAME.fullmatch(name):
        raise HeaderRefused(f"{_shown(name)} is not the name of a header")
    # Some servers read an underscore as a dash.
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
