"""Dead replies: those that were cancelled because a send failed for good.

They are kept for `dead_reply_ttl`. A retried reply gets a new place at the end of its conversation:
what came after it was sent. Each partition has a sorted set of its dead replies, by the time of
their death, and a hash for each. A member without its hash is no dead reply any more: the hash has
expired, or a later reply with the same id has replaced it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from angarium.conversations import keys
from angarium.conversations.model import MinMessageInfo, read_task
from angarium.conversations.script_values import NewReply, read_infos
from angarium.conversations.store import ConversationStore
from angarium.conversations.transitions import DROP_DEAD, DropRepliesArgs, DropReplyItem
from angarium.redis.connection import Command
from angarium.runtime.dead_letters import (
    PAGE_DEFAULT,
    DeadLetter,
    DeadLetterPage,
    DeadLetters,
    DeadLetterUnusable,
    unknown,
)
from angarium.runtime.errors import Conflict, InputInvalid, NotFound
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text

# Dead replies that one call reads or drops.
CHUNK = 100
# Without the task, which may have megabytes.
LISTED_FIELDS = ("conversationId", "requestId", "origin", "why", "awaitedRetries", "place")
_CURSOR = re.compile(r"(\d{1,9}):(\d{1,15}):([\w=-]+)", re.ASCII)


class DeadReply(DeadLetter, frozen=True, kw_only=True):
    """`id` is that of the response. Lists leave `task` out."""

    conversation_id: str
    request_id: str
    origin: str
    task: Any = None


class _Position(NamedTuple):
    """Where a dead reply stands. Redis orders those of one millisecond by their members."""

    partition: int
    at_ms: int
    member: bytes


class _StoredReply(NamedTuple):
    position: _Position
    info: MinMessageInfo
    fields: Mapping[str, bytes]

    @property
    def why(self) -> str:
        return self._text("why")

    @property
    def place(self) -> int:
        """Its place in the conversation before it died."""
        return self._number("place")

    def view(self) -> DeadReply:
        task: Any = None
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            task = msgspec.json.decode(self.fields.get("taskItem", b""))
        return DeadReply(
            id=self.info.response_id,
            at_ms=self.position.at_ms,
            tries=self._number("awaitedRetries"),
            reason=self.why,
            conversation_id=self.info.conversation_id,
            request_id=self.info.request_id,
            origin=self._text("origin"),
            task=task,
        )

    def _text(self, name: str) -> str:
        return self.fields.get(name, b"").decode(errors="backslashreplace")

    def _number(self, name: str) -> int:
        value = self.fields.get(name, b"")
        return int(value) if value.isdigit() else 0


class DeadReplies(DeadLetters[DeadReply]):
    columns = ("conversation_id",)

    def __init__(self, runtime: Runtime, store: ConversationStore) -> None:
        self._runtime = runtime
        self._name = runtime.keyspace.name
        self._store = store

    async def count(self) -> int:
        names = [self._name(keys.DEAD_REPLIES, partition) for partition in self._store.partitions]
        return sum([await self._runtime.redis.call("ZCARD", name, key=name) for name in names])

    async def page(
        self, limit: int = PAGE_DEFAULT, after: str | None = None, reason: str = ""
    ) -> DeadLetterPage[DeadReply]:
        """The oldest of each partition first."""
        start = None if after is None else _position(after, len(self._store.partitions))
        page: list[_StoredReply] = []
        async for found in self._walk(reason, start):
            if len(page) == limit:
                return DeadLetterPage([each.view() for each in page], _cursor(page[-1].position))
            page.append(found)
        return DeadLetterPage([each.view() for each in page])

    async def find(self, id: str) -> DeadReply:
        return (await self._locate(id)).view()

    async def retry(self, id: str) -> None:
        """Open its request again if it is closed, and accept the reply again. Safe to repeat."""
        await self._retry(await self._locate(id))

    async def drop(self, id: str) -> None:
        if not await self._drop([await self._locate(id)]):
            raise unknown(id)

    async def retry_all(self, reason: str = "") -> Mapping[str, int]:
        """A reply whose id another one has taken meanwhile counts as `unusable`. Stops with
        `Overloaded` at a conversation that is full."""
        outcomes = Counter(retried=0, unusable=0)
        for listed in _in_order([each async for each in self._walk(reason)]):
            found = await self._read(listed.position.partition, listed.info.response_id)
            if found is None or found.position != listed.position:
                continue  # somebody else has retried or dropped it
            try:
                await self._retry(found)
                outcomes["retried"] += 1
            except (Conflict, NotFound):
                outcomes["unusable"] += 1
        return outcomes

    async def drop_all(self, reason: str = "") -> int:
        # All are listed before the first is dropped: dropping would move the list under the walk.
        dropped, found = 0, [each async for each in self._walk(reason)]
        for _, group in groupby(found, lambda each: each.position.partition):
            replies = [*group]
            for start in range(0, len(replies), CHUNK):
                dropped += await self._drop(replies[start : start + CHUNK])
        return dropped

    # One of them

    async def _locate(self, id: str) -> _StoredReply:
        """With all its fields. An id is unique only among the conversations of a partition."""
        check_text(id, "response id")
        asked = (self._read(partition, id) for partition in self._store.partitions)
        found = [each for each in await asyncio.gather(*asked) if each is not None]
        if not found:
            raise unknown(id)
        if len(found) > 1:
            names = " and ".join(repr(each.info.conversation_id[:100]) for each in found)
            problem = f"dead replies of several conversations have the id {id[:100]!r}: {names}"
            raise Conflict(f"{problem}; retry or drop them by their reason")
        return found[0]

    async def _read(self, partition: int, id: str) -> _StoredReply | None:
        name = self._name(keys.DEAD_REPLY, partition, id)
        pairs = await self._runtime.redis.call("HGETALL", name, key=name)
        names = [each.decode(errors="replace") for each in pairs[::2]]
        fields = dict(zip(names, pairs[1::2], strict=True))
        try:
            ids = [fields[each].decode() for each in ("requestId", "conversationId")]
        except (KeyError, UnicodeDecodeError):
            return None
        info = MinMessageInfo(ids[0], id, ids[1])
        # A partition with too many dead replies has dropped the oldest from its sorted set only.
        dead = self._name(keys.DEAD_REPLIES, partition)
        at_ms = await self._runtime.redis.call("ZSCORE", dead, info.key(), key=dead)
        if at_ms is None:
            return None
        return _StoredReply(_Position(partition, int(float(at_ms)), info.key()), info, fields)

    async def _retry(self, found: _StoredReply) -> None:
        problem = f"dead reply {found.info.response_id[:100]!r} can't be retried"
        try:
            new, requested = _reread(found)
        except (KeyError, ValueError, msgspec.MsgspecError, RecursionError):
            raise DeadLetterUnusable(f"{problem}: its stored content can't be read") from None
        try:
            request = found.info.of_request()
            await self._store.create_request(request, new.origin, requested, new.corr)
            await self._store.accept_reply(new)
        except InputInvalid as error:
            raise DeadLetterUnusable(f"{problem}: {error}") from None
        await self._drop([found], retried=True)

    async def _drop(self, replies: Sequence[_StoredReply], *, retried: bool = False) -> int:
        """Replies of one partition; how many were still there. One that has died again meanwhile
        stays."""
        items = [
            DropReplyItem(each.info.response_id, each.position.member, each.position.at_ms)
            for each in replies
        ]
        partition = replies[0].position.partition
        args = DropRepliesArgs(retried)
        statuses = await self._runtime.call(DROP_DEAD, partition, args, items)
        return list(statuses).count("dropped")

    # All of them

    async def _walk(
        self, reason: str = "", after: _Position | None = None
    ) -> AsyncIterator[_StoredReply]:
        start = after or _Position(0, 0, b"")
        for partition in self._store.partitions[start.partition :]:
            since_ms = start.at_ms if partition == start.partition else 0
            async for chunk in self._positions(partition, since_ms):
                for found in await self._listed([each for each in chunk if each > start]):
                    if reason in found.why:
                        yield found

    async def _positions(self, partition: int, since_ms: int) -> AsyncIterator[list[_Position]]:
        """The members that died at `since_ms` or later. Continues by time, not by rank: ranks
        change whenever an earlier reply is retried or dropped."""
        name, skipped = self._name(keys.DEAD_REPLIES, partition), 0
        while True:
            found = await self._runtime.redis.call(
                "ZRANGEBYSCORE", name, since_ms, "+inf", "WITHSCORES", "LIMIT", skipped, CHUNK,
                key=name,
            )  # fmt: skip
            chunk = [
                _Position(partition, int(float(score)), member)
                for member, score in zip(found[::2], found[1::2], strict=True)
            ]
            yield chunk
            if len(chunk) < CHUNK:
                return
            # Many die in one millisecond: a whole request is cancelled at once.
            last_ms = chunk[-1].at_ms
            seen = sum(each.at_ms == last_ms for each in chunk)
            skipped = skipped + seen if last_ms == since_ms else seen
            since_ms = last_ms

    async def _listed(self, positions: Sequence[_Position]) -> list[_StoredReply]:
        """Those that are still stored, with the listed fields."""
        pairs = [(each, info) for each in positions for info in read_infos([each.member])]
        if not pairs:
            return []
        names = [
            self._name(keys.DEAD_REPLY, position.partition, info.response_id)
            for position, info in pairs
        ]
        commands: list[Command] = [("HMGET", name, *LISTED_FIELDS) for name in names]
        rows = await self._runtime.redis.execute(commands, key=names[0], repeatable=True)
        found = [_StoredReply(*pair, _named(row)) for pair, row in zip(pairs, rows, strict=True)]
        return [each for each in found if _is_of(each.info, each.fields)]


def _reread(found: _StoredReply) -> tuple[NewReply, int]:
    """The reply to accept again, and the timestamp of its request."""
    info, fields = found.info, found.fields
    read_task(fields["taskItem"])
    new = NewReply(
        info.conversation_id,
        info.request_id,
        info.response_id,
        int(fields["responseTimestamp"]),
        fields["taskItem"],
        fields.get("corr", b"").decode(),
        origin=fields["origin"].decode(),
        required_sender=fields.get("sender", b"").decode(),
    )
    return new, int(fields["requestTimestamp"])


def _in_order(found: Sequence[_StoredReply]) -> list[_StoredReply]:
    """The oldest first. Replies of one request keep their order, although they have died at the
    same time, or, in a long group, the last first."""
    oldest: dict[MinMessageInfo, int] = {}
    for each in found:
        request = each.info.of_request()
        oldest[request] = min(each.position.at_ms, oldest.get(request, each.position.at_ms))
    return sorted(
        found, key=lambda each: (oldest[each.info.of_request()], each.place, each.position)
    )


def _named(row: Sequence[bytes | None]) -> dict[str, bytes]:
    """The listed fields that are stored."""
    return {name: value for name, value in zip(LISTED_FIELDS, row, strict=True) if value}


def _is_of(info: MinMessageInfo, fields: Mapping[str, bytes]) -> bool:
    stored = fields.get("requestId"), fields.get("conversationId")
    return stored == (info.request_id.encode(), info.conversation_id.encode())


def _cursor(position: _Position) -> str:
    member = base64.urlsafe_b64encode(position.member).decode()
    return f"{position.partition}:{position.at_ms}:{member}"


def _position(cursor: str, partitions: int) -> _Position:
    match = _CURSOR.fullmatch(cursor)
    with contextlib.suppress(binascii.Error):
        if match is not None and int(match[1]) < partitions:
            member = base64.urlsafe_b64decode(match[3])
            return _Position(int(match[1]), int(match[2]), member)
    raise InputInvalid(f"{cursor[:100]!r} is not a page cursor; use `next` of the page before")
