"""Messages that no instance could handle (inbound), and deliveries that failed (outbound).

Each partition has a list of both kinds, oldest first. A page walks through the partitions in turn
and continues from a page cursor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from angarium.routing import keys
from angarium.routing.outbound_store import OutboundStore
from angarium.routing.store import RoutingStore, StoredDeadLetter
from angarium.runtime.dead_letters import (
    PAGE_DEFAULT,
    DeadLetter,
    DeadLetterPage,
    DeadLetters,
    DeadLetterUnusable,
    unknown,
)
from angarium.runtime.errors import InputInvalid
from angarium.runtime.keyspace import Key
from angarium.runtime.limits import MIB
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition

Kind = Literal["inbound", "outbound"]
# Letters in one reply; their bytes are limited too.
CHUNK = 100
# Of one page: each letter may be as large as a message.
PAGE_BYTES_MAX = 1 * MIB
# Letters that a page looks back over for the last one of the page before.
LOOKED_BACK_MAX = 1_000
# The end of the year 9999: a later time can't be printed as a date.
AT_MS_MAX = 253_402_300_799_999
_CURSOR = re.compile(r"(\d{1,4})\.(\d{1,12})\.([0-9A-Za-z_-]{0,200})", re.ASCII)


class DeadPageArgs(NamedTuple):
    start: int
    after_id: str
    letters_max: int
    bytes_max: int
    looked_back_max: int


class RawPage(NamedTuple):
    start: int
    entries: list[bytes]


class DropArgs(NamedTuple):
    event: str


class DropItem(NamedTuple):
    message_id: str
    recip_key: str
    reason: str
    entry: bytes


_LISTS: dict[Kind, Key] = {"inbound": keys.INBOUND_DEAD, "outbound": keys.OUTBOUND_DEAD}
PAGE_DEAD_INBOUND, PAGE_DEAD_OUTBOUND = (
    Transition[Any](
        "angarium.routing",
        "page_dead_letters",
        keys={"dead": key},
        args=DeadPageArgs,
        replies={"page": RawPage},
    )
    for key in _LISTS.values()
)
DROP_DEAD_INBOUND, DROP_DEAD_OUTBOUND = (
    Transition(
        "angarium.routing",
        "drop_dead_letters",
        keys={"dead": key},
        args=DropArgs,
        item=DropItem,
        replies={"dropped": None, "unknown": None},
    )
    for key in _LISTS.values()
)


class DeadLetterEntry(msgspec.Struct, frozen=True):
    """A dead letter as Redis has it. Another program may have written it."""

    reason: str
    message: str
    at_ms: Annotated[float, msgspec.Meta(ge=0, le=AT_MS_MAX)]
    id: str = ""
    recip_key: str = ""
    attempts: int = 0


class DeadRoutedMessage(DeadLetter, frozen=True, kw_only=True):
    """`message` is the item of its queue. `recip_key` is empty for deliveries. `id` is empty if the
    entry can't be read; such a letter can only be dropped by its reason, or with all others."""

    recip_key: str
    message: str


class FoundLetter(NamedTuple):
    partition: int
    cursor: str
    raw: bytes
    dead: DeadRoutedMessage


Action = Callable[[int, Sequence[FoundLetter]], Awaitable[list[str]]]
"""Acts on letters of one partition and returns a status for each."""


class RoutingDeadLetters(DeadLetters[DeadRoutedMessage]):
    """The dead letters of one kind."""

    columns = ("recip_key",)

    def __init__(
        self, runtime: Runtime, store: RoutingStore, outbound: OutboundStore, kind: Kind
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._outbound = outbound
        self._kind = kind
        inbound = kind == "inbound"
        self._page = PAGE_DEAD_INBOUND if inbound else PAGE_DEAD_OUTBOUND
        self._drop = DROP_DEAD_INBOUND if inbound else DROP_DEAD_OUTBOUND
        self._drop_args = DropArgs("dead_dropped" if inbound else "outbound_dead_dropped")

    async def page(
        self, limit: int = PAGE_DEFAULT, after: str | None = None, reason: str = ""
    ) -> DeadLetterPage[DeadRoutedMessage]:
        letters: list[DeadRoutedMessage] = []
        size_bytes, cursor = 0, None
        async for each in self.walk(after):
            if reason not in each.dead.reason:
                continue
            size_bytes += len(each.raw)
            if len(letters) == limit or (letters and size_bytes > PAGE_BYTES_MAX):
                return DeadLetterPage(letters, cursor)
            letters.append(each.dead)
            cursor = each.cursor
        return DeadLetterPage(letters)

    async def walk(self, after: str | None = None) -> AsyncIterator[FoundLetter]:
        first, start, after_id = (0, 0, "") if after is None else _position(after)
        for partition in range(first, self._store.partitions):
            while found := await self._chunk(partition, start, after_id):
                for each in found:
                    yield each
                _, start, after_id = _position(found[-1].cursor)
            start, after_id = 0, ""

    async def find(self, id: str) -> DeadRoutedMessage:
        return (await self._locate(id)).dead

    async def _locate(self, id: str) -> FoundLetter:
        # Letters that can't be read have no id, and must not be taken for one another.
        if id:
            async for each in self.walk():
                if each.dead.id == id:
                    return each
        raise unknown(id)

    async def retry(self, id: str) -> None:
        found = await self._locate(id)
        (status,) = await self._retried(found.partition, [found])
        if status == "unknown":
            raise unknown(id)
        if status == "unreadable":
            raise DeadLetterUnusable("the message can't be read, so it can't be handled either")

    async def drop(self, id: str) -> None:
        found = await self._locate(id)
        if await self._dropped(found.partition, [found]) != ["dropped"]:
            raise unknown(id)

    async def retry_all(self, reason: str = "") -> dict[str, int]:
        statuses = await self._all(self._retried, reason)
        retried = statuses["queued"] + statuses["kept"] + statuses["revived"]
        return {"retried": retried, "unusable": statuses["unreadable"]}

    async def drop_all(self, reason: str = "") -> int:
        return (await self._all(self._dropped, reason))["dropped"]

    async def _all(self, act: Action, reason: str) -> Counter[str]:
        statuses: Counter[str] = Counter()
        for partition in range(self._store.partitions):
            left, start = await self._length(partition), 0
            while left > 0 and (found := (await self._chunk(partition, start, ""))[:left]):
                left -= len(found)
                wanted = [each for each in found if reason in each.dead.reason]
                done = Counter(await act(partition, wanted)) if wanted else Counter()
                start += len(found) - sum(done.values()) + done["unreadable"]
                statuses += done
        return statuses

    async def _retried(self, partition: int, found: Sequence[FoundLetter]) -> list[str]:
        if self._kind == "outbound":
            pairs = [(each.dead.id, each.raw) for each in found]
            return await self._outbound.revive(partition, pairs)
        return await self._store.revive(
            [StoredDeadLetter(each.dead.id, each.dead.recip_key, each.raw) for each in found]
        )

    async def _dropped(self, partition: int, found: Sequence[FoundLetter]) -> list[str]:
        items = [
            DropItem(each.dead.id, each.dead.recip_key, each.dead.reason, each.raw)
            for each in found
        ]
        call = self._runtime.call
        statuses: list[str] = await call(self._drop, partition, self._drop_args, items)
        return statuses

    async def _chunk(self, partition: int, start: int, after_id: str) -> list[FoundLetter]:
        args = DeadPageArgs(start, after_id, CHUNK, PAGE_BYTES_MAX, LOOKED_BACK_MAX)
        page: RawPage
        page = await self._runtime.call(self._page, partition, args)
        found = []
        for at, raw in enumerate(page.entries, page.start + 1):
            dead = read_dead_letter(raw)
            id = dead.id if _CURSOR.fullmatch(f"0.0.{dead.id}") else ""
            found.append(FoundLetter(partition, f"{partition}.{at}.{id}", raw, dead))
        return found

    async def _length(self, partition: int) -> int:
        name = self._runtime.keyspace.name(_LISTS[self._kind], partition)
        return int(await self._runtime.redis.call("LLEN", name, key=name))


def read_dead_letter(raw: bytes) -> DeadRoutedMessage:
    """An entry of another program is shown as it is; it must not make a page unreadable."""
    text = raw.decode(errors="replace")
    try:
        entry = msgspec.json.decode(text, type=DeadLetterEntry)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        entry = DeadLetterEntry(reason="this letter can't be read", message=text, at_ms=0)
    return DeadRoutedMessage(
        id=entry.id,
        at_ms=int(entry.at_ms),
        tries=entry.attempts,
        reason=entry.reason,
        recip_key=entry.recip_key,
        message=entry.message,
    )


def _position(cursor: str) -> tuple[int, int, str]:
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InputInvalid("`after` is not the cursor of a list of dead letters")
    return int(found[1]), int(found[2]), found[3]
