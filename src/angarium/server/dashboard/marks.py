"""Where a list goes on: a mark that one page gives and the next one takes. Pure.

A mark is a few whole numbers with colons between them; what else comes in is refused.
"""

from __future__ import annotations

from angarium.runtime.errors import InputInvalid

# Redis' cursors have 64 bits; places in lists have less.
NUMBER_MAX = 2**64 - 1


def mark(*numbers: int) -> str:
    return ":".join(str(number) for number in numbers)


def numbers_of(text: str | None, count: int) -> tuple[int, ...]:
    """The numbers of a mark; zeros where there is none."""
    if text is None:
        return (0,) * count
    parts = text.split(":")
    if len(parts) != count or not all(_is_number(part) for part in parts):
        raise InputInvalid(f"{text[:100]!r} is no mark that a list gave")
    return tuple(int(part) for part in parts)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= NUMBER_MAX
