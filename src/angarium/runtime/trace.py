"""The message or step that a user's function works on, and the trace it belongs to. No I/O.

A message has one trace from the publisher to its recipient. The trace id comes from the payload's
`traceparent` (W3C Trace Context); without one it is the message id, which also has 128 bits. So
every process can compute the trace id and nobody stores it. A transaction that was started without
a trace uses its own id, and its children use the same. The current work is in a context variable,
for each task and each thread that runs a user's function.
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
    """A trace id, and the span that the next span is a child of.

    `sampled` says whether the first span of the trace is recorded; None if that is not decided.
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
    """The trace, or None if the text is invalid: an invalid trace does not refuse a message."""
    found = _FORM.fullmatch(text) if isinstance(text, str) and len(text) <= CHARS_MAX else None
    if found is None or found[1] == "ff" or not (found[2].strip("0") and found[3].strip("0")):
        return None
    return Trace(found[2], found[3], bool(int(found[4], 16) & 1))


def trace_in_object(value: object) -> Trace | None:
    """The trace in the member `traceparent` of a decoded payload."""
    return read_traceparent(value.get(TRACEPARENT)) if isinstance(value, dict) else None


class _Carrier(msgspec.Struct):
    """The only member of a payload that is decoded here."""

    traceparent: str | None = None


_read_carrier = msgspec.json.Decoder(_Carrier).decode


def trace_in_payload(payload: bytes) -> Trace | None:
    """The trace in a payload that is not decoded yet."""
    if TRACEPARENT.encode() not in payload:
        return None
    try:
        return read_traceparent(_read_carrier(payload).traceparent)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def trace_of_id(id: str) -> Trace | None:
    """The trace whose id is the first 128 bits of `id`; None if `id` does not begin with them."""
    digits = id.replace("-", "").lower()[:32]
    if _DIGITS.fullmatch(digits) is None or not digits[16:].strip("0"):
        return None
    return Trace(digits, digits[16:], None)


def first_span(id: str, carried: Trace | None = None) -> Trace | None:
    """The first span of a message, in the trace that it carries or in its own.

    The span id follows from the message id, so every process can compute it.
    """
    own = trace_of_id(id)
    if own is None or carried is None:
        return own
    return Trace(carried.trace_id, own.span_id, carried.sampled)


class CurrentWork:
    """The message or step that a user's function works on."""

    __slots__ = ("_id", "_is_message", "_payload", "_started", "_trace")

    def __init__(self, id: bytes, payload: Any = None, *, is_message: bool = False) -> None:
        """`id` begins with 128 bits in hexadecimal; `payload` may carry a `traceparent`."""
        # Stored without decoding: there is one per message, and most functions never read them.
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
        if self._trace is None:
            self._trace = trace_in_object(self._payload) or _trace_from_id(self.id)
        return self._trace

    @property
    def parent(self) -> Trace:
        """The span that the work is a child of. A message's span id follows from its id."""
        own = _trace_from_id(self.id)
        return self.trace._replace(span_id=own.span_id) if self._is_message else self.trace

    def enter_span(self, trace: Trace) -> None:
        """Make this the parent of all further spans of this work."""
        self._trace = trace

    def message_id_once(self) -> str | None:
        """The message id on the first call, None on every later call.

        The first transaction that a function starts for a message gets the message's id.
        """

        first, self._started = not self._started, True
        return self.message_id if first else None


def _trace_from_id(id: str) -> Trace:
    digits = id.replace("-", "").lower()[:32]
    return Trace(digits, digits[16:], None)


CURRENT_WORK: ContextVar[CurrentWork | None] = ContextVar("angarium_current_work", default=None)


def current_trace() -> Trace | None:
    found = CURRENT_WORK.get()
    return None if found is None else found.trace
