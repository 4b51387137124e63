"""The two clocks of a process: durations, and (for tests only) the time scripts see.

Redis `TIME` inside a script is the only clock for anything stored, so `now_ms` is None in
production and the script asks Redis. A test's clock answers a number instead and owns time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds, for durations inside this process."""

    def now_ms(self) -> int | None:
        """None: the script asks Redis. A number: a test owns time."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int | None:
        return None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
