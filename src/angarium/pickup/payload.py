"""Checks that a payload is JSON that every common client can read. Pure.

The gateway sends payloads unchanged, several in one frame. The grammar of JSON allows more than
clients can read: numbers beyond the range of a double, half surrogate pairs, unlimited nesting.
One such payload would make a client reject the whole frame, so the module refuses to store it.
Readers handle payloads that were stored before this rule one by one.
"""

from __future__ import annotations

import itertools
import math
import re

import msgspec

from angarium.runtime.errors import InputInvalid

DETAIL_CHARS_MAX = 300
# The largest double is 1.8e308: an integer with this many digits may be beyond it.
_MANY_DIGITS = b"0" * 309
_SOME_DIGITS = b"0" * 16  # a short pattern is cheap to search for, and rarely there
_ALL_DIGITS_0 = bytes.maketrans(b"123456789", b"000000000")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")
_NOT_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_STEPS = [1 if each in b"[{" else -1 for each in range(256)]

_decode = msgspec.json.Decoder().decode


def check_payload(payload: bytes, levels_max: int) -> None:
    """Raise InputInvalid if some client could not read the payload."""
    problem = payload_problem(payload)
    if problem is None and _is_deeper(payload, levels_max):
        problem = f"it is nested deeper than pickup_payload_levels_max, {levels_max}"
    if problem is None and _has_infinite_number(payload):
        problem = "a number is beyond the range of a double"
    if problem is not None:
        raise InputInvalid(f"payload can't be read by every client: {problem}")


def payload_problem(payload: bytes) -> str | None:
    """Why this process can't decode the payload, or None."""
    try:
        _decode(payload)
        if not payload.isascii():
            payload.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return str(error)[:DETAIL_CHARS_MAX]
    return None


def _is_deeper(payload: bytes, levels_max: int) -> bool:
    """Brackets inside strings do not count."""
    if payload.count(b"[") + payload.count(b"{") <= levels_max:
        return False
    brackets = _STRING.sub(b"", payload).translate(None, _NOT_BRACKETS)
    return max(itertools.accumulate(map(_STEPS.__getitem__, brackets)), default=0) > levels_max


def _has_infinite_number(payload: bytes) -> bool:
    """Checks integers; decoding has checked numbers with a fraction or an exponent."""
    digits = payload.translate(_ALL_DIGITS_0)
    if _SOME_DIGITS not in digits or _MANY_DIGITS not in digits:
        return False
    numbers = _NUMBER.findall(_STRING.sub(b"", payload))
    return any(math.isinf(float(each)) for each in numbers if len(each) >= len(_MANY_DIGITS))
