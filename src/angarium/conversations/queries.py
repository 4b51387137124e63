"""Queries of the module: requests, replies and what waits, read from Redis. Nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from angarium.conversations import keys
from angarium.conversations import transitions as t
from angarium.conversations.errors import IdRefused
from angarium.conversations.ids import ConversationIds
from angarium.conversations.limits import ConversationsLimits
from angarium.conversations.model import ConversationMessage, MinMessageInfo, read_message
from angarium.conversations.script_values import (
    ConversationSnapshot,
    read_infos,
    read_queued,
    read_sender_waits,
)
from angarium.conversations.wait_reasons import OpenRequest, SenderWait
from angarium.redis.connection import Command
from angarium.runtime.process_report import read_processes
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Item, Transition

SIBLINGS_MAX = 500  # one script call blocks Redis for as long as it runs
SENDER_WAITS_MAX = 100  # senders that replies wait for, listed for people

WaitingKind = Literal["replies", "requests"]
_WAITING_KEYS = {"replies": keys.PENDING_MESSAGES, "requests": keys.OPEN_REQUESTS}


@dataclass(frozen=True)
class WaitingEntry:
    """A reply in flight and the time from which a process may claim it, or a request without a
    reply and the time at which it expires."""

    info: MinMessageInfo
    at_ms: int


class ConversationQueries:
    """`args`: those that the scripts of the module share."""

    def __init__(self, runtime: Runtime, args: t.SharedArgs) -> None:
        limits = runtime.settings.limits_of(ConversationsLimits)
        self._runtime = runtime
        self._args = args
        self._name = runtime.keyspace.name
        self._ids = ConversationIds(runtime.keyspace, limits.id_bytes_max)
        self.partition_of = self._ids.partition_of
        self.partitions = range(runtime.settings.partitions)
        self._read = runtime.batch(t.READ_MESSAGES)
        self._acks = runtime.batch(t.READ_ACKS)

    async def siblings(
        self, info: MinMessageInfo, most: int = SIBLINGS_MAX, *, last_first: bool = False
    ) -> list[MinMessageInfo]:
        """Replies in flight to the same request. `info` may lack the response id."""
        member = info.key() if info.response_id else b""
        item = t.SiblingsItem(info.conversation_id, info.request_id, member, most, last_first)
        (reply,) = await self._run(t.LIST_SIBLINGS, self.partition_of(info.conversation_id), item)
        return read_infos(reply.members)

    async def read_reply(
        self, response_id: str, conversation_id: str | None
    ) -> ConversationMessage | None:
        """Without a conversation id, every partition is asked."""
        self._ids.check("response", response_id)
        return await self._read_message(t.MessageItem("", response_id), conversation_id)

    async def read_request(
        self, request_id: str, conversation_id: str | None
    ) -> ConversationMessage | None:
        """Without a conversation id, every partition is asked."""
        self._ids.check("request", request_id)
        return await self._read_message(t.MessageItem(request_id, ""), conversation_id)

    async def read_by_key(self, key: str) -> ConversationMessage | None:
        """The reply whose hash has this key in Redis."""
        found = self._runtime.keyspace.explain(key)
        if found is None or found.key is not keys.CONVERSATION_RESPONSE:
            raise IdRefused(f"{key!r} is not the key of a reply in Redis")
        return _message(
            await self._read.submit(found.partition, t.MessageItem("", found.part or ""))
        )

    async def find_ack(self, ack_id: str, conversation_id: str | None) -> MinMessageInfo | None:
        """The reply that the client acknowledges by this id."""
        self._ids.check("ACK", ack_id)
        partitions = self._partitions_of(conversation_id)
        replies = await asyncio.gather(
            *(self._acks.submit(partition, t.ReplyAckItem(ack_id)) for partition in partitions)
        )
        found = read_infos(reply.member for reply in replies if reply != "unknown")
        matching = (info for info in found if conversation_id in (None, info.conversation_id))
        return next(matching, None)

    async def snapshot(self, conversation_id: str, most: int) -> ConversationSnapshot:
        """The first requests and replies of a conversation in order, with each reply's state."""
        partition = self.partition_of(conversation_id)
        (found,) = await self._run(
            t.DESCRIBE_CONVERSATION, partition, t.DescribeItem(conversation_id, most)
        )
        rows = [(info, row) for row in found.replies for info in read_infos([row.member])]
        stored = await self._statuses([info for info, _ in rows], partition)
        prefix = len(self._name(keys.CONVERSATION_REQUEST, partition, ""))
        return ConversationSnapshot(
            found.now_ms,
            found.requests_total,
            found.replies_total,
            [OpenRequest(row.key[prefix:], *row[1:]) for row in found.requests],
            [
                read_queued(info, row, fields)
                for (info, row), fields in zip(rows, stored, strict=True)
            ],
        )

    async def in_flight(self, partition: int) -> tuple[int, int]:
        """Counts: replies in flight, requests without a reply."""
        pending = self._name(keys.PENDING_MESSAGES, partition)
        opened = self._name(keys.OPEN_REQUESTS, partition)
        replies, requests = await self._runtime.redis.execute(
            [("ZCARD", pending), ("ZCARD", opened)], key=pending, repeatable=True
        )
        return replies, requests

    async def sender_waits(
        self, partition: int, most: int = SENDER_WAITS_MAX
    ) -> tuple[int, list[SenderWait]]:
        """Redis time (ms), and the replies that wait for a process with their sender."""
        (found,) = await self._run(t.LIST_SENDER_WAITS, partition, t.Most(most))
        return found.now_ms, read_sender_waits(found.rows)

    async def running_senders(self) -> Mapping[str, int]:
        """Sender name → number of running processes that have it, from their reports."""
        found: dict[str, int] = {}
        for process in await read_processes(self._runtime):
            with contextlib.suppress(msgspec.MsgspecError):
                names = process.figures.get("senders", "[]")
                for name in msgspec.json.decode(str(names), type=tuple[str, ...]):
                    found[name] = found.get(name, 0) + 1
        return found

    async def waiting(
        self, kind: WaitingKind, partition: int, first: int, count: int
    ) -> list[WaitingEntry]:
        """A page of what waits, the earliest time first."""
        name = self._name(_WAITING_KEYS[kind], partition)
        found = await self._runtime.redis.call(
            "ZRANGE", name, first, first + count - 1, "WITHSCORES", key=name
        )
        return [
            WaitingEntry(info, int(float(score) * 1000))
            for member, score in zip(found[::2], found[1::2], strict=True)
            for info in read_infos([member])
        ]

    async def _read_message(
        self, item: t.MessageItem, conversation_id: str | None
    ) -> ConversationMessage | None:
        partitions = self._partitions_of(conversation_id)
        for reply in await asyncio.gather(*(self._read.submit(p, item) for p in partitions)):
            message = _message(reply)
            # The id may be in use in another conversation of the partition.
            if message and conversation_id in (None, message.conversation_id):
                return message
        return None

    async def _statuses(
        self, infos: Sequence[MinMessageInfo], partition: int
    ) -> Sequence[Sequence[bytes | None]]:
        """Status and retries of each reply, without its task: a task may have megabytes."""
        if not infos:
            return []
        names = [self._name(keys.CONVERSATION_RESPONSE, partition, i.response_id) for i in infos]
        commands: list[Command] = [("HMGET", name, "status", "awaitedRetries") for name in names]
        return await self._runtime.redis.execute(commands, key=names[0], repeatable=True)

    def _partitions_of(self, conversation_id: str | None) -> Iterable[int]:
        return self.partitions if conversation_id is None else [self.partition_of(conversation_id)]

    async def _run(self, transition: Transition[Item], partition: int, item: Item) -> Any:
        return await self._runtime.call(transition, partition, self._args, [item])


def _message(reply: t.Fields | str) -> ConversationMessage | None:
    return read_message(reply.fields) if isinstance(reply, t.Fields) else None
