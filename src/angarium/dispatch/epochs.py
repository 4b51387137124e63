"""Recently published messages, grouped into epochs, and those that no leader has accepted.

Epoch markers are published between the messages. So every dispatcher on the same server receives
the same messages between the same two markers. A leader records the digests of the messages it
accepts under the epoch in which it received them. When the leader dies, the next leader compares
its own copy of each epoch with the record, payload by payload, and accepts the difference. So no
message is accepted twice or never, even if all payloads are equal. Does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

DIGEST_BYTES = 8
PublishedMessage = tuple[bytes, bytes]
"""Payload and its digest."""


def digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


def split_digests(recorded: Iterable[bytes]) -> Counter[bytes]:
    """How often each digest was accepted, from the records of an epoch's batches."""
    return Counter(
        batch[i : i + DIGEST_BYTES]
        for batch in recorded
        for i in range(0, len(batch), DIGEST_BYTES)
    )


class EpochRing:
    """The newest epochs that are not covered yet, bounded in messages and bytes."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._epochs: OrderedDict[int, list[bytes]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._before_first_marker: list[bytes] = []
        self._current: int | None = None
        self._complete_from: int | None = None
        self.messages = 0
        self.bytes = 0
        self.dropped = 0

    @property
    def current(self) -> int | None:
        """The epoch of the messages that arrive now; None before the first marker."""
        return self._current

    def complete_since(self, epoch: int) -> bool:
        """Whether the ring holds every message published since the beginning of `epoch`."""
        return self._complete_from is not None and self._complete_from <= epoch

    def add(self, payloads: list[bytes]) -> None:
        if not payloads:
            return
        size = sum(map(len, payloads))
        if self._current is None:
            self._before_first_marker += payloads
        else:
            self._epochs[self._current] += payloads
            self._sizes[self._current] += size
        self.messages += len(payloads)
        self.bytes += size
        self._drop_excess()

    def begin_epoch(self, epoch: int) -> list[bytes]:
        """Begin `epoch`. Returns the messages that arrived before the first marker.

        Epoch numbers are consecutive, so these messages belong to the epoch before. The caller
        could not assign them to an epoch earlier.
        """
        before, self._before_first_marker = self._before_first_marker, []
        if before:
            self._epochs[epoch - 1] = before
            self._sizes[epoch - 1] = sum(map(len, before))
        if self._complete_from is None:
            self._complete_from = epoch
        self._current = epoch
        self._epochs.setdefault(epoch, [])
        self._sizes.setdefault(epoch, 0)
        return before

    def drop_covered(self, epoch: int) -> None:
        """Drop the epochs before `epoch`: all their messages are accepted in every partition."""
        while self._epochs:
            oldest = next(iter(self._epochs))
            if oldest >= epoch or oldest == self._current:
                return
            self._drop(oldest)

    def clear(self) -> None:
        """Forget everything after a gap in the subscription: the epochs may be incomplete."""
        self._epochs.clear()
        self._sizes.clear()
        self._before_first_marker.clear()
        self._current = self._complete_from = None
        self.messages = self.bytes = 0

    def epochs_from(self, covered: int) -> list[int]:
        return [epoch for epoch in self._epochs if epoch >= covered]

    def unaccepted(
        self,
        accepted: Mapping[int, Counter[bytes]],
        covered: int,
        owns: Callable[[bytes], bool],
    ) -> list[tuple[int, list[PublishedMessage]]]:
        """For each epoch the messages that nobody accepted, in order, if `owns` takes their digest.

        Among equal payloads the first ones were accepted: a leader accepts in order.
        """
        found = []
        for epoch in self.epochs_from(covered):
            left = Counter(accepted.get(epoch, {}))
            unaccepted = []
            for payload in self._epochs[epoch]:
                payload_digest = digest(payload)
                if not owns(payload_digest):
                    continue
                if left[payload_digest] > 0:
                    left[payload_digest] -= 1
                else:
                    unaccepted.append((payload, payload_digest))
            if unaccepted:
                found.append((epoch, unaccepted))
        return found

    def _drop_excess(self) -> None:
        while self.messages > self._messages_max or self.bytes > self._bytes_max:
            oldest = next(iter(self._epochs), None)
            if oldest is None or oldest == self._current:
                # The current epoch alone exceeds the limit.
                self._drop_older_half()
                continue
            self.dropped += len(self._epochs[oldest])
            self._complete_from = oldest + 1
            self._drop(oldest)

    def _drop_older_half(self) -> None:
        current = self._current
        messages = self._before_first_marker if current is None else self._epochs[current]
        dropped = messages[: (len(messages) + 1) // 2]
        del messages[: len(dropped)]
        size = sum(map(len, dropped))
        if current is not None:
            self._sizes[current] -= size
            self._complete_from = current + 1
        self.messages -= len(dropped)
        self.bytes -= size
        self.dropped += len(dropped)

    def _drop(self, epoch: int) -> None:
        self.messages -= len(self._epochs.pop(epoch))
        self.bytes -= self._sizes.pop(epoch)
