"""What became of a message: waiting, pending, finished with a result, or dead.

A message moves one way: durable intake, pending, then results or dead letters. The places are read
in this order, so a message that moves meanwhile is found in a later place. Nothing is written for a
look-up when a message completes: its result is searched in the stream, newest first, as far back as
`limits.result_search_entries_max`. While a message is unfinished its result can only be newer than
the newest one before, so waiting reads new entries only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from angarium.dispatch import transitions
from angarium.dispatch.dead_letters import DispatchDeadLetters, payload_text
from angarium.dispatch.errors import MessageUnknown
from angarium.dispatch.failures import split_failure
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.message_ids import is_message_id, partition_of_id
from angarium.dispatch.store import DispatchStore, PendingMessage
from angarium.dispatch.transitions import FoundEntry
from angarium.redis.backoff import Backoff
from angarium.runtime.dead_letters import DeadLetterUnknown
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition

# Entries that one call reads: about a millisecond, in which Redis serves nobody else.
ENTRIES_PER_CALL = 1_000
_ATTEMPTS = re.compile(rb"(\d+)@?([^\n]*)(.*)", re.DOTALL)


class MessageState(msgspec.Struct, frozen=True):
    """`queued`: in the durable intake. `result` has the fields of the stream entry as text; null
    before the end. `reasons` and `traceback` are those of failed tries."""

    message_id: str
    state: Literal["queued", "pending", "completed", "dead"]
    at_ms: int
    deliveries: int = 0
    consumer: str | None = None
    result: dict[str, str] | None = None
    reasons: Sequence[str] = ()
    traceback: str = ""

    @property
    def final(self) -> bool:
        return self.state in ("completed", "dead")


class MessagePayload(msgspec.Struct, frozen=True):
    message_id: str
    payload: str
    payload_encoding: Literal["utf-8", "base64"]


class MessageStates:
    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store(DispatchStore)
        self._dead_letters = DispatchDeadLetters(self._store)
        self._entries_max = runtime.settings.limits_of(DispatchLimits).result_search_entries_max
        self._clock = runtime.clock

    async def find(self, message_id: str) -> MessageState:
        return await self.wait(message_id, 0)

    async def wait(self, message_id: str, timeout_s: float) -> MessageState:
        """Its state at its end, or after the time its state then. Raises MessageUnknown."""
        message_id = _checked(message_id)
        until_s = self._clock.monotonic() + timeout_s
        pause = Backoff(base_s=0.01, ceiling_s=0.25)
        after = "-"
        while True:
            newest = await self._store.newest_result_id(self._partition(message_id))
            found = await self._look(message_id, after)
            left_s = until_s - self._clock.monotonic()
            if found.final or left_s <= 0:
                return found
            after = f"({newest}"
            await self._clock.sleep(min(left_s, pause.next_delay_s()))

    async def payload(self, message_id: str) -> MessagePayload:
        """Of a message that is unfinished or dead; Redis has no payload of a finished one."""
        message_id = _checked(message_id)
        pending = await self._store.pending_message(message_id)
        found = None if pending is None else pending.payload
        if found is None:
            try:
                letter = await self._dead_letters.find(message_id)
            except DeadLetterUnknown:
                entry = await self._search(transitions.FIND_QUEUED, message_id, "-")
                found = None if entry is None else _fields(entry).get(b"payload")
            else:
                if letter.payload is not None:
                    return MessagePayload(message_id, letter.payload, letter.payload_encoding)
        if found is None:
            raise MessageUnknown(f"Redis has no payload of message {message_id}")
        return MessagePayload(message_id, *payload_text(found))

    async def newest_results(self, limit: int) -> list[MessageState]:
        """Newest first; long fields are cut."""
        found = [
            MessageState(
                _text(row.message_id), "completed", int(row.entry_id.partition("-")[0]),
                consumer=_text(row.consumer), result=_pairs(row.fields),
            )
            for partition in range(self._store.partitions)
            for row in await self._store.newest_results(partition, limit)
        ]  # fmt: skip
        return sorted(found, key=lambda each: each.at_ms, reverse=True)[:limit]

    async def _look(self, message_id: str, after: str) -> MessageState:
        queued = await self._search(transitions.FIND_QUEUED, message_id, "-")
        if queued is not None:
            return MessageState(message_id, "queued", _at_ms(queued))
        pending = await self._store.pending_message(message_id)
        if pending is not None:
            return _pending_state(message_id, pending)
        entry = await self._search(transitions.FIND_RESULT, message_id, after)
        if entry is not None:
            return _completed_state(message_id, entry)
        try:
            letter = await self._dead_letters.find(message_id)
        except DeadLetterUnknown:
            raise MessageUnknown(
                f"message {message_id} is not queued, pending or dead, and has no result among the "
                f"newest {self._entries_max}; `angarium find {message_id}` reads its history"
            ) from None
        return MessageState(
            message_id, "dead", letter.at_ms, letter.tries,
            reasons=letter.reasons, traceback=letter.traceback,
        )  # fmt: skip

    async def _search(
        self, transition: Transition[Any], message_id: str, after: str
    ) -> FoundEntry | None:
        until_id = "+"
        for _ in range(0, self._entries_max, ENTRIES_PER_CALL):
            found = await self._store.find_entry(
                transition, message_id, ENTRIES_PER_CALL, after=after, until_id=until_id
            )
            if isinstance(found, FoundEntry):
                return found
            if not found.oldest:
                break
            until_id = f"({found.oldest}"
        return None

    def _partition(self, message_id: str) -> int:
        return partition_of_id(message_id.encode(), self._store.partitions)


def _checked(message_id: str) -> str:
    lower = message_id.lower()
    if not is_message_id(lower.encode(errors="replace")):
        raise MessageUnknown(f"{message_id[:100]!r} is no id of a message, which is a UUID")
    return lower


def _pending_state(message_id: str, pending: PendingMessage) -> MessageState:
    match = _ATTEMPTS.fullmatch(pending.attempts)
    deliveries, holder, lines = match.groups() if match is not None else (b"1", b"", b"")
    failures = [split_failure(each) for each in lines.decode(errors="replace").split("\n") if each]
    return MessageState(
        message_id, "pending", pending.at_ms, int(deliveries), holder.decode() or None,
        reasons=[reason for reason, _ in failures],
        traceback=failures[-1][1] if failures else "",
    )  # fmt: skip


def _completed_state(message_id: str, entry: FoundEntry) -> MessageState:
    fields = {_text(name): _text(value) for name, value in _fields(entry).items()}
    del fields["message_id"]
    consumer = fields.pop("consumer_id", None)
    return MessageState(
        message_id, "completed", _at_ms(entry), consumer=consumer, result=fields
    )  # fmt: skip


def _pairs(joined: bytes) -> dict[str, str]:
    parts = joined.split(b"\0") if joined else []
    return {_text(name): _text(text) for name, text in zip(parts[::2], parts[1::2], strict=False)}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _fields(entry: FoundEntry) -> dict[bytes, bytes]:
    return dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))


def _at_ms(entry: FoundEntry) -> int:
    return int(entry.entry_id.partition("-")[0])
