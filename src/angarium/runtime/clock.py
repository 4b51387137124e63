"""The clock of a process: durations, and (for tests only) the time that scripts use.

All stored times come from Redis `TIME` inside a script, so `now_ms` is None in production. A test's
clock returns a number, and scripts use that instead.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds, for durations within this process."""

    def now_ms(self) -> int | None:
        """None: scripts use the time of Redis. A number: scripts use this time (in tests)."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int | None:
        return None

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
