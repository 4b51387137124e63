"""Limits the bytes that a client, and all clients of a gateway, occupy in this process. Pure.

A `ByteBudget` counts bytes for clients: messages that are being fetched, answers that wait for the
rest of their batch, frames that the client has not read. A fetch first requests its bytes; requests
are granted in order. `UnansweredCalls` counts bytes from clients: calls without an answer. The
gateway stops reading from a client beyond its limit until enough calls are answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

# The cost of a call besides its parameters: objects, a task, a place in a batch.
CALL_BYTES = 2_048
OWN_CALLS, ALL_CALLS, UNREAD, TURN = 1, 2, 4, 8
"""Why a client is not read from: its own calls, the calls of all clients, its unread bytes, the
turns of others."""

Granted = Callable[[], object]


class ByteBudget:
    """Bytes of one client as a part of the gateway's budget, or the gateway's without a `parent`.

    A request larger than the whole budget is granted when nothing else is charged.
    """

    __slots__ = ("_call_soon", "_parent", "_waiting", "bytes_max", "used")

    def __init__(
        self,
        bytes_max: int,
        call_soon: Callable[[Granted], object],
        parent: ByteBudget | None = None,
    ) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._call_soon = call_soon
        self._parent = parent
        self._waiting: list[tuple[int, Granted]] = []

    def charge(self, size: int) -> None:
        """Count bytes that exist already, whether they fit or not."""
        self.used += size
        if self._parent is not None:
            self._parent.charge(size)

    def release(self, size: int) -> None:
        self.used -= size
        if self._parent is not None:
            self._parent.release(size)
        while self._waiting and self._fits(self._waiting[0][0]):
            first, granted = self._waiting.pop(0)
            # A direct call would run inside the caller of `release`, and could nest.
            self._grant(first, partial(self._call_soon, granted))

    def request(self, size: int, granted: Granted) -> None:
        """Charge the bytes and call `granted`, now or when enough bytes are released."""
        if self._waiting or not self._fits(size):
            self._waiting.append((size, granted))
        else:
            self._grant(size, granted)

    def charge_if_free(self, size: int) -> bool:
        """Charge the bytes only if they are free now and no request waits."""
        if self._waiting or not self._fits(size):
            return False
        if self._parent is not None and not self._parent.charge_if_free(size):
            return False
        self.used += size
        return True

    def _fits(self, size: int) -> bool:
        return self.used <= 0 or self.used + size <= self.bytes_max

    def _grant(self, size: int, granted: Granted) -> None:
        self.used += size
        if self._parent is None:
            granted()
        else:
            self._parent.request(size, granted)


class PausableClient(Protocol):
    unanswered_bytes: int

    def pause_reading(self, reason: int) -> None: ...
    def resume_reading(self, reason: int) -> None: ...


class UnansweredCalls:
    """Bytes of calls without an answer, for each client and for all clients."""

    def __init__(self, client_bytes_max: int, gateway_bytes_max: int) -> None:
        self._client_max = client_bytes_max
        self._gateway_max = gateway_bytes_max
        self._paused: set[PausableClient] = set()
        self.total_bytes = 0

    def begin(self, client: PausableClient, size: int) -> None:
        client.unanswered_bytes += size
        self.total_bytes += size
        if client.unanswered_bytes > self._client_max:
            client.pause_reading(OWN_CALLS)
        if self.total_bytes > self._gateway_max:
            self._paused.add(client)
            client.pause_reading(ALL_CALLS)

    def end(self, client: PausableClient, size: int) -> None:
        client.unanswered_bytes -= size
        self.total_bytes -= size
        if client.unanswered_bytes <= self._client_max // 2:
            client.resume_reading(OWN_CALLS)
        if self._paused and self.total_bytes <= self._gateway_max // 2:
            paused, self._paused = self._paused, set()
            for each in paused:
                each.resume_reading(ALL_CALLS)
