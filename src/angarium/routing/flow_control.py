"""Bounds the bytes that a relay holds and Redis has not stored yet, over all connections.

At the limit the relay stops reading from a connection that brings more; its bytes wait in the
kernel, and then at the sender. When half of the bytes are stored, the relay resumes paused
connections, the longest paused first and a few at a time. A message that has begun and not ended
can't be paused for ever, so a connection that exceeds the limit with such messages is refused.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from angarium.runtime.errors import Overloaded

# Each resumed connection brings a full socket buffer at once.
RESUMED_TOGETHER = 16
RESUME_S = 0.01
# Receive buffer of each connection. The kernel's own choice would be several megabytes on a fast
# line.
SOCKET_BYTES = 256 * 1024


class Pausable(Protocol):
    def resume(self) -> None:
        """Read again."""


class FlowControl:
    """Counts the bytes of complete messages and those of messages without their end."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._paused: dict[Pausable, None] = {}
        self._scheduled = False
        self.complete_bytes = 0
        self.partial_bytes = 0

    @property
    def full(self) -> bool:
        return self.complete_bytes >= self._bytes_max

    def is_paused(self, connection: Pausable) -> bool:
        return connection in self._paused

    def pause(self, connection: Pausable) -> None:
        """The caller has stopped reading; its `resume` is called when there is space again."""
        self._paused[connection] = None

    def remove(self, connection: Pausable) -> None:
        self._paused.pop(connection, None)

    def message_received(self, size_bytes: int) -> None:
        self.complete_bytes += size_bytes

    def message_released(self, size_bytes: int) -> None:
        """Redis has stored the message or it failed: this process holds it no longer."""
        self.complete_bytes -= size_bytes
        if self._paused and not self._scheduled and self.complete_bytes <= self._bytes_max // 2:
            self._scheduled = True
            self._loop.call_soon(self._resume)

    def partial_grew(self, size_bytes: int) -> None:
        """The bytes of a message without its end changed; negative when it ended."""
        self.partial_bytes += size_bytes
        if size_bytes > 0 and self.partial_bytes > self._bytes_max:
            raise Overloaded("relay_bytes_max", self._bytes_max)

    def _resume(self) -> None:
        self._scheduled = False
        if self.full:
            return  # Messages are held, so `message_released` schedules the next try.
        for connection in list(self._paused)[:RESUMED_TOGETHER]:
            del self._paused[connection]
            connection.resume()
        if self._paused:
            self._scheduled = True
            self._loop.call_later(RESUME_S, self._resume)
