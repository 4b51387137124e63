"""Whether a payload is JSON that any ordinary client can read. Pure.

A payload is passed on as the bytes it came in, inside an answer or a delivery with others. JSON's
grammar allows more than clients can read: numbers beyond a double, halves of surrogate pairs,
nesting without end. One such payload would make a client refuse the whole page, so it is refused
where it enters. What was stored before that rule is the readers' to handle, message by message.
"""

from __future__ import annotations

import itertools
import math
import re

import msgspec

from angarium.runtime.errors import InputInvalid

DETAIL_CHARS_MAX = 300
# A double ends at 1.8e308, so a whole number of so many digits may be beyond it.
_MANY_DIGITS = b"0" * 309
_SOME_DIGITS = b"0" * 16  # a short needle is found sooner, and is seldom there
_ALL_DIGITS_0 = bytes.maketrans(b"123456789", b"000000000")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")
_NOT_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_STEPS = [1 if each in b"[{" else -1 for each in range(256)]

_decode = msgspec.json.Decoder().decode


def check_payload(payload: bytes, levels_max: int) -> None:
    """InputInvalid, if a client could not read it."""
    problem = payload_problem(payload)
    if problem is None and _is_deeper(payload, levels_max):
        problem = f"it is nested deeper than pickup_payload_levels_max, {levels_max}"
    if problem is None and _has_infinite_number(payload):
        problem = "a number is beyond the range of a double"
    if problem is not None:
        raise InputInvalid(f"payload can't be read by every client: {problem}")


def payload_problem(payload: bytes) -> str | None:
    """Why the payload can't be read here; None if it can."""
    try:
        _decode(payload)
        if not payload.isascii():
            payload.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return str(error)[:DETAIL_CHARS_MAX]
    return None


def _is_deeper(payload: bytes, levels_max: int) -> bool:
    """Whether it is nested deeper than that; brackets inside strings do not count."""
    if payload.count(b"[") + payload.count(b"{") <= levels_max:
        return False
    brackets = _STRING.sub(b"", payload).translate(None, _NOT_BRACKETS)
    return max(itertools.accumulate(map(_STEPS.__getitem__, brackets)), default=0) > levels_max


def _has_infinite_number(payload: bytes) -> bool:
    """Whole numbers only: one with a fraction or an exponent was checked when it was decoded."""
    digits = payload.translate(_ALL_DIGITS_0)
    if _SOME_DIGITS not in digits or _MANY_DIGITS not in digits:
        return False
    numbers = _NUMBER.findall(_STRING.sub(b"", payload))
    return any(math.isinf(float(each)) for each in numbers if len(each) >= len(_MANY_DIGITS))
