"""What Redis says of a stream: its ends, what was removed from it, and its pages.

A position is the id of the last entry that was read, and beside it, where it is known, how many
came before: for the journal the running number of its events, else the number of entries ever
added. Two such numbers tell exactly how much lies between two positions and whether something is
missing; ids alone only let it be guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from angarium.lake.errors import EntriesTrimmed, OptionInvalid, StreamReplaced
from angarium.lake.sources import entry_ids
from angarium.redis.blocking import BlockingRedis
from angarium.runtime.errors import ScriptFailed

PAGE_ENTRIES_MAX = 10_000
# A page is held whole, as bytes and as rows: a few of these fit into any worker.
PAGE_BYTES_AIM = 16 << 20
PAGE_ENTRIES_FIRST = 100
_GLOB = frozenset("*?[")

Entry = list[Any]  # [id, [field, value, …]]


@dataclass(frozen=True)
class StreamState:
    """`first` and `last` are ids; `removed` and `count` are numbers as the module says."""

    length: int
    first: int
    last: int
    removed: int
    count: int | None
    deleted_last: int
    rows_per_entry: int = 1

    @classmethod
    def absent(cls) -> StreamState:
        return cls(0, 0, 0, 0, 0, 0)

    def rows_after(self, position: int, count: int | None) -> int:
        """How many rows lie behind a position: counted, or guessed from its id."""
        if position >= self.last:
            return 0
        if count is not None and self.count is not None:
            return max(1, self.count - count)
        known = self.count is not None
        rows = (self.count or 0) - self.removed if known else self.length * self.rows_per_entry
        start = max(position, self.first - 1)
        share = (self.last - start) / max(1, self.last - self.first + 1)
        return max(1, int(rows * min(1.0, share)))


def find_keys(redis: BlockingRedis, names: Sequence[str]) -> list[str]:
    """Names as they are, patterns as the streams that fit them now."""
    found = {name for name in names if not _GLOB & set(name)}
    for pattern in names:
        if _GLOB & set(pattern):
            found.update(name.decode() for name in redis.find_keys(pattern, "stream"))
    return sorted(found)


def look(redis: BlockingRedis, key: str, *, journal: bool) -> StreamState:
    try:
        reply = redis.call("XINFO", "STREAM", key, key=key)
    except ScriptFailed as error:
        if "no such key" in str(error):
            return StreamState.absent()
        if str(error).startswith("WRONGTYPE"):
            raise OptionInvalid("keys", f"'{key}' is not a stream", "name another key") from None
        raise
    named = dict(zip(reply[::2], reply[1::2], strict=True))
    head, tail = named[b"first-entry"], named[b"last-entry"]
    length, added = int(named[b"length"]), int(named[b"entries-added"])
    removed = added - length
    count: int | None = added
    weight = 1
    if journal:
        # An end that is not ours tells nothing; then ids have to do.
        ends = sequences_of(head), sequences_of(tail)
        removed = ends[0][0] - 1 if ends[0] else 0
        count = ends[1][1] if ends[0] and ends[1] else None
        weight = max((last - first + 1 for first, last in filter(None, ends)), default=1)
    return StreamState(
        length=length,
        first=entry_ids.number_of(head[0]) if head else 0,
        last=entry_ids.number_of(named[b"last-generated-id"]),
        removed=removed,
        count=count,
        deleted_last=entry_ids.number_of(named[b"max-deleted-entry-id"]),
        rows_per_entry=weight,
    )


def sequences_of(entry: Entry | None) -> tuple[int, int] | None:
    """Running numbers of the first and the last event of a journal entry; None if it has none."""
    if not entry:
        return None
    fields = entry[1]
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        last = int(named[b"seq"])
        return last - int(named[b"n"]) + 1, last
    except (KeyError, ValueError):
        return None


def is_replaced(position: int, count: int | None, state: StreamState) -> bool:
    """Whether the stream is not the one that was read: it was deleted, or the server is another."""
    if position == entry_ids.FIRST:
        return False
    fewer = count is not None and state.count is not None and state.count < count
    return position > state.last or fewer


def refuse_replaced(key: str, position: int, state: StreamState) -> None:
    was, now = entry_ids.text_of(position), entry_ids.text_of(state.last)
    raise StreamReplaced(
        f"'{key}' was read up to {was}, and now ends at {now}: it was deleted, or this is another "
        "server; use another checkpoint, restore the stream, or set onGap to count to go on"
    )


def rows_lost(position: int, count: int | None, state: StreamState) -> int:
    """How many rows behind a position are gone, at least; 0 when all are there.

    The beginning is no position: who starts there takes what there is.
    """
    if position == entry_ids.FIRST or not state.last:
        return 0
    if position == state.last or 0 < state.first <= position:
        trimmed = 0
    elif count is not None and state.count is not None:
        trimmed = max(0, state.removed - count) if state.length else state.count - count
    else:
        trimmed = 1
    return max(trimmed, 1 if state.deleted_last > position else 0)


def refuse_gap(key: str, position: int, lost: int) -> None:
    after = entry_ids.text_of(position)
    raise EntriesTrimmed(
        f"'{key}' has lost at least {lost} rows behind {after}: they were removed before they were "
        "read; set onGap to count to go on without them, and keep the stream longer, or register "
        "a reader"
    )


def pages(
    redis: BlockingRedis, key: str, start: int, end: int, first: int, *, strict: bool
) -> Iterator[list[Entry]]:
    """Entries behind `start` up to and with `end`, in pages of a bounded size.

    With `strict`, trimming that has overtaken us since `first` was the stream's first entry is an
    error. It is looked at behind each page: what was there then was there before.
    """
    last = entry_ids.text_of(end)
    count = PAGE_ENTRIES_FIRST
    position = start
    while True:
        after = entry_ids.text_of(position)
        page, head = redis.ask(
            [
                ("XRANGE", key, f"({after}", last, "COUNT", count),
                ("XRANGE", key, "-", "+", "COUNT", 1),
            ],
            key=key,
        )
        if strict and (not head or entry_ids.number_of(head[0][0]) > max(position, first)):
            refuse_gap(key, position, 1)
        if not page:
            return
        position = entry_ids.number_of(page[-1][0])
        ended = len(page) < count
        # The size of the next page follows from the weight of entries in this one.
        sample = page[:: max(1, len(page) // 16)]
        weight = sum(sum(map(len, fields or ())) for _, fields in sample) / len(sample) + 64
        count = max(1, min(PAGE_ENTRIES_MAX, int(PAGE_BYTES_AIM / weight)))
        yield page
        if ended:
            return


def entry_at(redis: BlockingRedis, key: str, number: int, after: int) -> tuple[int, Entry | None]:
    """The last entry up to an id, or else the first behind it: a place where a batch can end."""
    text = entry_ids.text_of(number)
    found = redis.call(
        "XREVRANGE", key, text, f"({entry_ids.text_of(after)}", "COUNT", 1, key=key
    ) or redis.call("XRANGE", key, f"({text}", "+", "COUNT", 1, key=key)
    if not found:
        return number, None
    return entry_ids.number_of(found[0][0]), found[0]
