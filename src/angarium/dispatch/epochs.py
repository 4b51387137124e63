"""What a dispatcher heard lately, cut into epochs, and what of it nobody has accepted.

Marks are published between the messages, so every dispatcher on the same server sees the same
messages between the same two marks. A leader records the digests of what it accepts under the
epoch it heard them in. So when it dies, another compares its own copy of that epoch with the
record, payload by payload, and accepts the difference: nothing twice, nothing never, even where
all payloads are alike. Pure: it knows neither Redis nor time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

DIGEST_BYTES = 8


def digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


def split_digests(recorded: Iterable[bytes]) -> Counter[bytes]:
    """How often each digest was accepted, from the records of an epoch's batches."""
    return Counter(
        batch[i : i + DIGEST_BYTES]
        for batch in recorded
        for i in range(0, len(batch), DIGEST_BYTES)
    )


class Ring:
    """The newest epochs that are not covered yet, bounded in messages and bytes."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._epochs: OrderedDict[int, list[bytes]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._unplaced: list[bytes] = []
        self._current: int | None = None
        self._whole_from: int | None = None
        self.messages = 0
        self.bytes = 0
        self.dropped = 0

    @property
    def current(self) -> int | None:
        """The epoch that messages fall into now; None until the first mark."""
        return self._current

    def whole_since(self, epoch: int) -> bool:
        """Whether everything published since the beginning of `epoch` was heard and is here."""
        return self._whole_from is not None and self._whole_from <= epoch

    def add(self, payloads: list[bytes]) -> None:
        if not payloads:
            return
        size = sum(map(len, payloads))
        if self._current is None:
            self._unplaced += payloads
        else:
            self._epochs[self._current] += payloads
            self._sizes[self._current] += size
        self.messages += len(payloads)
        self.bytes += size
        self._bound()

    def mark(self, epoch: int) -> list[bytes]:
        """`epoch` begins. What came before the first mark heard belongs to the epoch before it,
        for marks are consecutive; it is returned, because nobody could be told its epoch yet."""
        before, self._unplaced = self._unplaced, []
        if before:
            self._epochs[epoch - 1] = before
            self._sizes[epoch - 1] = sum(map(len, before))
        if self._whole_from is None:
            self._whole_from = epoch
        self._current = epoch
        self._epochs.setdefault(epoch, [])
        self._sizes.setdefault(epoch, 0)
        return before

    def cover(self, epoch: int) -> None:
        """All before `epoch` is accepted in every partition: forget it."""
        while self._epochs:
            oldest = next(iter(self._epochs))
            if oldest >= epoch or oldest == self._current:
                return
            self._forget(oldest)

    def forget_all(self) -> None:
        """Something was missed: what is here no longer tells what an epoch held."""
        self._epochs.clear()
        self._sizes.clear()
        self._unplaced.clear()
        self._current = self._whole_from = None
        self.messages = self.bytes = 0

    def epochs_from(self, covered: int) -> list[int]:
        return [epoch for epoch in self._epochs if epoch >= covered]

    def missing(
        self,
        accepted: Mapping[int, Counter[bytes]],
        covered: int,
        ours: Callable[[bytes], bool],
    ) -> list[tuple[int, list[tuple[bytes, bytes]]]]:
        """For each epoch, payload and digest of what is `ours` and was not accepted, in order.

        Among equal payloads the first ones were accepted: a leader accepts in order.
        """
        found = []
        for epoch in self.epochs_from(covered):
            left = Counter(accepted.get(epoch, {}))
            missing = []
            for payload in self._epochs[epoch]:
                mark = digest(payload)
                if not ours(mark):
                    continue
                if left[mark] > 0:
                    left[mark] -= 1
                else:
                    missing.append((payload, mark))
            if missing:
                found.append((epoch, missing))
        return found

    def _bound(self) -> None:
        while self.messages > self._messages_max or self.bytes > self._bytes_max:
            oldest = next(iter(self._epochs), None)
            if oldest is None or oldest == self._current:
                # One epoch alone is too much; the older half of it has to go.
                self._halve()
                continue
            self.dropped += len(self._epochs[oldest])
            self._whole_from = oldest + 1
            self._forget(oldest)

    def _halve(self) -> None:
        messages = self._unplaced if self._current is None else self._epochs[self._current]
        given_up = messages[: (len(messages) + 1) // 2]
        del messages[: len(given_up)]
        size = sum(map(len, given_up))
        if self._current is not None:
            self._sizes[self._current] -= size
            self._whole_from = self._current + 1
        self.messages -= len(given_up)
        self.bytes -= size
        self.dropped += len(given_up)

    def _forget(self, epoch: int) -> None:
        self.messages -= len(self._epochs.pop(epoch))
        self.bytes -= self._sizes.pop(epoch)
