"""Reads requests, replies and conversations; changes nothing.

With `store.py`, `script_calls.py` and `sender_registry.py` the only files that know key names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from angarium.conversations import keys
from angarium.conversations.errors import IdRefused
from angarium.conversations.model import ConversationMessage, MinMessageInfo, read_message
from angarium.conversations.script_calls import ScriptCalls, load
from angarium.conversations.script_values import (
    ConversationSnapshot,
    read_infos,
    read_queued,
    read_sender_waits,
)
from angarium.conversations.sender_registry import SenderRegistry
from angarium.conversations.wait_reasons import OpenRequest, SenderWait
from angarium.redis.connection import Argument, Command
from angarium.runtime.batching import BatchItem
from angarium.runtime.key import Key
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import status_of

READ_MESSAGES = load("read_messages")
READ_ACKS = load("read_acks")
DESCRIBE_CONVERSATION = load("describe_conversation")
LIST_SIBLINGS = load("list_siblings")
LIST_SENDER_WAITS = load("list_sender_waits")

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
    def __init__(self, runtime: Runtime, senders: Sequence[str] | None = None) -> None:
        self._runtime = runtime
        self._calls = ScriptCalls(runtime, senders)
        self._ids = self._calls.ids
        self.partition_of = self._ids.partition_of
        self.partitions = self._calls.partitions
        self.senders = SenderRegistry(runtime)
        self._read = self._calls.batched(READ_MESSAGES)
        self._acks = self._calls.batched(READ_ACKS)

    async def siblings(
        self, info: MinMessageInfo, most: int = SIBLINGS_MAX, *, last_first: bool = False
    ) -> list[MinMessageInfo]:
        """Replies in flight to the same request. `info` may lack the response id."""
        partition = self.partition_of(info.conversation_id)
        names = [
            self._calls.request_key(info, partition),
            self._calls.name(keys.CONVERSATION_RESPONSES, partition, info.conversation_id),
        ]
        args: tuple[Argument, ...] = (
            most,
            info.key() if info.response_id else "",
            1 if last_first else 0,
        )
        return read_infos(await self._calls.run(LIST_SIBLINGS, partition, names, args))

    async def read_reply(
        self, response_id: str, conversation_id: str | None
    ) -> ConversationMessage | None:
        """Without a conversation id, every partition is asked."""
        self._ids.check("response", response_id)
        return await self._read_message(keys.CONVERSATION_RESPONSE, response_id, conversation_id)

    async def read_request(
        self, request_id: str, conversation_id: str | None
    ) -> ConversationMessage | None:
        """Without a conversation id, every partition is asked."""
        self._ids.check("request", request_id)
        return await self._read_message(keys.CONVERSATION_REQUEST, request_id, conversation_id)

    async def read_by_key(self, key: str) -> ConversationMessage | None:
        """The reply whose hash has this key in Redis."""
        found = self._runtime.keyspace.explain(key)
        if found is None or found.key is not keys.CONVERSATION_RESPONSE:
            raise IdRefused(f"{key!r} is not the key of a reply in Redis")
        item: BatchItem = ((key,), ())
        return read_message(await self._read.submit(found.partition, item))

    async def find_ack(self, ack_id: str, conversation_id: str | None) -> MinMessageInfo | None:
        """The reply that the client acknowledges by this id."""
        self._ids.check("ACK", ack_id)
        replies = await asyncio.gather(
            *(
                self._acks.submit(p, ((self._calls.name(keys.ASYNC_REQUEST, p, ack_id),), ()))
                for p in self._partitions_of(conversation_id)
            )
        )
        found = read_infos(reply[1] for reply in replies if status_of(reply) == "found")
        matching = (info for info in found if conversation_id in (None, info.conversation_id))
        return next(matching, None)

    async def snapshot(self, conversation_id: str, most: int) -> ConversationSnapshot:
        """The first requests and replies of a conversation in order, with each reply's state."""
        partition = self.partition_of(conversation_id)
        names = self._calls.conversation_keys(conversation_id, partition)
        reply = await self._calls.run(DESCRIBE_CONVERSATION, partition, names, (most,))
        now_ms, requests_total, replies_total, requests, replies = reply
        rows = [replies[number : number + 8] for number in range(0, len(replies), 8)]
        infos = read_infos(row[0] for row in rows)
        stored = await self._statuses(infos, partition)
        key_prefix = len(self._calls.name(keys.CONVERSATION_REQUEST, partition, ""))
        return ConversationSnapshot(
            int(now_ms),
            requests_total,
            replies_total,
            [
                OpenRequest(
                    requests[n].decode()[key_prefix:],
                    int(requests[n + 1]),
                    int(requests[n + 2]),
                    requests[n + 3] == 1,
                )
                for n in range(0, len(requests), 4)
            ],
            [
                read_queued(info, row, fields)
                for info, row, fields in zip(infos, rows, stored, strict=True)
            ],
        )

    async def in_flight(self, partition: int) -> tuple[int, int, int]:
        """Counts: replies in flight, requests without a reply, replies no process has taken."""
        pending, opened, new, _ = self._calls.shared_keys[partition]
        replies, requests, new_replies = await self._runtime.redis.execute(
            [("ZCARD", pending), ("ZCARD", opened), ("LLEN", new)], key=pending, repeatable=True
        )
        return replies, requests, new_replies

    async def sender_waits(
        self, partition: int, most: int = SENDER_WAITS_MAX
    ) -> tuple[int, list[SenderWait]]:
        """Redis time (ms), and the replies that wait for a process with their sender."""
        return read_sender_waits(await self._calls.run(LIST_SENDER_WAITS, partition, (), (most,)))

    async def waiting(
        self, kind: WaitingKind, partition: int, first: int, count: int
    ) -> list[WaitingEntry]:
        """A page of what waits, the earliest time first."""
        name = self._calls.name(_WAITING_KEYS[kind], partition)
        found = await self._runtime.redis.call(
            "ZRANGE", name, first, first + count - 1, "WITHSCORES", key=name
        )
        return [
            WaitingEntry(info, int(float(score) * 1000))
            for member, score in zip(found[::2], found[1::2], strict=True)
            for info in read_infos([member])
        ]

    async def _read_message(
        self, key: Key, id: str, conversation_id: str | None
    ) -> ConversationMessage | None:
        found = await asyncio.gather(
            *(
                self._read.submit(partition, ((self._calls.name(key, partition, id),), ()))
                for partition in self._partitions_of(conversation_id)
            )
        )
        for fields in found:
            message = read_message(fields)
            # The id may be in use in another conversation of the partition.
            if message and conversation_id in (None, message.conversation_id):
                return message
        return None

    def _partitions_of(self, conversation_id: str | None) -> Iterable[int]:
        return self.partitions if conversation_id is None else [self.partition_of(conversation_id)]

    async def _statuses(
        self, infos: Sequence[MinMessageInfo], partition: int
    ) -> Sequence[Sequence[bytes | None]]:
        """Status and retries of each reply, without its task: a task may have megabytes."""
        if not infos:
            return []
        commands: list[Command] = [
            ("HMGET", self._calls.response_key(info, partition), "status", "awaitedRetries")
            for info in infos
        ]
        return await self._runtime.redis.execute(
            commands, key=self._calls.shared_keys[partition][0], repeatable=True
        )
