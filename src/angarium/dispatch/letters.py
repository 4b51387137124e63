"""Dead letters as an operator handles them: looked through, found by message, retried, dropped.

A letter stands in the stream of its partition; whoever looks through all of them walks through
the partitions in turn, and goes on later from a mark. What is done to all letters is done to
those that were there when it began: one that dies again meanwhile is not taken up once more.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from angarium.dispatch.errors import DeadLetterUnknown, DeadLetterUnusable
from angarium.dispatch.identity import is_message_id, partition_of_id
from angarium.dispatch.store import DeadLetter, DispatchStore
from angarium.runtime.errors import InputInvalid

# A letter may be as large as a frame; so many of them fit into memory at once.
CHUNK = 100
_MARK = re.compile(r"(\d{1,9}):(\d{1,20})-(\d{1,20})", re.ASCII)
_NUMBER_MAX = 2**64 - 1

Act = Callable[[int, Sequence[str]], Awaitable[list[str]]]
"""Does something to entries of one partition; a status for each."""


class ShownLetter(msgspec.Struct, frozen=True):
    """`payload` is text, or base64 where it is no UTF-8; null when it is gone from Redis."""

    message_id: str
    partition: int
    at_ms: int
    deliveries: int
    reasons: Sequence[str]
    payload: str | None
    payload_encoding: Literal["utf-8", "base64"]
    payload_bytes: int
    payload_cut: bool


def mark_of(letter: DeadLetter) -> str:
    """Where to go on after this letter."""
    return f"{letter.partition}:{letter.entry_id}"


class DeadLetters:
    def __init__(self, store: DispatchStore) -> None:
        self._store = store

    async def walk(self, after: str | None = None) -> AsyncIterator[DeadLetter]:
        """Every letter that is there now, behind the mark `after`."""
        first, entry_id = (0, "-") if after is None else self._place(after)
        for partition in range(first, self._store.partitions):
            async for chunk in self._chunks(partition, entry_id):
                for letter in chunk:
                    yield letter
            entry_id = "-"

    async def find(self, message_id: str) -> DeadLetter:
        """The letter of one message; looks through those of its partition."""
        wanted = message_id.lower()
        if is_message_id(wanted.encode()):
            partition = partition_of_id(wanted.encode(), self._store.partitions)
            async for chunk in self._chunks(partition):
                for letter in chunk:
                    if letter.message_id == wanted:
                        return letter
        raise _unknown(message_id)

    async def retry(self, message_id: str) -> None:
        """Pending again, with all its deliveries before it."""
        letter = await self.find(message_id)
        (status,) = await self._store.retry_dead(letter.partition, [letter.entry_id])
        if status == "unusable":
            raise DeadLetterUnusable(f"the payload of message {message_id} is gone from Redis")
        if status == "unknown":
            raise _unknown(message_id)

    async def drop(self, message_id: str) -> None:
        letter = await self.find(message_id)
        (status,) = await self._store.drop_dead(letter.partition, [letter.entry_id])
        if status == "unknown":
            raise _unknown(message_id)

    async def retry_all(self) -> Counter[str]:
        """How many were `retried`, and how many are `unusable`."""
        return await self._all(self._store.retry_dead)

    async def drop_all(self) -> Counter[str]:
        return await self._all(self._store.drop_dead)

    async def _all(self, act: Act) -> Counter[str]:
        statuses: Counter[str] = Counter()
        for partition in range(self._store.partitions):
            async for chunk in self._chunks(partition):
                statuses.update(await act(partition, [letter.entry_id for letter in chunk]))
        # Gone between the look and the act: somebody else has seen to it.
        del statuses["unknown"]
        return statuses

    async def _chunks(self, partition: int, after: str = "-") -> AsyncIterator[list[DeadLetter]]:
        until = await self._store.newest_dead(partition)
        if until is None:
            return
        while chunk := await self._store.dead_letters(partition, CHUNK, after, until):
            yield chunk
            after = chunk[-1].entry_id

    def _place(self, mark: str) -> tuple[int, str]:
        match = _MARK.fullmatch(mark)
        if match is None or int(match[1]) >= self._store.partitions:
            raise InputInvalid(f"{mark[:100]!r} is no mark that a list of dead letters gave")
        if max(int(match[2]), int(match[3])) > _NUMBER_MAX:
            raise InputInvalid(f"{mark[:100]!r} is no mark that a list of dead letters gave")
        return int(match[1]), f"{match[2]}-{match[3]}"


def shown(letter: DeadLetter, bytes_max: int | None = None) -> ShownLetter:
    payload = b"" if letter.payload is None else letter.payload
    text, encoding = _text(payload, len(payload) if bytes_max is None else bytes_max)
    return ShownLetter(
        letter.message_id,
        letter.partition,
        letter.at_ms,
        letter.deliveries,
        letter.reasons,
        None if letter.payload is None else text,
        encoding,
        len(payload),
        bytes_max is not None and len(payload) > bytes_max,
    )


def _text(payload: bytes, bytes_max: int) -> tuple[str, Literal["utf-8", "base64"]]:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload[:bytes_max]).decode(), "base64"
    # A letter that the cut went through is left out.
    return payload[:bytes_max].decode(errors="ignore"), "utf-8"


def _unknown(message_id: str) -> DeadLetterUnknown:
    return DeadLetterUnknown(f"there is no dead letter of message {message_id[:100]!r}")
