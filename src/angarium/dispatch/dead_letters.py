"""Messages that failed all their deliveries.

Each partition has a stream of them. A list walks through the partitions in turn and continues from
a page cursor.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

from angarium.dispatch.message_ids import is_message_id, partition_of_id
from angarium.dispatch.store import DispatchDeadLetter, DispatchStore
from angarium.runtime.dead_letters import (
    PAGE_DEFAULT,
    DeadLetter,
    DeadLetterPage,
    DeadLetters,
    DeadLetterUnusable,
    unknown,
)
from angarium.runtime.errors import InputInvalid

# Dead letters in one reply; their bytes are limited too.
CHUNK = 100
# Enough of a payload to recognise it in a list; a single dead letter shows the whole payload.
SHOWN_BYTES_MAX = 2_000
_CURSOR = re.compile(r"(\d{1,9}):(\d{1,20})-(\d{1,20})", re.ASCII)
_NUMBER_MAX = 2**64 - 1

Action = Callable[[int, Sequence[str]], Awaitable[list[str]]]
"""Acts on stream entries of one partition and returns a status for each."""


class DeadDispatchMessage(DeadLetter, frozen=True, kw_only=True):
    """`id` is that of the message. `traceback` is that of the last failure. `payload` is text, or
    base64 if it is not UTF-8, or null if Redis no longer has it. `queue` is empty for the unnamed
    queue."""

    partition: int
    queue: str
    reasons: Sequence[str]
    traceback: str
    payload: str | None
    payload_encoding: Literal["utf-8", "base64"]
    payload_bytes: int
    payload_cut: bool


def page_cursor(dead_letter: DispatchDeadLetter) -> str:
    """The cursor of the page that begins after this dead letter."""
    return f"{dead_letter.partition}:{dead_letter.entry_id}"


class DispatchDeadLetters(DeadLetters[DeadDispatchMessage]):
    columns = ("queue", "payload")

    def __init__(self, store: DispatchStore) -> None:
        self._store = store

    async def walk(self, after: str | None = None) -> AsyncIterator[DispatchDeadLetter]:
        """Every dead letter that exists now, after the cursor `after`, with long payloads cut."""
        first, entry_id = (0, "") if after is None else self._position(after)
        for partition in range(first, self._store.partitions):
            async for chunk in self._chunks(partition, entry_id, SHOWN_BYTES_MAX):
                for dead_letter in chunk:
                    yield dead_letter
            entry_id = ""

    async def page(
        self, limit: int = PAGE_DEFAULT, after: str | None = None, reason: str = ""
    ) -> DeadLetterPage[DeadDispatchMessage]:
        page: list[DispatchDeadLetter] = []
        async for dead_letter in self.walk(after):
            if not _has_reason(dead_letter, reason):
                continue
            if len(page) == limit:
                return DeadLetterPage([*map(_view, page)], page_cursor(page[-1]))
            page.append(dead_letter)
        return DeadLetterPage([*map(_view, page)])

    async def find(self, id: str) -> DeadDispatchMessage:
        found = await self._locate(id)
        whole = await self._store.dead_letters(
            found.partition, 1, _before(found.entry_id), found.entry_id
        )
        if not whole:
            raise unknown(id)
        return _view(whole[0])

    async def _locate(self, message_id: str) -> DispatchDeadLetter:
        """Reads the dead letters of the message's partition one by one, without payloads."""
        wanted = message_id.lower()
        if is_message_id(wanted.encode()):
            partition = partition_of_id(wanted.encode(), self._store.partitions)
            async for chunk in self._chunks(partition):
                for dead_letter in chunk:
                    if dead_letter.message_id == wanted:
                        return dead_letter
        raise unknown(message_id)

    async def retry(self, id: str) -> None:
        found = await self._locate(id)
        (status,) = await self._store.retry_dead_letters(found.partition, [found.entry_id])
        if status == "unusable":
            raise DeadLetterUnusable(f"the payload of message {id} is not in Redis any more")
        if status == "unknown":
            raise unknown(id)

    async def drop(self, id: str) -> None:
        found = await self._locate(id)
        (status,) = await self._store.drop_dead_letters(found.partition, [found.entry_id])
        if status == "unknown":
            raise unknown(id)

    async def retry_all(self, reason: str = "") -> Counter[str]:
        return await self._all(self._store.retry_dead_letters, reason)

    async def drop_all(self, reason: str = "") -> int:
        return (await self._all(self._store.drop_dead_letters, reason)).total()

    async def _all(self, action: Action, reason: str) -> Counter[str]:
        statuses: Counter[str] = Counter()
        for partition in range(self._store.partitions):
            async for chunk in self._chunks(partition):
                ids = [each.entry_id for each in chunk if _has_reason(each, reason)]
                if ids:
                    statuses.update(await action(partition, ids))
        # Somebody else retried or dropped it between reading and acting.
        del statuses["unknown"]
        return statuses

    async def _chunks(
        self, partition: int, after: str = "", payload_bytes_max: int = 0
    ) -> AsyncIterator[list[DispatchDeadLetter]]:
        until = await self._store.newest_dead_letter_id(partition)
        if until is None:
            return
        while chunk := await self._store.dead_letters(
            partition, CHUNK, after, until, payload_bytes_max
        ):
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


def _view(found: DispatchDeadLetter) -> DeadDispatchMessage:
    payload = found.payload or b""
    text, encoding = payload_text(payload)
    return DeadDispatchMessage(
        id=found.message_id,
        at_ms=found.at_ms,
        tries=found.deliveries,
        reason=found.reasons[-1] if found.reasons else "",
        partition=found.partition,
        queue=found.queue,
        reasons=found.reasons,
        traceback=found.traceback,
        payload=None if found.payload is None else text,
        payload_encoding=encoding,
        payload_bytes=found.payload_bytes,
        payload_cut=len(payload) < found.payload_bytes,
    )


def _has_reason(dead_letter: DispatchDeadLetter, reason: str) -> bool:
    return not reason or (bool(dead_letter.reasons) and reason in dead_letter.reasons[-1])


def _before(entry_id: str) -> str:
    """The entry id just before this one."""
    ms, _, sequence = entry_id.partition("-")
    return f"{ms}-{int(sequence) - 1}" if int(sequence) else f"{int(ms) - 1}-{_NUMBER_MAX}"


def payload_text(payload: bytes) -> tuple[str, Literal["utf-8", "base64"]]:
    try:
        return payload.decode(), "utf-8"
    except UnicodeDecodeError as error:
        # A character that a cut splits is left out.
        if error.reason == "unexpected end of data" and len(payload) - error.start < 4:
            return payload[: error.start].decode(), "utf-8"
        return base64.b64encode(payload).decode(), "base64"
