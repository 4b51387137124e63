"""Lists of recipient keys, conversations, pickup queues and sessions, in pages.

Each page returns the cursor of the next, so its cost does not depend on the length of the list.
Handlers only read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.conversations.queries import WaitingEntry, WaitingKind
from angarium.conversations.service import ConversationService
from angarium.conversations.wait_reasons import SenderWait
from angarium.pickup.archive import MessageArchive
from angarium.pickup.listing import PickupListing
from angarium.pickup.model import connection_of
from angarium.pickup.store import PickupStore
from angarium.routing.errors import RecipientUnknown
from angarium.routing.service import RoutingService
from angarium.routing.store import KeyState
from angarium.runtime.errors import InputInvalid
from angarium.runtime.http_api import Operation, Parameter, reply
from angarium.runtime.page_cursor import cursor_numbers, page_cursor
from angarium.runtime.runtime import Runtime

LIST_MAX, LIST_DEFAULT = 500, 50
LIMIT = Parameter(
    "limit",
    schema={"type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": LIST_DEFAULT},
)
AFTER = Parameter("after", description="`next` of the page before.")
# Prefix of a cursor that has reached the queues stored only in the database.
ARCHIVE = "archive:"
T = TypeVar("T")


class OwnedKey(msgspec.Struct, frozen=True):
    recip_key: str
    uid: str | None
    pending: int
    silent_ms: int | None
    partition: int


class KeysPage(msgspec.Struct, frozen=True):
    """`next` is the parameter `after` for the next page; null on the last."""

    keys: list[OwnedKey]
    next: str | None


class WaitingConversation(msgspec.Struct, frozen=True):
    """`at_ms`: when its first reply may be sent or claimed, or its first request expires."""

    conversation_id: str
    replies: int
    requests: int
    at_ms: int


class ConversationsPage(msgspec.Struct, frozen=True):
    """`needs`: replies, of all conversations, whose sender no process has."""

    conversations: list[WaitingConversation]
    next: str | None
    needs: Sequence[SenderWait]


class PickupQueue(msgspec.Struct, frozen=True):
    tenant: str
    connection_id: str
    pending: int
    sending: int
    archived: int
    bytes: int
    live: bool
    gateway: str | None
    oldest_ms: int | None


class QueuesPage(msgspec.Struct, frozen=True):
    queues: list[PickupQueue]
    next: str | None


class ModuleViews:
    """The lists of routing, conversations and pickup."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._partitions = runtime.settings.partitions
        self._routing = runtime.store(RoutingService)
        self._conversations = ConversationService(runtime)
        self._pickup = PickupListing(runtime)
        self._queues = runtime.store(PickupStore)
        self._archive: MessageArchive | None = None

    def operations(self) -> list[Operation]:
        kind = Parameter("kind", schema={"enum": ["replies", "requests"], "default": "replies"})
        paged = (LIMIT, AFTER)
        return [
            Operation(
                "GET", "/v1/routing/keys", "list_recipient_keys",
                "Recipient keys with their owners, unordered", self.owned_keys,
                answers={200: KeysPage}, parameters=paged,
            ),
            Operation(
                "GET", "/v1/conversations", "list_conversations",
                "Conversations with replies in flight, or with requests without a reply",
                self.waiting_conversations,
                answers={200: ConversationsPage}, parameters=(kind, *paged),
            ),
            Operation(
                "GET", "/v1/pickup/queues", "list_pickup_queues",
                "Queues with messages, the longest waiting first", self.pickup_queues,
                answers={200: QueuesPage}, parameters=paged,
            ),
            Operation(
                "GET", "/v1/pickup/sessions", "list_pickup_sessions",
                "Live sessions, by gateway", self.pickup_sessions,
                answers={200: QueuesPage}, parameters=paged,
            ),
        ]  # fmt: skip

    async def owned_keys(self, request: Request) -> Response:
        limit = limit_of(request)
        partition, cursor = self._cursor(request, 2)
        found: list[str] = []
        while partition < self._partitions and len(found) < limit:
            some, cursor = await self._routing.owned_keys(partition, cursor, limit - len(found))
            found += some
            if cursor == 0:
                partition += 1
        following = page_cursor(partition, cursor) if partition < self._partitions else None
        states = await _gather([self._key(name) for name in found])
        owned = [
            OwnedKey(each.recip_key, each.uid, each.pending, each.silent_ms, each.partition)
            for each in states
        ]
        return reply(KeysPage(owned, following))

    async def _key(self, name: str) -> KeyState | None:
        try:
            return await self._routing.show(name)
        except RecipientUnknown:
            return None  # removed since it was listed

    async def waiting_conversations(self, request: Request) -> Response:
        asked = request.query_params.get("kind", "replies")
        if asked not in ("replies", "requests"):
            raise InputInvalid("kind must be replies or requests")
        kind: WaitingKind = "requests" if asked == "requests" else "replies"
        limit = limit_of(request)
        partition, first = self._cursor(request, 2)
        found: dict[str, WaitingConversation] = {}
        left = limit
        while partition < self._partitions and left:
            some = await self._conversations.store.waiting(kind, partition, first, left)
            for each in some:
                known = found.get(each.info.conversation_id)
                found[each.info.conversation_id] = _with_one(known, kind, each)
            full = len(some) == left
            left -= len(some)
            partition, first = (partition, first + len(some)) if full else (partition + 1, 0)
        following = page_cursor(partition, first) if partition < self._partitions else None
        needs = (await self._conversations.senders()).needs
        return reply(ConversationsPage(list(found.values()), following, needs))

    async def pickup_queues(self, request: Request) -> Response:
        limit = limit_of(request)
        after = request.query_params.get("after", "")
        if after.startswith(ARCHIVE):
            return reply(await self._archived_queues(after.removeprefix(ARCHIVE), limit))
        partition, first = self._cursor(request, 2)
        found: list[str] = []
        while partition < self._partitions and len(found) < limit:
            wanted = limit - len(found)
            some = await self._pickup.queues_by_age(partition, first, wanted)
            found += [each.queue for each in some]
            full = len(some) == wanted
            partition, first = (partition, first + len(some)) if full else (partition + 1, 0)
        # Redis keeps a queue's age for a while after its last message was removed.
        shown = [each for each in await self._shown(found) if each.pending or each.sending]
        if partition < self._partitions:
            return reply(QueuesPage(shown, page_cursor(partition, first)))
        if len(shown) == limit:
            return reply(QueuesPage(shown, ARCHIVE))
        older = await self._archived_queues("", limit - len(shown))
        return reply(QueuesPage([*shown, *older.queues], older.next))

    async def _archived_queues(self, after: str, limit: int) -> QueuesPage:
        """Queues whose messages are all in the database, by name."""
        if self._archive is None:
            self._archive = await MessageArchive.of(self._runtime)
        names = await self._archive.queues(after, limit)
        by_partition: dict[int, list[str]] = {}
        for name in names:
            by_partition.setdefault(self._queues.partition_of(name), []).append(name)
        found = [
            name
            for partition, some in by_partition.items()
            for name in await self._pickup.without_age(partition, some)
        ]
        following = f"{ARCHIVE}{names[-1]}" if len(names) == limit else None
        return QueuesPage(await self._shown(found), following)

    async def close(self) -> None:
        archive, self._archive = self._archive, None
        if archive is not None:
            await archive.close()

    async def pickup_sessions(self, request: Request) -> Response:
        limit = limit_of(request)
        partition, place, cursor = self._cursor(request, 3)
        found: list[str] = []
        while partition < self._partitions and len(found) < limit:
            gateways = await self._pickup.gateways(partition)
            if place >= len(gateways):
                partition, place, cursor = partition + 1, 0, 0
                continue
            wanted = limit - len(found)
            some, cursor = await self._pickup.sessions(partition, gateways[place], cursor, wanted)
            found += some
            if cursor == 0:
                place += 1
        following = page_cursor(partition, place, cursor) if partition < self._partitions else None
        return reply(QueuesPage(await self._shown(found), following))

    async def _shown(self, queues: Sequence[str]) -> list[PickupQueue]:
        return await _gather([self._queue(name) for name in queues])

    async def _queue(self, name: str) -> PickupQueue | None:
        found = await self._queues.queue_status(name)
        if found is None:
            return None
        return PickupQueue(
            tenant=name.partition(":")[0],
            connection_id=connection_of(name),
            pending=found.pending,
            sending=found.sending,
            archived=found.archived,
            bytes=found.bytes,
            live=found.live,
            gateway=found.gateway,
            oldest_ms=found.oldest_ms,
        )

    def _cursor(self, request: Request, count: int) -> tuple[int, ...]:
        return cursor_numbers(request.query_params.get("after"), count)


def _with_one(
    known: WaitingConversation | None, kind: WaitingKind, new: WaitingEntry
) -> WaitingConversation:
    replies, requests = (0, 0) if known is None else (known.replies, known.requests)
    return WaitingConversation(
        new.info.conversation_id,
        replies + (kind == "replies"),
        requests + (kind == "requests"),
        new.at_ms if known is None else min(known.at_ms, new.at_ms),
    )


def limit_of(request: Request) -> int:
    text = request.query_params.get("limit", str(LIST_DEFAULT))
    if text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= LIST_MAX:
        return int(text)
    raise InputInvalid(f"limit must be a number from 1 to {LIST_MAX}")


async def _gather(asked: Sequence[Awaitable[T | None]]) -> list[T]:
    """Await concurrently, so that the calls share a batch. Leaves out None."""
    return [each for each in await asyncio.gather(*asked) if each is not None]
