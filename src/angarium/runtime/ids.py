"""Time-ordered ids (UUID version 7), for rows of tables and for anything that is sorted.

They are unique everywhere and ordered within a process. They contain this machine's clock, so no
stored order depends on them alone.
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

    An id has 48 bits of milliseconds, a counter of 42 bits that starts at a random value in each
    millisecond, and 32 random bits.
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
        """`next().hex`, without making a UUID."""
        return f"{self._value():032x}"

    def forget(self) -> None:
        """Call this in a forked process: its parent has the same counter and random numbers."""
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


# Random numbers are read in bulk: a system call costs as much as the rest of an id.
_TAILS = struct.Struct("1024I")


def _start() -> int:
    """41 of 42 bits, so that at least half of the counter's range is left."""
    return int.from_bytes(os.urandom(6), "big") >> 7


# All callers in the process share this instance, so that their ids are in one order.
_IDS = TimeOrderedIds()
os.register_at_fork(after_in_child=_IDS.forget)


def time_ordered_id() -> UUID:
    """A primary key for rows: an index appends ordered keys, and inserts random keys anywhere."""
    return _IDS.next()


def time_ordered_hex() -> str:
    """The same as 32 hexadecimal digits."""

    return _IDS.next_hex()
