"""What a user's function has in hand, and the trace it belongs to. Values only.

A message has one trace from the publisher to its recipient. Its id is the one that the payload
brings as `traceparent` (W3C Trace Context), else the message's own id, which has the same 128
bits: so the trace of a message is known without having been stored anywhere. A transaction that
was started without one has its own id for a trace, and its children have that, too. What is in
hand stands in a context variable, for each task and for each thread that a function runs in.
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from typing import Any, NamedTuple

import msgspec

TRACEPARENT = "traceparent"
CHARS_MAX = 512
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_DIGITS = re.compile(r"[0-9a-f]{32}")


class Trace(NamedTuple):
    """The trace, and the span that whatever comes next is a child of.

    `sampled`: whether whoever began it records it; None where nobody has decided yet.
    """

    trace_id: str
    span_id: str
    sampled: bool | None = True

    @property
    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'00' if self.sampled is False else '01'}"

    def child(self) -> Trace:
        return self._replace(span_id=secrets.token_hex(8))


def read_traceparent(text: object) -> Trace | None:
    """None for anything that is not one: a trace must never be a reason to refuse a message."""
    found = _FORM.fullmatch(text) if isinstance(text, str) and len(text) <= CHARS_MAX else None
    if found is None or found[1] == "ff" or not (found[2].strip("0") and found[3].strip("0")):
        return None
    return Trace(found[2], found[3], bool(int(found[4], 16) & 1))


def carried_by(value: object) -> Trace | None:
    """The trace that an object brings along as a member."""
    return read_traceparent(value.get(TRACEPARENT)) if isinstance(value, dict) else None


class _Carrier(msgspec.Struct):
    """The one member of a payload that is read here."""

    traceparent: str | None = None


_read_carrier = msgspec.json.Decoder(_Carrier).decode


def carried_in(payload: bytes) -> Trace | None:
    """The trace in a payload that nobody has taken apart yet."""
    if TRACEPARENT.encode() not in payload:
        return None
    try:
        return read_traceparent(_read_carrier(payload).traceparent)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def trace_of_id(id: str) -> Trace | None:
    """The trace of what carries none: the first 128 bits of its id; None if it has no such id."""
    digits = id.replace("-", "").lower()[:32]
    if _DIGITS.fullmatch(digits) is None or not digits[16:].strip("0"):
        return None
    return Trace(digits, digits[16:], None)


def first_span(id: str, carried: Trace | None = None) -> Trace | None:
    """The span that a message begins with, in the trace it was brought in or in its own: whoever
    goes on with the message knows it without having been told."""
    own = trace_of_id(id)
    if own is None or carried is None:
        return own
    return Trace(carried.trace_id, own.span_id, carried.sampled)


class InHand:
    """A message or a step while a function of the user's works on it."""

    __slots__ = ("_id", "_is_message", "_payload", "_started", "_trace")

    def __init__(self, id: bytes, payload: Any = None, *, is_message: bool = False) -> None:
        """`id` begins with 128 bits in hexadecimal; `payload` may carry a `traceparent`."""
        # As they are: most functions never ask, and this is made for each message.
        self._id = id
        self._is_message = is_message
        self._payload = payload
        self._trace: Trace | None = None
        self._started = False

    @property
    def id(self) -> str:
        return self._id.decode()

    @property
    def message_id(self) -> str | None:
        return self.id if self._is_message else None

    @property
    def trace(self) -> Trace:
        """The same each time it is asked."""
        if self._trace is None:
            self._trace = carried_by(self._payload) or _of(self.id)
        return self._trace

    @property
    def parent(self) -> Trace:
        """What the work on it is a child of. A message's own span has its id, so that whoever
        works on a message knows it without having been told."""
        own = _of(self.id)
        return self.trace._replace(span_id=own.span_id) if self._is_message else self.trace

    def works_under(self, trace: Trace) -> None:
        """What is done from now on belongs to this span."""
        self._trace = trace

    def start_id(self) -> str | None:
        """The message's id, for the first thing that is started under it; None after that."""
        first, self._started = not self._started, True
        return self.message_id if first else None


def _of(id: str) -> Trace:
    digits = id.replace("-", "").lower()[:32]
    return Trace(digits, digits[16:], None)


IN_HAND: ContextVar[InHand | None] = ContextVar("angarium_in_hand", default=None)


def current_trace() -> Trace | None:
    found = IN_HAND.get()
    return None if found is None else found.trace
