"""Published messages of one partition that wait for acceptance, in their order, by epoch.

The queue is limited. When it is full, later messages stay in the ring alone; the leader reads them
from there once the queue is empty. Does no I/O.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from angarium.dispatch.epochs import PublishedMessage
from angarium.dispatch.frames import DispatchedMessage
from angarium.dispatch.message_ids import new_ids


@dataclass(frozen=True)
class AcceptBatch:
    """The arguments of one accept call. A repeated call has the same ids."""

    epoch: int
    messages: Sequence[DispatchedMessage]
    digests: bytes
    leadership: int  # the number of the leadership in which the messages were received


@dataclass(frozen=True)
class AcceptQueueLimits:
    messages_max: int  # in the queue
    batch_items_max: int
    batch_bytes_max: int


class AcceptQueue:
    def __init__(self, partition: int, partitions: int, limits: AcceptQueueLimits) -> None:
        self._partition = partition
        self._partitions = partitions
        self._limits = limits
        self._queue: deque[tuple[int, deque[PublishedMessage]]] = deque()
        self._retries: deque[AcceptBatch] = deque()
        self._unaccepted: Counter[int] = Counter()  # number of messages by epoch
        self.missed_from: int | None = None  # epoch of the first message that is only in the ring

    @property
    def messages(self) -> int:
        return sum(self._unaccepted.values())

    @property
    def is_full(self) -> bool:
        return self.missed_from is None and self.messages >= self._limits.messages_max

    def add(self, epoch: int, messages: Sequence[PublishedMessage]) -> None:
        if self._queue and self._queue[-1][0] == epoch:
            self._queue[-1][1].extend(messages)
        else:
            self._queue.append((epoch, deque(messages)))
        self._unaccepted[epoch] += len(messages)

    def next_batch(self, leadership: int) -> AcceptBatch | None:
        if self._retries:
            return self._retries.popleft()
        while self._queue and not self._queue[0][1]:
            self._queue.popleft()
        if not self._queue:
            return None
        epoch, waiting = self._queue[0]
        payloads: list[bytes] = []
        digests: list[bytes] = []
        size, limits = 0, self._limits
        while waiting and len(payloads) < limits.batch_items_max and size < limits.batch_bytes_max:
            payload, digest = waiting.popleft()
            payloads.append(payload)
            digests.append(digest)
            size += len(payload)
        ids = new_ids(len(payloads), self._partition, self._partitions)
        messages = list(zip(ids, payloads, strict=True))
        return AcceptBatch(epoch, messages, b"".join(digests), leadership)

    def retry(self, batch: AcceptBatch) -> None:
        self._retries.append(batch)

    def accepted(self, batch: AcceptBatch) -> None:
        self._unaccepted[batch.epoch] -= len(batch.messages)

    def first_epoch(self, current: int) -> int:
        """The first epoch with an unaccepted message, or the current one."""
        unaccepted = [epoch for epoch, count in self._unaccepted.items() if count > 0]
        missed = [] if self.missed_from is None else [self.missed_from]
        return min([*unaccepted, *missed, current])

    def forget_before(self, epoch: int) -> None:
        for each in [each for each in self._unaccepted if each < epoch]:
            del self._unaccepted[each]

    def clear(self) -> None:
        self._queue.clear()
        self._retries.clear()
        self._unaccepted.clear()
        self.missed_from = None
