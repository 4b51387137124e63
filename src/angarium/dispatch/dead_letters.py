"""Dead letters for operators: list, find by message id, retry, drop.

Each partition has a stream of dead letters. A list walks through the partitions in turn and
continues from a page cursor. `retry_all` and `drop_all` act on the dead letters that exist when
they start: a message that is dead again meanwhile is not included.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from angarium.dispatch.errors import DeadLetterUnknown, DeadLetterUnusable
from angarium.dispatch.message_ids import is_message_id, partition_of_id
from angarium.dispatch.store import DispatchDeadLetter, DispatchStore
from angarium.runtime.errors import InputInvalid

# A dead letter may be as large as a frame; this many are in memory at once.
CHUNK = 100
_CURSOR = re.compile(r"(\d{1,9}):(\d{1,20})-(\d{1,20})", re.ASCII)
_NUMBER_MAX = 2**64 - 1

Action = Callable[[int, Sequence[str]], Awaitable[list[str]]]
"""Acts on stream entries of one partition and returns a status for each."""


class DeadLetterView(msgspec.Struct, frozen=True):
    """`payload` is text, or base64 if it is not UTF-8, or null if Redis no longer has it."""

    message_id: str
    partition: int
    at_ms: int
    deliveries: int
    reasons: Sequence[str]
    payload: str | None
    payload_encoding: Literal["utf-8", "base64"]
    payload_bytes: int
    payload_cut: bool


def page_cursor(dead_letter: DispatchDeadLetter) -> str:
    """The cursor of the page that begins after this dead letter."""
    return f"{dead_letter.partition}:{dead_letter.entry_id}"


class DispatchDeadLetters:
    def __init__(self, store: DispatchStore) -> None:
        self._store = store

    async def walk(self, after: str | None = None) -> AsyncIterator[DispatchDeadLetter]:
        """Every dead letter that exists now, after the cursor `after`."""
        first, entry_id = (0, "-") if after is None else self._position(after)
        for partition in range(first, self._store.partitions):
            async for chunk in self._chunks(partition, entry_id):
                for dead_letter in chunk:
                    yield dead_letter
            entry_id = "-"

    async def find(self, message_id: str) -> DispatchDeadLetter:
        """The dead letter of one message. Reads those of its partition one by one."""
        wanted = message_id.lower()
        if is_message_id(wanted.encode()):
            partition = partition_of_id(wanted.encode(), self._store.partitions)
            async for chunk in self._chunks(partition):
                for dead_letter in chunk:
                    if dead_letter.message_id == wanted:
                        return dead_letter
        raise _unknown(message_id)

    async def retry(self, message_id: str) -> None:
        """Make the message pending again, with no delivery counted."""
        dead_letter = await self.find(message_id)
        (status,) = await self._store.retry_dead_letters(
            dead_letter.partition, [dead_letter.entry_id]
        )
        if status == "unusable":
            raise DeadLetterUnusable(
                f"the payload of message {message_id} is not in Redis any more"
            )
        if status == "unknown":
            raise _unknown(message_id)

    async def drop(self, message_id: str) -> None:
        dead_letter = await self.find(message_id)
        (status,) = await self._store.drop_dead_letters(
            dead_letter.partition, [dead_letter.entry_id]
        )
        if status == "unknown":
            raise _unknown(message_id)

    async def retry_all(self) -> Counter[str]:
        """The number of `retried` and of `unusable` dead letters."""
        return await self._all(self._store.retry_dead_letters)

    async def drop_all(self) -> Counter[str]:
        return await self._all(self._store.drop_dead_letters)

    async def _all(self, action: Action) -> Counter[str]:
        statuses: Counter[str] = Counter()
        for partition in range(self._store.partitions):
            async for chunk in self._chunks(partition):
                statuses.update(
                    await action(partition, [dead_letter.entry_id for dead_letter in chunk])
                )
        # Somebody else retried or dropped it between reading and acting.
        del statuses["unknown"]
        return statuses

    async def _chunks(
        self, partition: int, after: str = "-"
    ) -> AsyncIterator[list[DispatchDeadLetter]]:
        until = await self._store.newest_dead_letter_id(partition)
        if until is None:
            return
        while chunk := await self._store.dead_letters(partition, CHUNK, after, until):
            yield chunk
            after = chunk[-1].entry_id

    def _position(self, cursor: str) -> tuple[int, str]:
        match = _CURSOR.fullmatch(cursor)
        if (
            match is None
            or int(match[1]) >= self._store.partitions
            or max(int(match[2]), int(match[3])) > _NUMBER_MAX
        ):
            problem = "is not a page cursor that a list of dead letters returned"
            raise InputInvalid(f"{cursor[:100]!r} {problem}")
        return int(match[1]), f"{match[2]}-{match[3]}"


def dead_letter_view(
    dead_letter: DispatchDeadLetter, bytes_max: int | None = None
) -> DeadLetterView:
    """`bytes_max` cuts the payload."""
    payload = b"" if dead_letter.payload is None else dead_letter.payload
    text, encoding = _text(payload, len(payload) if bytes_max is None else bytes_max)
    return DeadLetterView(
        dead_letter.message_id,
        dead_letter.partition,
        dead_letter.at_ms,
        dead_letter.deliveries,
        dead_letter.reasons,
        None if dead_letter.payload is None else text,
        encoding,
        len(payload),
        bytes_max is not None and len(payload) > bytes_max,
    )


def _text(payload: bytes, bytes_max: int) -> tuple[str, Literal["utf-8", "base64"]]:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload[:bytes_max]).decode(), "base64"
    # A character that the cut splits is left out.
    return payload[:bytes_max].decode(errors="ignore"), "utf-8"


def _unknown(message_id: str) -> DeadLetterUnknown:
    return DeadLetterUnknown(f"there is no dead letter of message {message_id[:100]!r}")
