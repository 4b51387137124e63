"""Accepted messages that this leader sends itself, as soon as a worker has space.

In Redis they count as sent from the moment they were accepted, so they may wait here for a part of
the time-out only: a queue that moves slower takes no more, and what waited too long is given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from angarium.dispatch.links import Link, Links, Message
from angarium.runtime.clock import Clock

# Enough to keep workers busy while the next batches are on their way; bounded in memory.
MESSAGES_MAX = 10_000
# Parts of the time-out: the queue is full when its head is this old, and the head is given back
# when it is that old, long before anybody else could hand it out.
FULL_PART = 0.25
OVERSTAYED_PART = 0.5


class Ready:
    def __init__(self, links: Links, clock: Clock, ack_timeout_s: float) -> None:
        self._links = links
        self._clock = clock
        self._full_s = ack_timeout_s * FULL_PART
        self._overstayed_s = ack_timeout_s * OVERSTAYED_PART
        self._chunks: deque[tuple[float, Sequence[Message], Sequence[Link | None]]] = deque()
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    @property
    def space(self) -> int:
        if self._chunks and self._clock.monotonic() - self._chunks[0][0] > self._full_s:
            return 0
        return max(0, MESSAGES_MAX - self._count)

    def add(self, messages: Sequence[Message], avoid: Sequence[Link | None] = ()) -> None:
        if messages:
            self._chunks.append((self._clock.monotonic(), messages, avoid))
            self._count += len(messages)

    def deal(self) -> int:
        """Send as many as workers have space for, oldest first; how many that were."""
        sent = 0
        while self._chunks:
            stamp, messages, avoid = self._chunks.popleft()
            dealt = self._links.deal(messages, avoid)
            sent += dealt
            if dealt < len(messages):
                self._chunks.appendleft((stamp, messages[dealt:], avoid[dealt:]))
                break
        self._count -= sent
        return sent

    def overstayed(self) -> list[bytes]:
        """Take out what waited too long; its ids."""
        ids: list[bytes] = []
        oldest = self._clock.monotonic() - self._overstayed_s
        while self._chunks and self._chunks[0][0] < oldest:
            ids += [message_id for message_id, _ in self._chunks.popleft()[1]]
        self._count -= len(ids)
        return ids

    def take_all(self) -> list[bytes]:
        """Take out everything; the ids."""
        ids = [message_id for _, messages, _ in self._chunks for message_id, _ in messages]
        self.clear()
        return ids

    def clear(self) -> None:
        self._chunks.clear()
        self._count = 0
