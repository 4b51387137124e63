"""Bounds what a relay holds of messages that Redis has not taken yet, over all its connections.

At the limit a connection that brings more is paused: its bytes wait in the kernel, and then at the
sender. Paused connections are resumed a few at a time, oldest first, when half of the bytes are
gone. A message that has begun and not ended can't be paused for ever, so what goes over the limit
there is refused.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from angarium.runtime.errors import Overloaded

# Each resumed connection brings a full socket buffer at once.
RESUMED_TOGETHER = 16
RESUME_S = 0.01
# Of each connection's socket. A sender on a fast line would otherwise get several megabytes.
SOCKET_BYTES = 256 * 1024


class Pausable(Protocol):
    def resume(self) -> None:
        """Read on."""


class Flow:
    """Counts `taken` bytes (whole messages) and `begun` bytes (messages without their end)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._paused: dict[Pausable, None] = {}
        self._scheduled = False
        self.taken = 0
        self.begun = 0

    @property
    def full(self) -> bool:
        return self.taken >= self._bytes_max

    def pauses(self, connection: Pausable) -> bool:
        return connection in self._paused

    def pause(self, connection: Pausable) -> None:
        """The caller has stopped to read; `resume` is called when there is space again."""
        self._paused[connection] = None

    def leave(self, connection: Pausable) -> None:
        self._paused.pop(connection, None)

    def took(self, size_bytes: int) -> None:
        self.taken += size_bytes

    def stored(self, size_bytes: int) -> None:
        """Redis has it, or it failed: either way this process no longer holds it."""
        self.taken -= size_bytes
        if self._paused and not self._scheduled and self.taken <= self._bytes_max // 2:
            self._scheduled = True
            self._loop.call_soon(self._resume)

    def grew(self, size_bytes: int) -> None:
        """A message that has begun grew, or with a negative number ended."""
        self.begun += size_bytes
        if size_bytes > 0 and self.begun > self._bytes_max:
            raise Overloaded("relay_bytes_max", self._bytes_max)

    def _resume(self) -> None:
        self._scheduled = False
        if self.full:
            return  # `stored` comes again: there are bytes that wait for it
        for connection in list(self._paused)[:RESUMED_TOGETHER]:
            del self._paused[connection]
            connection.resume()
        if self._paused:
            self._scheduled = True
            self._loop.call_later(RESUME_S, self._resume)
