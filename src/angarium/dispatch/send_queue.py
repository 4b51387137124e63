"""Accepted messages that this leader sends as soon as a worker has a free slot.

Redis stores the time of acceptance as the time of sending. So a message may wait here for only a
part of the time-out: a queue that moves too slowly takes no more, and messages that waited too
long are given back to Redis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from angarium.dispatch.frames import DispatchedMessage
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.worker_connection import WorkerConnection
from angarium.dispatch.worker_pool import WorkerPool
from angarium.runtime.clock import Clock

# Parts of the time-out. The queue is full when its first message is FULL_PART old. A message
# expires when it is EXPIRY_PART old: a worker renews it at most 0.42 of the
# time-out later.
FULL_PART = 0.15
EXPIRY_PART = 0.25


class SendQueue:
    def __init__(
        self, workers: WorkerPool, clock: Clock, ack_timeout_s: float, limits: DispatchLimits
    ) -> None:
        self._workers = workers
        self._limits = limits
        self._clock = clock
        self._full_s = ack_timeout_s * FULL_PART
        self._expiry_s = ack_timeout_s * EXPIRY_PART
        self._chunks: deque[
            tuple[float, Sequence[DispatchedMessage], Sequence[WorkerConnection | None]]
        ] = deque()
        self._count = 0
        self._bytes = 0

    def __bool__(self) -> bool:
        return self._count > 0

    @property
    def free_slots(self) -> int:
        if self._chunks and self._clock.monotonic() - self._chunks[0][0] > self._full_s:
            return 0
        if self._bytes >= self._limits.ready_bytes_max:
            return 0
        return max(0, self._limits.ready_messages_max - self._count)

    def add(
        self,
        messages: Sequence[DispatchedMessage],
        avoid: Sequence[WorkerConnection | None] = (),
    ) -> None:
        """`avoid`: see `WorkerPool.distribute`."""
        if messages:
            self._chunks.append((self._clock.monotonic(), messages, avoid))
            self._count += len(messages)
            self._bytes += _bytes_of(messages)

    def send(self) -> int:
        """Send as many messages as workers have free slots, oldest first; the number sent."""
        sent = 0
        while self._chunks:
            added_s, messages, avoid = self._chunks.popleft()
            part = self._workers.distribute(messages, avoid)
            sent += part
            self._bytes -= _bytes_of(messages[:part])
            if part < len(messages):
                self._chunks.appendleft((added_s, messages[part:], avoid[part:]))
                break
        self._count -= sent
        return sent

    def take_expired(self) -> list[bytes]:
        """Remove the messages that waited too long; their ids."""
        ids: list[bytes] = []
        oldest = self._clock.monotonic() - self._expiry_s
        while self._chunks and self._chunks[0][0] < oldest:
            _, messages, _ = self._chunks.popleft()
            self._bytes -= _bytes_of(messages)
            ids += [message_id for message_id, _ in messages]
        self._count -= len(ids)
        return ids

    def take_all(self) -> list[bytes]:
        """Remove all messages; their ids."""
        ids = [message_id for _, messages, _ in self._chunks for message_id, _ in messages]
        self.clear()
        return ids

    def clear(self) -> None:
        self._chunks.clear()
        self._count = self._bytes = 0


def _bytes_of(messages: Sequence[DispatchedMessage]) -> int:
    return sum([len(payload) for _, payload in messages])
