"""Published messages of one partition that wait for acceptance, in their order, by epoch.

The queue is limited. When it is full, later messages stay in the ring alone; the leader reads them
from there once the queue is empty. Does no I/O.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from angarium.dispatch.epochs import PublishedMessage
from angarium.dispatch.frames import DispatchedMessage
from angarium.dispatch.message_ids import new_ids
from angarium.dispatch.queues import UNNAMED, unpack


@dataclass(frozen=True)
class AcceptBatch:
    """The arguments of one accept call. A repeated call has the same ids."""

    epoch: int
    messages: Sequence[DispatchedMessage]
    digests: bytes
    queue: str
    leadership: int  # the number of the leadership in which the messages were received


@dataclass(frozen=True)
class AcceptChunk:
    """Messages of one epoch and one named queue, which one call may accept together."""

    epoch: int
    queue: str
    messages: deque[PublishedMessage] = field(default_factory=deque)


@dataclass(frozen=True)
class AcceptQueueLimits:
    messages_max: int  # in the queue
    bytes_max: int  # in the queue
    batch_items_max: int
    batch_bytes_max: int


class AcceptQueue:
    def __init__(self, partition: int, partitions: int, limits: AcceptQueueLimits) -> None:
        self._partition = partition
        self._partitions = partitions
        self._limits = limits
        self._chunks: deque[AcceptChunk] = deque()
        self._newest: dict[str, AcceptChunk] = {}  # of the newest epoch, by queue
        self._retries: deque[AcceptBatch] = deque()
        self._unaccepted: Counter[int] = Counter()  # number of messages by epoch
        self._bytes = 0  # of the messages that are not accepted
        self.missed_from: int | None = None  # epoch of the first message that is only in the ring
        self.missed = 0  # number of messages that are only in the ring

    @property
    def messages(self) -> int:
        return sum(self._unaccepted.values())

    @property
    def is_full(self) -> bool:
        if self.missed_from is not None:
            return False
        limits = self._limits
        return self._bytes >= limits.bytes_max or self.messages >= limits.messages_max

    def add(self, epoch: int, messages: Sequence[PublishedMessage]) -> None:
        if any(payload[:1] == b"\0" for payload, _ in messages):
            for packed, digest in messages:
                queue, payload = unpack(packed)
                self._chunk(epoch, queue).messages.append((payload, digest))
        else:
            self._chunk(epoch, UNNAMED).messages.extend(messages)
        self._unaccepted[epoch] += len(messages)
        self._bytes += sum([len(payload) for payload, _ in messages])

    def _chunk(self, epoch: int, queue: str) -> AcceptChunk:
        """The last chunk of this epoch and queue, or a new one. An empty one may be gone."""
        found = self._newest.get(queue)
        if found is None or found.epoch != epoch or not found.messages:
            if found is None or found.epoch != epoch:
                self._newest = {
                    name: each for name, each in self._newest.items() if each.epoch == epoch
                }
            found = self._newest[queue] = AcceptChunk(epoch, queue)
            self._chunks.append(found)
        return found

    def next_batch(self, leadership: int) -> AcceptBatch | None:
        if self._retries:
            return self._retries.popleft()
        while self._chunks and not self._chunks[0].messages:
            self._chunks.popleft()
        if not self._chunks:
            return None
        chunk = self._chunks[0]
        waiting = chunk.messages
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
        return AcceptBatch(chunk.epoch, messages, b"".join(digests), chunk.queue, leadership)

    def retry(self, batch: AcceptBatch) -> None:
        self._retries.append(batch)

    def accepted(self, batch: AcceptBatch) -> None:
        self._unaccepted[batch.epoch] -= len(batch.messages)
        named = len(batch.queue) + 2 if batch.queue else 0
        self._bytes -= sum([len(payload) + named for _, payload in batch.messages])

    def first_epoch(self, current: int) -> int:
        """The first epoch with an unaccepted message, or the current one."""
        unaccepted = [epoch for epoch, count in self._unaccepted.items() if count > 0]
        missed = [] if self.missed_from is None else [self.missed_from]
        return min([*unaccepted, *missed, current])

    def forget_before(self, epoch: int) -> None:
        for each in [each for each in self._unaccepted if each < epoch]:
            del self._unaccepted[each]

    def clear(self) -> None:
        self._chunks.clear()
        self._newest.clear()
        self._retries.clear()
        self._unaccepted.clear()
        self._bytes = self.missed = 0
        self.missed_from = None
