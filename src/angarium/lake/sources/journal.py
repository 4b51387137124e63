"""Entries of the journal as rows, one for each event.

Events are JSON lines, and Arrow reads the lines of a whole page at once; what stands once in an
entry is then repeated for each of its events. An entry that is not ours, is damaged or was written
by a newer version stays: as one row with `reject` saying why, and its fields as they came in `raw`
(MessagePack). Pure: pages in, record batches out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from angarium.lake.bronze import AT_MS_MAX
from angarium.lake.sources.streams import Entry
from angarium.runtime.journal import SCHEMA_VERSION

SCHEMA = (
    "partition int, id string, sequence bigint, version int, module string, at_ms bigint, "
    "actor string, event string, subject string, key string, owner string, pipeline string, "
    "node string, attempt int, status string, detail string, reject string, raw binary"
)
# Names on the wire (runtime/journal.py), in the order of the columns above.
WIRE = (
    ("event", "e"), ("subject", "s"), ("key", "k"), ("owner", "o"), ("pipeline", "p"),
    ("node", "n"), ("attempt", "a"), ("status", "t"), ("detail", "d"),
)  # fmt: skip
_ROWS = pa.schema([(wire, pa.int64() if wire == "a" else pa.string()) for _, wire in WIRE])
_PARSE = pajson.ParseOptions(explicit_schema=_ROWS, unexpected_field_behavior="ignore")
_NAMES = [b"v", b"module", b"at", b"by", b"n", b"seq", b"end", b"rows"]
_OLD_NAME = b"room"  # of `module`, in journals of 0.1
_VERSION = b"%d" % SCHEMA_VERSION
# A module is a folder of the table `events`: names of foreign writers must not make thousands.
_MODULE = re.compile(rb"[a-z][a-z0-9_]{0,39}")
_NUMBER_MAX = (1 << 62) - 1
_TAG = re.compile(r"\{p(\d+)\}:")
RAW_BYTES_MAX = 16 << 20
BLOCK_BYTES = 4 << 20


class _Unreadable(Exception):
    """Why an entry is set aside."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """An entry taken apart as far as its events, which are still text."""

    id: bytes
    module: bytes
    at_ms: int
    actor: bytes
    events: int
    last_sequence: int
    rows: bytes


class JournalDecoder:
    """`schema` is Arrow's, as Spark expects it for `SCHEMA`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def decode(self, key: str, page: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        tag = _TAG.match(key)
        partition = int(tag.group(1)) if tag else 0
        good: list[_Packed] = []
        bad: list[tuple[Entry, str]] = []
        for entry in page:
            try:
                good.append(_packed(entry))
            except _Unreadable as error:
                bad.append((entry, str(error)))
        if good:
            yield from self._events(partition, good, bad, {entry[0]: entry for entry in page})
        if bad:
            yield self._rejects(partition, bad)

    def _events(
        self,
        partition: int,
        good: Sequence[_Packed],
        bad: list[tuple[Entry, str]],
        entries: dict[bytes, Entry],
    ) -> Iterator[pa.RecordBatch]:
        try:
            rows = _parse(good)
        except _Unreadable as error:
            if len(good) == 1:
                bad.append((entries[good[0].id], str(error)))
                return
            # Somewhere among them is one that lies about itself: halves find it in few steps.
            middle = len(good) // 2
            for half in (good[:middle], good[middle:]):
                yield from self._events(partition, half, bad, entries)
            return
        yield self._batch(partition, good, rows)

    def _batch(self, partition: int, good: Sequence[_Packed], rows: pa.Table) -> pa.RecordBatch:
        counts = np.fromiter((each.events for each in good), np.int64, len(good))
        total = int(counts.sum())
        ends = np.cumsum(counts)
        last = np.fromiter((each.last_sequence for each in good), np.int64, len(good))
        sequence = np.arange(total) + np.repeat(last - ends + 1, counts)
        places = pa.array(np.repeat(np.arange(len(good)), counts))
        at_ms = np.repeat(np.fromiter((e.at_ms for e in good), np.int64, len(good)), counts)

        def repeated(values: list[bytes]) -> pa.Array:
            return pa.array(values, pa.binary()).cast(pa.string()).take(places)

        columns: list[Any] = [
            pa.repeat(pa.scalar(partition, pa.int32()), total),
            repeated([each.id for each in good]),
            pa.array(sequence),
            pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int32()), total),
            repeated([each.module for each in good]),
            pa.array(at_ms),
            repeated([each.actor for each in good]),
            *(_whole(rows[wire]) for _, wire in WIRE),
            pa.nulls(total, pa.string()),
            pa.nulls(total, pa.binary()),
        ]
        columns[13] = columns[13].cast(pa.int32())
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _rejects(self, partition: int, bad: Sequence[tuple[Entry, str]]) -> pa.RecordBatch:
        entries = [entry for entry, _ in bad]
        named = [dict(zip(e[1][::2], e[1][1::2], strict=False)) for e in entries]
        given = {
            "partition": [partition] * len(bad),
            "id": [entry[0].decode() for entry in entries],
            "version": [_number(each.get(b"v"), 31) for each in named],
            "at_ms": [_number(each.get(b"at"), 63) for each in named],
            "reject": [why for _, why in bad],
            "raw": [_raw(entry[1]) for entry in entries],
        }
        columns = [
            pa.array(given[field.name], field.type)
            if field.name in given
            else pa.nulls(len(bad), field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _packed(entry: Entry) -> _Packed:
    id, fields = entry
    # Our scripts always write the same fields in the same order: no need to look them up.
    if len(fields) == 16 and fields[::2] == _NAMES:
        values = fields[1::2]
    else:
        named = dict(zip(fields[::2], fields[1::2], strict=False))
        if b"v" not in named:
            raise _Unreadable("not a journal entry")
        if _OLD_NAME in named:
            named.setdefault(b"module", named[_OLD_NAME])
        if named[b"v"] == _VERSION and not all(name in named for name in _NAMES):
            raise _Unreadable("a field is missing")
        values = [named.get(name, b"") for name in _NAMES]
    version, module, at, actor, events, sequence, _, rows = values
    if version != _VERSION:
        raise _Unreadable(f"schema version {version[:20].decode(errors='replace')}")
    try:
        actor.decode(), rows.decode()
    except UnicodeDecodeError:
        raise _Unreadable("a field is no text") from None
    if not _MODULE.fullmatch(module):
        raise _Unreadable("its module has no name that a module can have")
    return _Packed(
        id, module, _counted(at, "at", AT_MS_MAX), actor, _counted(events, "n", len(rows) + 1),
        _counted(sequence, "seq", _NUMBER_MAX), rows,
    )  # fmt: skip


def _counted(text: bytes, name: str, most: int) -> int:
    # Twenty digits are more than any of them may have, and are not even read.
    if not text.isdigit() or len(text) > 19 or int(text) > most:
        raise _Unreadable(f"'{name}' is not a number that fits")
    return int(text)


def _parse(good: Sequence[_Packed]) -> pa.Table:
    text = b"\n".join([each.rows for each in good])
    events = sum(each.events for each in good)
    # Each entry must hold the lines it says, or rows would slip from one entry to the next.
    for each in good:
        if each.rows.count(b"\n") + 1 != each.events:
            raise _Unreadable("its number of events is wrong")
    try:
        rows = pajson.read_json(
            pa.BufferReader(text),
            pajson.ReadOptions(use_threads=False, block_size=max(BLOCK_BYTES, _longest(good))),
            _PARSE,
        )
        # An escape such as \\ud800 is JSON, and no text.
        rows.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _Unreadable(f"its events can't be read ({str(error)[:120]})") from None
    if rows.num_rows != events:
        raise _Unreadable("its number of events is wrong")
    if rows["e"].null_count or rows["s"].null_count:
        raise _Unreadable("an event has no name or no subject")
    limit = np.iinfo(np.int32)
    attempts = rows["a"]
    if attempts.null_count < events:
        span = pa.compute.min_max(attempts).as_py()
        if span["min"] < limit.min or span["max"] > limit.max:
            raise _Unreadable("an attempt is not a number that fits")
    return rows


def _longest(good: Sequence[_Packed]) -> int:
    """A line must fit into a block of Arrow's reader."""
    return max(len(each.rows) for each in good) + 1


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _number(text: bytes | None, bits: int) -> int | None:
    if text is None or not text.isdigit() or len(text) > 19:
        return None
    return int(text) if int(text) < 1 << bits else None


def _raw(fields: Sequence[bytes]) -> bytes:
    return msgspec.msgpack.encode(list(fields))[:RAW_BYTES_MAX]
