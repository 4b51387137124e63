"""Shares the time of a gateway among its clients. Pure.

A client that makes many calls in one pass of the event loop is not read from until its turn comes;
a few of the waiting clients have theirs in each pass. Clients that call less often never wait, so
their calls are delayed by a few turns at most, however many clients flood the gateway. A client
that is alone has its turn in the next pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from angarium.pickup.budget import TURN

# Of one client in one pass: about a millisecond.
TURN_CALLS = 100
# So many bytes take as long as a call.
BYTES_PER_CALL = 4_096
# Clients that have their turn in one pass. All together take about as long as a few batches.
PASS_TURNS = 4


class CallingClient(Protocol):
    turn: int
    turn_calls: int

    def pause_reading(self, reason: int) -> None: ...
    def resume_reading(self, reason: int) -> None: ...


class ReadTurns:
    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._number = 0  # of this pass of the event loop
        self._scheduled = False
        self._waiting: deque[CallingClient] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def count(self, client: CallingClient, calls: int, size: int) -> None:
        """Count the calls of a message. Messages that were read with it are still handled."""
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._next_pass)
        if client.turn != self._number:
            client.turn, client.turn_calls = self._number, 0
        before = client.turn_calls
        client.turn_calls += calls + size // BYTES_PER_CALL
        if before < TURN_CALLS <= client.turn_calls:
            client.pause_reading(TURN)
            self._waiting.append(client)

    def _next_pass(self) -> None:
        self._number += 1
        for _ in range(min(PASS_TURNS, len(self._waiting))):
            self._waiting.popleft().resume_reading(TURN)
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            self._call_soon(self._next_pass)
