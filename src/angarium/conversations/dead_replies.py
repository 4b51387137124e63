"""Dead replies: those that were cancelled because a send failed for good.

They are kept for `dead_reply_ttl`. A person lists them, looks at one, lets it be sent again or
drops it. A retried reply gets a new place at the end of its conversation: what came after it was
sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from angarium.conversations import keys
from angarium.conversations.errors import ReplyUnknown
from angarium.conversations.model import MinMessageInfo
from angarium.conversations.script_values import NewReply, read_infos
from angarium.conversations.store import ConversationStore
from angarium.conversations.transitions import DROP_DEAD, CancelItem
from angarium.redis.connection import Command
from angarium.runtime.errors import InputInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.text import check_text

PAGE_DEFAULT, PAGE_MAX = 50, 200
LISTED_FIELDS = ("origin", "why", "awaitedRetries", "diedAtMs")


class DeadReply(msgspec.Struct, frozen=True):
    conversation_id: str
    request_id: str
    response_id: str
    origin: str
    why: str
    awaited_retries: int
    died_at_ms: int
    task: Any = None

    @classmethod
    def of(cls, info: MinMessageInfo, fields: dict[str, str]) -> DeadReply:
        content: Any = None
        if "taskItem" in fields:
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                content = msgspec.json.decode(fields["taskItem"])
        return cls(
            info.conversation_id,
            info.request_id,
            info.response_id,
            fields.get("origin", ""),
            fields.get("why", ""),
            int(fields.get("awaitedRetries", 0)),
            int(fields.get("diedAtMs", 0)),
            content,
        )


class DeadRepliesPage(msgspec.Struct, frozen=True):
    replies: Sequence[DeadReply]
    next: str | None


class DeadReplies:
    def __init__(self, runtime: Runtime, store: ConversationStore) -> None:
        self._runtime = runtime
        self._name = runtime.keyspace.name
        self._store = store

    async def count(self) -> int:
        names = [self._name(keys.DEAD_REPLIES, partition) for partition in self._store.partitions]
        return sum([await self._runtime.redis.call("ZCARD", name, key=name) for name in names])

    async def page(self, after: str | None = None, most: int = PAGE_DEFAULT) -> DeadRepliesPage:
        """A page, the oldest of each partition first. `after` is `next` of the page before."""
        partition, first = _cursor(after)
        found: list[DeadReply] = []
        while partition < len(self._store.partitions) and len(found) < most:
            rows = await self._rows(partition, first, most - len(found))
            full = len(rows) == most - len(found)
            found += rows
            partition, first = (partition, first + len(rows)) if full else (partition + 1, 0)
        more = partition < len(self._store.partitions)
        return DeadRepliesPage(found, f"{partition}:{first}" if more else None)

    async def show(self, conversation_id: str, response_id: str) -> DeadReply:
        fields = await self._fields(conversation_id, response_id)
        info = MinMessageInfo(fields["requestId"], response_id, conversation_id)
        return DeadReply.of(info, fields)

    async def retry(self, conversation_id: str, response_id: str) -> str:
        """Open its request again if it is closed, and accept the reply again. Safe to repeat."""
        fields = await self._fields(conversation_id, response_id)
        info = MinMessageInfo(fields["requestId"], response_id, conversation_id)
        origin, corr = fields["origin"], fields.get("corr", "")
        requested = int(fields["requestTimestamp"])
        await self._store.create_request(info.of_request(), origin, requested, corr)
        new = NewReply(
            conversation_id,
            info.request_id,
            response_id,
            int(fields["responseTimestamp"]),
            fields["taskItem"].encode(),
            corr,
            origin=origin,
            required_sender=fields.get("sender", ""),
        )
        await self._store.accept_reply(new)
        await self._drop(info)
        return "accepted"

    async def drop(self, conversation_id: str, response_id: str) -> str:
        """'dropped' | 'gone'."""
        fields = await self._fields(conversation_id, response_id)
        return await self._drop(MinMessageInfo(fields["requestId"], response_id, conversation_id))

    async def _rows(self, partition: int, first: int, most: int) -> list[DeadReply]:
        """Without their tasks: a task may have megabytes."""
        name = self._name(keys.DEAD_REPLIES, partition)
        found = await self._runtime.redis.call("ZRANGE", name, first, first + most - 1, key=name)
        infos = read_infos(found)
        if not infos:
            return []
        commands: list[Command] = [
            ("HMGET", self._name(keys.DEAD_REPLY, partition, info.response_id), *LISTED_FIELDS)
            for info in infos
        ]
        rows = await self._runtime.redis.execute(commands, key=name, repeatable=True)
        return [DeadReply.of(*pair) for pair in zip(infos, map(_named, rows), strict=True)]

    async def _drop(self, info: MinMessageInfo) -> str:
        partition = self._store.partition_of(info.conversation_id)
        item = CancelItem(info.response_id, info.key())
        (status,) = await self._runtime.call(DROP_DEAD, partition, None, [item])
        return str(status)

    async def _fields(self, conversation_id: str, response_id: str) -> dict[str, str]:
        partition = self._store.partition_of(conversation_id)
        name = self._name(keys.DEAD_REPLY, partition, check_text(response_id, "response id"))
        pairs = await self._runtime.redis.call("HGETALL", name, key=name)
        texts = [each.decode(errors="backslashreplace") for each in pairs]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        if fields.get("conversationId") != conversation_id:
            raise ReplyUnknown(f"there is no dead reply {response_id!r} in this conversation")
        return fields


def _named(row: Sequence[bytes | None]) -> dict[str, str]:
    """The listed fields that are stored."""
    found = zip(LISTED_FIELDS, row, strict=True)
    return {name: value.decode(errors="backslashreplace") for name, value in found if value}


def _cursor(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    partition, _, first = text.partition(":")
    if not all(
        each.isascii() and each.isdecimal() and len(each) < 16 for each in (partition, first)
    ):
        raise InputInvalid(f"{text[:100]!r} is not a page cursor; use `next` of the page before")
    return int(partition), int(first)
