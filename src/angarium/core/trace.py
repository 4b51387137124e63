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

TRACEPARENT = "traceparent"
LETTERS_MAX = 512
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


class Trace(NamedTuple):
    """The trace, and the span that whatever comes next is a child of."""

    trace_id: str
    span_id: str

    @property
    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"

    def child(self) -> Trace:
        return Trace(self.trace_id, secrets.token_hex(8))


def read_traceparent(text: object) -> Trace | None:
    """None for anything that is not one: a trace must never be a reason to refuse a message."""
    found = _FORM.fullmatch(text) if isinstance(text, str) and len(text) <= LETTERS_MAX else None
    if found is None or found[1] == "ff" or not (found[2].strip("0") and found[3].strip("0")):
        return None
    return Trace(found[2], found[3])


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
    def message_id(self) -> str | None:
        return self._id.decode() if self._is_message else None

    @property
    def trace(self) -> Trace:
        """The same each time it is asked."""
        if self._trace is None:
            carried = self._payload.get(TRACEPARENT) if isinstance(self._payload, dict) else None
            self._trace = read_traceparent(carried) or _trace_of(self._id)
        return self._trace

    def start_id(self) -> str | None:
        """The message's id, for the first thing that is started under it; None after that."""
        first, self._started = not self._started, True
        return self.message_id if first else None


def _trace_of(id: bytes) -> Trace:
    digits = id.decode().replace("-", "").lower()[:32]
    return Trace(digits, digits[16:])


IN_HAND: ContextVar[InHand | None] = ContextVar("angarium_in_hand", default=None)


def current_trace() -> Trace | None:
    found = IN_HAND.get()
    return None if found is None else found.trace
