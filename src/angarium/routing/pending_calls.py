"""Calls at the relay that wait for a direct response.

The id of a call begins with the id of its relay, so the response finds the relay. A call ends with
its response, or with None after the time-out; the message is queued in both cases.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets

from angarium.routing.items import DirectResponse
from angarium.runtime.errors import Overloaded


class PendingCalls:
    def __init__(self, timeout_s: float, calls_max: int) -> None:
        self.relay_id = secrets.token_hex(8)
        self._timeout_s = timeout_s
        self._calls_max = calls_max
        self._numbers = itertools.count(1)
        self._pending: dict[str, asyncio.Future[DirectResponse | None]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def open(self) -> tuple[str, asyncio.Future[DirectResponse | None]]:
        """Start a call: its id, and the future that its response or its time-out resolves."""
        if len(self._pending) >= self._calls_max:
            raise Overloaded("relay_callers_max", self._calls_max)
        loop = asyncio.get_running_loop()
        txn_id = f"{self.relay_id}.{next(self._numbers)}"
        future: asyncio.Future[DirectResponse | None] = loop.create_future()
        self._pending[txn_id] = future
        timer = loop.call_later(self._timeout_s, _resolve, future, None)

        def forget(_: object) -> None:
            timer.cancel()
            self._pending.pop(txn_id, None)

        future.add_done_callback(forget)
        return txn_id, future

    def resolve(self, response: DirectResponse) -> None:
        """A response to a call that has ended is dropped."""
        future = self._pending.get(response.txn_id)
        if future is not None:
            _resolve(future, response)

    def end_all(self) -> None:
        """End every call at once, without a response."""
        for future in list(self._pending.values()):
            _resolve(future, None)


def _resolve(future: asyncio.Future[DirectResponse | None], value: DirectResponse | None) -> None:
    if not future.done():
        future.set_result(value)
