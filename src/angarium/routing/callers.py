"""Callers at the relay who wait for a direct response.

A call has an id that names its relay; the answer comes back under it, or the time is up and the
caller is told that its message was taken, which it was.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets

from angarium.routing.items import DirectResponse
from angarium.runtime.errors import Overloaded


class Callers:
    def __init__(self, timeout_s: float, waiting_max: int) -> None:
        self.relay = secrets.token_hex(8)
        self._timeout_s = timeout_s
        self._waiting_max = waiting_max
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[DirectResponse | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self) -> tuple[str, asyncio.Future[DirectResponse | None]]:
        """A new call: its id, and the future that its answer or its time-out resolves."""
        if len(self._waiting) >= self._waiting_max:
            raise Overloaded("relay_callers_max", self._waiting_max)
        loop = asyncio.get_running_loop()
        txn_id = f"{self.relay}.{next(self._numbers)}"
        future: asyncio.Future[DirectResponse | None] = loop.create_future()
        self._waiting[txn_id] = future
        timer = loop.call_later(self._timeout_s, _resolve, future, None)

        def forget(_: object) -> None:
            timer.cancel()
            self._waiting.pop(txn_id, None)

        future.add_done_callback(forget)
        return txn_id, future

    def answer(self, response: DirectResponse) -> bool:
        """Whether somebody was still waiting for it."""
        future = self._waiting.get(response.txn_id)
        if future is None or future.done():
            return False
        future.set_result(response)
        return True

    def end(self) -> None:
        """Everybody is told at once that there will be no answer."""
        for future in list(self._waiting.values()):
            _resolve(future, None)


def _resolve(future: asyncio.Future[DirectResponse | None], value: DirectResponse | None) -> None:
    if not future.done():
        future.set_result(value)
