"""Ids that grow: for rows, whose indexes take ordered keys at their end, and for anything sorted.

Unique everywhere, ordered inside a process. Stored order never rests on them alone: this
machine's clock is in them.
"""

from __future__ import annotations

import os
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

    def next(self) -> UUID:
        random = int.from_bytes(os.urandom(10), "big")
        # Half of the counter's range stays free above the start.
        start, tail = random >> 39, random & 0xFFFF_FFFF
        with self._lock:
            now_ms = self._now_ns() // 1_000_000
            self._counter += 1
            if now_ms > self._last_ms or self._counter >> 42:
                self._last_ms = max(now_ms, self._last_ms + 1)
                self._counter = start
            last_ms, counter = self._last_ms, self._counter
        high, low = counter >> 30, counter & 0x3FFF_FFFF
        return UUID(int=last_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low << 32 | tail)


# The order must hold across all callers in the process, so this one instance is shared.
_IDS = TimeOrderedIds()


def time_ordered_id() -> UUID:
    """A key for rows: an index takes ordered keys at its end, and random ones all over."""
    return _IDS.next()
