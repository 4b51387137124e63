"""The journal: the events of every transition, appended by the script of the transition.

Each partition has one stream, with one entry per batch; an entry contains its events as JSON lines.
Entries have sequence numbers, so a reader can tell that nothing is missing between two of them. The
journal is trimmed only up to the position of the slowest registered reader, unless it reaches its
size limit. The lake and the modules share nothing but this schema.

| entry field | meaning |
|---|---|
| `v` | version of this schema, 1 |
| `module`, `at`, `by` | its module (0.1 wrote `room`), Redis time in ms, process |
| `n`, `seq` | number of events in this entry; sequence number of its last event |
| `end` | bytes written to the journal up to the end of this entry |
| `rows` | the events, one JSON object per line, fields as in `Event` |

At the size limit the oldest entries are dropped, also those that a reader has not read. Each loss
is logged once, with the number of events and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from prometheus_client import Gauge

from angarium.runtime import keys, log
from angarium.runtime.errors import AngariumError
from angarium.runtime.keyspace import Key
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition

SCHEMA_VERSION = 1


class ReaderPosition(NamedTuple):
    reader: str
    entry_id: str


class ReaderName(NamedTuple):
    reader: str


class Committed(NamedTuple):
    position: str


COMMIT_READER: Transition[Any] = Transition(
    "angarium.runtime",
    "commit_reader",
    keys={"readers": keys.JOURNAL_READERS},
    args=ReaderPosition,
    replies={"committed": Committed},
)
FORGET_READER: Transition[Any] = Transition(
    "angarium.runtime",
    "forget_reader",
    keys={"readers": keys.JOURNAL_READERS},
    args=ReaderName,
    replies={"forgotten": None, "unknown": None},
)


class EntryUnreadable(AngariumError):
    """An entry that is foreign, damaged or of a newer schema; readers count and skip it."""

    code = "entry_unreadable"


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One transition of one subject. Field names are short because there are millions of events."""

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
class JournalEntry:
    id: str
    module: str
    at_ms: int
    actor: str
    first_sequence: int
    events: Sequence[Event]


@dataclass(frozen=True)
class JournalStatus:
    """Counters of one partition's journal; `dropped` entries were removed at the size limit.

    `full`: its readers leave less than an eighth of the limit free.
    """

    entries: int
    events: int
    bytes_written: int
    dropped_entries: int
    dropped_events: int
    last_id: str
    readers: Mapping[str, str]
    full: bool


_decode_event = msgspec.json.Decoder(Event).decode


def decode_entry(entry_id: bytes, fields: Sequence[bytes]) -> JournalEntry:
    """Decodes one entry as XRANGE returns it. Raises `EntryUnreadable`."""
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        if named[b"v"] != b"%d" % SCHEMA_VERSION:
            raise EntryUnreadable(f"entry {entry_id!r} has schema {named[b'v']!r}")
        events = [_decode_event(line) for line in named[b"rows"].split(b"\n")]
        if len(events) != int(named[b"n"]):
            raise EntryUnreadable(f"entry {entry_id!r} has only {len(events)} of its events")
        return JournalEntry(
            id=entry_id.decode(),
            module=(named[b"module"] if b"module" in named else named[b"room"]).decode(),
            at_ms=int(named[b"at"]),
            actor=named[b"by"].decode(),
            first_sequence=int(named[b"seq"]) - len(events) + 1,
            events=events,
        )
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise EntryUnreadable(f"entry {entry_id!r} is not a journal entry: {error}") from error


class Journal:
    """Reads the journal and stores readers' positions. Only scripts append to it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def register(self, reader: str) -> None:
        """Keep all entries from now on for this reader, until `forget`."""
        for partition in range(self._runtime.settings.partitions):
            await self.commit(reader, partition, "")

    async def commit(self, reader: str, partition: int, entry_id: str) -> str:
        """Record that the reader has stored everything up to `entry_id`; returns its position."""
        position = ReaderPosition(reader, entry_id)
        committed: Committed = await self._runtime.call(COMMIT_READER, partition, position)
        return committed.position

    async def forget(self, reader: str) -> None:
        for partition in range(self._runtime.settings.partitions):
            await self._runtime.call(FORGET_READER, partition, ReaderName(reader))

    async def read(self, partition: int, after: str = "0-0", entries_max: int = 100) -> list[Any]:
        """Raw entries `(id, fields)` after a position, for `decode_entry`."""
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
        counters = dict(zip(counts[::2], counts[1::2], strict=True))

        names = [text.decode() for text in positions]
        return JournalStatus(
            entries=length,
            events=int(counters.get(b"events", 0)),
            bytes_written=int(counters.get(b"bytes", 0)),
            dropped_entries=int(counters.get(b"dropped_entries", 0)),
            dropped_events=int(counters.get(b"dropped_events", 0)),
            last_id=last[0][0].decode() if last else "0-0",
            readers=dict(zip(names[::2], names[1::2], strict=True)),
            full=b"full" in counters,
        )

    def _name(self, key: Key, partition: int) -> str:
        return self._runtime.keyspace.name(key, partition)


ENTRIES = Gauge("angarium_journal_entries", "Entries in the journal.", ["partition"])
EVENTS = Gauge("angarium_journal_events", "Events ever written to the journal.", ["partition"])
DROPPED = Gauge(
    "angarium_journal_dropped_events",
    "Events given up at the size limit before a reader had them.",
    ["partition"],
)
FULL = Gauge(
    "angarium_journal_full",
    "1 while readers leave less than an eighth of the journal's size limit free.",
    ["partition"],
)
BEHIND = Gauge(
    "angarium_journal_reader_behind_ms",
    "Milliseconds between a reader's last committed entry and the newest one.",
    ["partition", "reader"],
)


@dataclass(frozen=True)
class JournalLosses:
    """Events that were dropped since the last pass, by partition."""

    lost: Mapping[int, int]


class JournalMetrics:
    def __init__(self, runtime: Runtime) -> None:
        self._journal = Journal(runtime)
        self._partitions = runtime.settings.partitions
        self._bytes_max = runtime.settings.journal.bytes_max
        self._dropped: dict[int, int] = {}
        self._log = log.logger("angarium.journal")

    async def run_once(self) -> JournalLosses:
        lost = {}
        for partition in range(self._partitions):
            status = await self._journal.status(partition)
            _set_gauges(str(partition), status)
            # Losses from before this process started are logged too: perhaps nobody logged them.

            new_losses = status.dropped_events - self._dropped.get(partition, 0)
            self._dropped[partition] = status.dropped_events
            if new_losses > 0:
                lost[partition] = new_losses
                self._warn(partition, new_losses, status)
        return JournalLosses(lost)

    def _warn(self, partition: int, new_losses: int, status: JournalStatus) -> None:
        self._log.warning(
            "journal_events_lost",
            partition=partition,
            events=new_losses,
            in_all=status.dropped_events,
            bytes_max=self._bytes_max,
            readers=sorted(status.readers),
            fix="run the lake, forget readers that are gone, or raise ANGARIUM_JOURNAL__BYTES_MAX",
        )


def _set_gauges(partition: str, status: JournalStatus) -> None:
    ENTRIES.labels(partition).set(status.entries)
    EVENTS.labels(partition).set(status.events)
    DROPPED.labels(partition).set(status.dropped_events)
    FULL.labels(partition).set(status.full)
    newest_ms = int(status.last_id.partition("-")[0])
    for reader, position in status.readers.items():
        behind_ms = max(0, newest_ms - int(position.partition("-")[0]))
        BEHIND.labels(partition, reader).set(behind_ms)
