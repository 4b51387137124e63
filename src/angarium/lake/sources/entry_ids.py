"""Ids of stream entries as numbers: compared, and divided in proportion. Pure.

An id is `ms-sequence`, two numbers of 64 bits, and is handled here as one of 128. Redis deals ids
out by the clock, so the place of an id between two others is a fair guess at how many entries are
on either side: dividing ids costs nothing, counting entries means to read them.
"""

from __future__ import annotations

from itertools import pairwise

from angarium.lake.errors import OptionInvalid

FIRST = 0
_SEQUENCE_BITS = 64
_SEQUENCES = 1 << _SEQUENCE_BITS
LAST = (1 << 128) - 1


def number_of(text: str | bytes) -> int:
    """`1700000000000-5`, or `1700000000000` for its first entry. Raises `OptionInvalid`."""
    plain = text.decode() if isinstance(text, bytes) else text
    ms, _, sequence = plain.partition("-")
    if not ms.isdecimal() or not (sequence or "0").isdecimal():
        raise OptionInvalid("startingOffsets", f"'{plain}' is not an entry id", "use ms-sequence")
    number = (int(ms) << _SEQUENCE_BITS) + int(sequence or 0)
    if number > LAST or int(sequence or 0) >= _SEQUENCES:
        raise OptionInvalid("startingOffsets", f"'{plain}' is too large", "use ms-sequence")
    return number


def text_of(number: int) -> str:
    return f"{number >> _SEQUENCE_BITS}-{number & (_SEQUENCES - 1)}"


def between(start: int, end: int, share: float) -> int:
    """The id at this share of the way from `start` to `end`; past `start`, at most `end`.

    Between two entries of one millisecond only sequences lie; else the milliseconds are divided,
    because almost all of the numbers between two of them are sequences nobody was given.
    """
    if end <= start or share >= 1:
        return end
    first_ms, last_ms = start >> _SEQUENCE_BITS, end >> _SEQUENCE_BITS
    if first_ms == last_ms:
        found = start + int((end - start) * share)
    else:
        # All of that millisecond: its entries are not torn apart.
        ms = first_ms + int((last_ms - first_ms) * share)
        found = (ms << _SEQUENCE_BITS) + _SEQUENCES - 1
    return max(start + 1, min(end, found))


def split(start: int, end: int, parts: int) -> list[tuple[int, int]]:
    """`(start, end]` in up to so many pieces of about the same size, none of them empty."""
    edges = [start]
    for part in range(1, parts + 1):
        edge = between(start, end, part / parts)
        if edge > edges[-1]:
            edges.append(edge)
    return list(pairwise(edges))
