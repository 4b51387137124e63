"""Ids that grow: for rows, whose indexes take ordered keys at their end, and for anything sorted.

Unique everywhere, ordered inside a process. Stored order never rests on them alone: this
machine's clock is in them.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from uuid import UUID


class TimeOrderedIds:
    """UUIDs of version 7, each greater than the one before, even if the clock is set back.

    48 bits of milliseconds, a counter of 42 bits that starts anew at random with every
    millisecond, 32 random bits. They are for order and uniqueness; what they tell about time
    comes from this machine's clock and is nothing to rely on.
    """

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._last_ms = 0
        self._counter = 0
        self._tails: list[int] = []

    def next(self) -> UUID:
        return UUID(int=self._value())

    def next_hex(self) -> str:
        """`next().hex`, without the detour."""
        return f"{self._value():032x}"

    def forget(self) -> None:
        """In a process that was just forked: what is left here, its parent has too."""
        self._lock = threading.Lock()
        self._last_ms += 1
        self._counter = _start()
        self._tails = []

    def _value(self) -> int:
        with self._lock:
            now_ms = self._now_ns() // 1_000_000
            self._counter += 1
            if now_ms > self._last_ms or self._counter >> 42:
                self._last_ms = max(now_ms, self._last_ms + 1)
                self._counter = _start()
            if not self._tails:
                self._tails = list(_TAILS.unpack(os.urandom(_TAILS.size)))
            last_ms, counter, tail = self._last_ms, self._counter, self._tails.pop()
        high, low = counter >> 30, counter & 0x3FFF_FFFF
        return last_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low << 32 | tail


# Random numbers are asked for in bulk: a call into the kernel costs as much as all the rest.
_TAILS = struct.Struct("1024I")


def _start() -> int:
    """41 of 42 bits: half of the counter's range stays free above it."""
    return int.from_bytes(os.urandom(6), "big") >> 7


# The order must hold across all callers in the process, so this one instance is shared.
_IDS = TimeOrderedIds()
os.register_at_fork(after_in_child=_IDS.forget)


def time_ordered_id() -> UUID:
    """A key for rows: an index takes ordered keys at its end, and random ones all over."""
    return _IDS.next()


def time_ordered_hex() -> str:
    """The same as 32 digits."""
    return _IDS.next_hex()
