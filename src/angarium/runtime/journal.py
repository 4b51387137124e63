"""The journal: every transition's events, appended by the script that makes the transition.

One stream per partition; one entry per batch, holding its events as JSON lines. Entries carry
running numbers, so a reader can tell that nothing is missing between two of them. Registered
readers hold the journal: it is trimmed only behind the slowest. This schema is all that the
lake and the modules share.

| entry field | meaning |
|---|---|
| `v` | version of this schema, 1 |
| `module`, `at`, `by` | who appended it: module, Redis time in ms, process |
| `n`, `seq` | events in this entry; running number of its last event |
| `end` | running count of bytes up to its end |
| `rows` | the events, one JSON object per line, fields as in `Event` |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from angarium.runtime import keys
from angarium.runtime.errors import AngariumError
from angarium.runtime.key import Key
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script

SCHEMA_VERSION = 1
COMMIT_READER = load_script("angarium.runtime", "commit_reader")
FORGET_READER = load_script("angarium.runtime", "forget_reader")


class EntryUnreadable(AngariumError):
    """Not ours, damaged, or written by a newer schema: to be set aside and counted."""

    code = "entry_unreadable"


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One transition of one subject. Names are short on the wire, because there are millions."""

    event: str = msgspec.field(name="e")
    subject: str = msgspec.field(name="s")
    key: str | None = msgspec.field(name="k", default=None)
    """Recipient key, conversation, node group or channel."""
    owner: str | None = msgspec.field(name="o", default=None)
    pipeline: str | None = msgspec.field(name="p", default=None)
    node: str | None = msgspec.field(name="n", default=None)
    attempt: int | None = msgspec.field(name="a", default=None)
    status: str | None = msgspec.field(name="t", default=None)
    detail: str | None = msgspec.field(name="d", default=None)


@dataclass(frozen=True)
class Entry:
    id: str
    module: str
    at_ms: int
    actor: str
    first_sequence: int
    events: Sequence[Event]


@dataclass(frozen=True)
class JournalStatus:
    """One partition's journal in figures; `dropped` were given up at the size limit."""

    entries: int
    events: int
    bytes_written: int
    dropped_entries: int
    dropped_events: int
    last_id: str
    readers: Mapping[str, str]


_decode_event = msgspec.json.Decoder(Event).decode


def decode_entry(entry_id: bytes, fields: Sequence[bytes]) -> Entry:
    """One stream entry, as XRANGE gives it. Raises `EntryUnreadable`."""
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        if named[b"v"] != b"%d" % SCHEMA_VERSION:
            raise EntryUnreadable(f"entry {entry_id!r} has schema {named[b'v']!r}")
        events = [_decode_event(line) for line in named[b"rows"].split(b"\n")]
        if len(events) != int(named[b"n"]):
            raise EntryUnreadable(f"entry {entry_id!r} holds {len(events)} of its events")
        return Entry(
            id=entry_id.decode(),
            module=named[b"room"].decode(),
            at_ms=int(named[b"at"]),
            actor=named[b"by"].decode(),
            first_sequence=int(named[b"seq"]) - len(events) + 1,
            events=events,
        )
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise EntryUnreadable(f"entry {entry_id!r} is not a journal entry: {error}") from error


class Journal:
    """Reading, positions and figures. Appending is the scripts' own."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def register(self, reader: str) -> None:
        """Hold every partition's journal from here on, until `forget`."""
        for partition in range(self._runtime.settings.partitions):
            await self.commit(reader, partition, "")

    async def commit(self, reader: str, partition: int, entry_id: str) -> str:
        """Everything up to `entry_id` is stored for good; the reader's position now."""
        reply = await self._runtime.run(
            COMMIT_READER, partition, [self._name(keys.JOURNAL_READERS, partition)],
            [reader, entry_id],
        )  # fmt: skip
        return str(reply[1].decode())

    async def forget(self, reader: str) -> None:
        for partition in range(self._runtime.settings.partitions):
            name = self._name(keys.JOURNAL_READERS, partition)
            await self._runtime.run(FORGET_READER, partition, [name], [reader])

    async def read(self, partition: int, after: str = "0-0", entries_max: int = 100) -> list[Any]:
        """Raw entries `(id, fields)` after a position; `decode_entry` takes each apart."""
        name = self._name(keys.JOURNAL, partition)
        reply = await self._runtime.redis.call(
            "XRANGE", name, f"({after}", "+", "COUNT", entries_max, key=name
        )
        return list(reply)

    async def status(self, partition: int) -> JournalStatus:
        stream = self._name(keys.JOURNAL, partition)
        meta = self._name(keys.JOURNAL_META, partition)
        readers = self._name(keys.JOURNAL_READERS, partition)
        length, counts, positions, last = await self._runtime.redis.execute(
            [
                ("XLEN", stream),
                ("HGETALL", meta),
                ("HGETALL", readers),
                ("XREVRANGE", stream, "+", "-", "COUNT", 1),
            ],
            key=stream,
            repeatable=True,
        )
        figures = dict(zip(counts[::2], counts[1::2], strict=True))
        names = [text.decode() for text in positions]
        return JournalStatus(
            entries=length,
            events=int(figures.get(b"events", 0)),
            bytes_written=int(figures.get(b"bytes", 0)),
            dropped_entries=int(figures.get(b"dropped_entries", 0)),
            dropped_events=int(figures.get(b"dropped_events", 0)),
            last_id=last[0][0].decode() if last else "0-0",
            readers=dict(zip(names[::2], names[1::2], strict=True)),
        )

    def _name(self, key: Key, partition: int) -> str:
        return self._runtime.keyspace.name(key, partition)
