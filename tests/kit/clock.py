"""A clock that stands still until the test moves it.

It keeps whole microseconds, so that ten steps of 0.1 s are one second. Sleepers wake in the
order of their time, those of the same time in the order they went to sleep, and each one runs
until it waits again before the next is woken.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

from tests.kit.eventually import DEADLINE_S, eventually

EPOCH_MS = 1_700_000_000_000
# How often the loop is given way after a wake-up: enough for a chain of awaits inside the
# process. Work that goes over a socket takes real time; wait for its effect, or for `sleepers`.
TURNS = 25


class FakeClock:
    """Implements angarium.runtime.clock.Clock; `now_ms` answers the time the test owns."""

    def __init__(self, now_ms: int = EPOCH_MS) -> None:
        self._start_ms = now_ms
        self._elapsed_us = 0
        self._order = itertools.count()
        self._asleep: list[tuple[int, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._elapsed_us / 1_000_000

    def now_ms(self) -> int:
        return self._start_ms + self._elapsed_us // 1_000

    @property
    def sleepers(self) -> int:
        return sum(not future.done() for _, _, future in self._asleep)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due_us = self._elapsed_us + max(1, round(seconds * 1_000_000))
        heapq.heappush(self._asleep, (due_us, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> int:
        """Move on, waking everyone who is due on the way, also those who go to sleep again.

        Returns how many were woken.
        """
        if seconds < 0:
            raise ValueError("a clock does not run backwards")
        end_us = self._elapsed_us + round(seconds * 1_000_000)
        woken = 0
        await _settle()  # who was just started may not have gone to sleep yet
        while self._asleep and self._asleep[0][0] <= end_us:
            due_us, _, future = heapq.heappop(self._asleep)
            if future.done():
                continue
            self._elapsed_us = max(self._elapsed_us, due_us)
            future.set_result(None)
            woken += 1
            await _settle()
        self._elapsed_us = end_us
        return woken

    def stall(self, seconds: float) -> None:
        """Let time pass without waking anyone, as for a process that was stopped."""
        self._elapsed_us += round(seconds * 1_000_000)

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward or back without waking anyone: a wrong clock."""
        self._start_ms += milliseconds

    async def wait_for_sleepers(self, n: int = 1, deadline_s: float = DEADLINE_S) -> None:
        """Wait in real time until n are asleep, so that `advance` finds them."""
        await eventually(lambda: self.sleepers >= n, deadline_s)


async def _settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
