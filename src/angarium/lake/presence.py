"""Whether what the journal calls open is there: in Redis, or in the database it was moved to.

For each account of each module this file knows the one place that is the truth, by the names that
`runtime/keyspace.py` gives. It only reads, in portions, and answers which subjects it did not
find. A thing that moves from one place to another while it is looked for may be missed once;
whoever asks looks again for what is missing before calling it lost.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from angarium.conversations import keys as conversations_keys
from angarium.dispatch import keys as dispatch_keys
from angarium.pickup import keys as pickup_keys
from angarium.routing import keys as routing_keys
from angarium.runtime.keyspace import Key
from angarium.runtime.runtime import Runtime
from angarium.transactions import keys as transactions_keys

# One command asks for so many; a page of a list has so many entries.
PORTION = 500
_OWN_ID = re.compile(rb'\{"id":"([0-9A-Za-z_-]*)"')


@dataclass(frozen=True)
class Open:
    """One message that the journal has not seen end."""

    partition: int
    module: str
    account: str
    subject: str
    key: str = ""
    reference: str = ""
    archived: bool = False


class Presence:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._redis = runtime.redis
        self._name = runtime.keyspace.name

    async def missing(self, lives: Iterable[Open]) -> list[Open]:
        """Those that are nowhere."""
        groups: dict[tuple[int, str, str], list[Open]] = defaultdict(list)
        for each in lives:
            groups[each.partition, each.module, each.account].append(each)
        gone: list[Open] = []
        for (partition, module, account), some in groups.items():
            gone += await _LOOKS[module, account](self, partition, some)
        return gone

    async def transactions(self, partition: int, lives: Sequence[Open]) -> list[Open]:
        def name(each: Open) -> str:
            return self._name(transactions_keys.STATE, partition, each.subject)

        commands = [("EXISTS", name(each)) for each in lives]
        return await self._none(lives, commands, name(lives[0]))

    async def dispatched(self, partition: int, lives: Sequence[Open]) -> list[Open]:
        pending = self._name(dispatch_keys.MESSAGES_PENDING, partition)
        commands = [("ZSCORE", pending, each.subject) for each in lives]
        left = await self._none(lives, commands, pending)
        if not left:
            return []
        # Announced and not yet accepted: still an entry of the durable intake.
        waiting: set[str] = set()
        async for _, fields in self._stream(dispatch_keys.MESSAGES_INBOX, partition):
            named = dict(zip(fields[::2], fields[1::2], strict=False))
            waiting.add(named.get(b"message_id", b"").decode(errors="replace"))
        return [each for each in left if each.subject not in waiting]

    async def replies(self, partition: int, lives: Sequence[Open]) -> list[Open]:
        pending = self._name(conversations_keys.PENDING_MESSAGES, partition)
        commands = [
            ("ZSCORE", pending, _member(each.reference, each.subject, each.key)) for each in lives
        ]
        return await self._none(lives, commands, pending)

    async def requests(self, partition: int, lives: Sequence[Open]) -> list[Open]:
        waiting = self._name(conversations_keys.OPEN_REQUESTS, partition)
        commands = [("ZSCORE", waiting, _member(each.subject, "", each.key)) for each in lives]
        return await self._none(lives, commands, waiting)

    async def picked_up(self, partition: int, lives: Sequence[Open]) -> list[Open]:
        def name(each: Open) -> str:
            return self._name(pickup_keys.PICKUP_MESSAGES, partition, each.key)

        commands = [("HEXISTS", name(each), each.subject) for each in lives]
        left = await self._none(lives, commands, name(lives[0]))
        filed = await self._in_database([each.subject for each in left if each.archived])
        return [each for each in left if each.subject not in filed]

    async def inbound(self, partition: int, lives: Sequence[Open]) -> list[Open]:
        by_key: dict[str, list[Open]] = defaultdict(list)
        for each in lives:
            by_key[each.key].append(each)
        gone: list[Open] = []
        for key, some in by_key.items():
            name = self._name(routing_keys.INBOUND, partition, key)
            found = {_item_id(item) async for item in self._list(name)}
            gone += [each for each in some if each.subject not in found]
        return gone

    async def outbound(self, partition: int, lives: Sequence[Open]) -> list[Open]:
        """In the list, lent to a deliverer, or waiting for another try."""
        found: set[str] = set()
        waiting, taken, retries = (
            self._name(key, partition)
            for key in (
                routing_keys.OUTBOUND,
                routing_keys.OUTBOUND_TAKEN,
                routing_keys.OUTBOUND_RETRY,
            )
        )
        async for item in self._list(waiting):
            found.add(_outbound_id(item))
        async for loan, item in self._scan("HSCAN", taken):
            found |= {_outbound_id(item)} if loan != b"last" else set()
        async for item, _ in self._scan("ZSCAN", retries):
            found.add(_outbound_id(item))
        return [each for each in lives if each.subject not in found]

    async def _none(
        self, lives: Sequence[Open], commands: Sequence[tuple[Any, ...]], key: str
    ) -> list[Open]:
        """Those whose command answers 0 or nothing."""
        gone: list[Open] = []
        for start in range(0, len(lives), PORTION):
            some = slice(start, start + PORTION)
            replies = await self._redis.execute(list(commands[some]), key=key, repeatable=True)
            gone += [
                each
                for each, reply in zip(lives[some], replies, strict=True)
                if reply is None or reply == 0
            ]
        return gone

    async def _list(self, name: str) -> AsyncIterator[bytes]:
        # From the end: what leaves at the front meanwhile moves nothing past us unseen.
        stop = -1
        while True:
            page = await self._redis.call("LRANGE", name, stop - PORTION + 1, stop, key=name)
            for item in page:
                yield item
            if len(page) < PORTION:
                return
            stop -= PORTION

    async def _scan(self, command: str, name: str) -> AsyncIterator[tuple[bytes, bytes]]:
        cursor: bytes = b"0"
        while True:
            cursor, page = await self._redis.call(command, name, cursor, "COUNT", PORTION, key=name)
            for pair in zip(page[::2], page[1::2], strict=True):
                yield pair
            if cursor == b"0":
                return

    async def _stream(self, key: Key, partition: int) -> AsyncIterator[tuple[bytes, list[bytes]]]:
        name, after = self._name(key, partition), "-"
        while True:
            page = await self._redis.call("XRANGE", name, after, "+", "COUNT", PORTION, key=name)
            for entry_id, fields in page:
                yield entry_id, fields
            if len(page) < PORTION:
                return
            after = f"({page[-1][0].decode()}"

    async def _in_database(self, ids: Sequence[str]) -> set[str]:
        """Of messages that the pickup module has moved to the database, those that are there."""
        if not ids:
            return set()
        import sqlalchemy as sa

        from angarium.runtime.database.database import Database

        table = sa.table("pickup_message", sa.column("id"))
        found: set[str] = set()
        database = await Database.open(self._runtime.settings.database_url)
        try:
            async with database.connect() as connection:
                if not await connection.run_sync(
                    lambda each: sa.inspect(each).has_table(table.name)
                ):
                    return found  # pickup has never used this database
                for start in range(0, len(ids), PORTION):
                    some = sa.select(table.c.id).where(table.c.id.in_(ids[start : start + PORTION]))
                    found |= set((await connection.scalars(some)).all())
        finally:
            await database.close()
        return found


_Look = Callable[[Presence, int, Sequence[Open]], Any]
_LOOKS: Mapping[tuple[str, str], _Look] = MappingProxyType(
    {
        ("dispatch", "message"): Presence.dispatched,
        ("routing", "inbound"): Presence.inbound,
        ("routing", "outbound"): Presence.outbound,
        ("conversations", "request"): Presence.requests,
        ("conversations", "reply"): Presence.replies,
        ("pickup", "message"): Presence.picked_up,
        ("transactions", "transaction"): Presence.transactions,
    }
)


def _member(request_id: str, response_id: str, conversation_id: str) -> bytes:
    """The ids of a reply as one member of a sorted set, byte by byte as its module writes them."""
    return msgspec.json.encode({"rqId": request_id, "rsId": response_id, "cnId": conversation_id})


def _item_id(item: bytes) -> str:
    """An inbound item's id, or in layout `acapy` the hash of its bytes."""
    found = _OWN_ID.match(item)
    if found is not None:
        return found[1].decode()
    return hashlib.sha1(item, usedforsecurity=False).hexdigest()


def _outbound_id(item: bytes) -> str:
    """An outbound item's id, or for another writer's the hash that its retries share."""
    found = _OWN_ID.match(item)
    if found is not None:
        return found[1].decode()
    try:
        read = msgspec.json.decode(item)
        text = f"{read['service']['url']}\n{read['payload']}"
    except (msgspec.MsgspecError, KeyError, TypeError):
        return ""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
