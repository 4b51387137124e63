"""Page cursors: whole numbers joined by colons. One page returns the cursor of the next."""

from __future__ import annotations

from angarium.runtime.errors import InputInvalid

# The largest cursor of Redis' SCAN.
NUMBER_MAX = 2**64 - 1


def page_cursor(*numbers: int) -> str:
    return ":".join(str(number) for number in numbers)


def cursor_numbers(text: str | None, count: int) -> tuple[int, ...]:
    """The numbers of a page cursor; zeros for the first page."""
    if text is None:
        return (0,) * count
    parts = text.split(":")
    if len(parts) != count or not all(_is_number(part) for part in parts):
        raise InputInvalid(f"{text[:100]!r} is not a page cursor; use `next` of the page before")
    return tuple(int(part) for part in parts)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= NUMBER_MAX
