"""How batches of a stream are planned and what is noticed: the reader itself, without Spark."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from angarium.lake.errors import (
    CheckpointMismatch,
    EntriesTrimmed,
    OptionInvalid,
    StreamReplaced,
)
from angarium.lake.sources import entry_ids
from angarium.lake.sources.redis_stream import RedisStreamFormat, StreamReader
from angarium.runtime.journal import Journal, decode_entry
from tests.kit.sample import SampleStore, sample_runtime
from tests.kit.server import ServerProcess
from tests.lake.kit import fill_journal

KINDS = {
    "int": IntegerType(), "string": StringType(), "bigint": LongType(), "binary": BinaryType(),
    "timestamp": TimestampType(), "map<string,string>": MapType(StringType(), StringType()),
}  # fmt: skip


def _reader(url: str, **options: object) -> StreamReader:
    given = {"url": url, **{name: str(value) for name, value in options.items()}}
    source = RedisStreamFormat(CaseInsensitiveDict(given))
    columns = [part.split(" ") for part in source.schema().split(", ")]
    schema = StructType([StructField(name, KINDS[kind]) for name, kind in columns])
    return source.streamReader(schema)


def _read(reader: StreamReader, start: Any, end: Any) -> list[dict[str, Any]]:
    start, end = (json.loads(json.dumps(each)) for each in (start, end))
    return [
        row
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def _batches(reader: StreamReader, rows_max: int, start: Any) -> Iterator[tuple[Any, Any]]:
    while (end := reader.latestOffset(start, ReadMaxRows(rows_max))) != start:
        yield start, end
        start = end


ALL = ReadAllAvailable()


def test_batches_follow_one_another_without_gap_or_overlap(
    redis_server: ServerProcess, prefix: str
) -> None:
    client = redis_server.client()
    ids = [client.xadd(f"{prefix}{n % 2}", {"n": n}).decode() for n in range(2_000)]
    reader = _reader(redis_server.url, keys=f"{prefix}*")
    found: list[str] = []
    sizes = []
    for start, end in _batches(reader, 300, reader.initialOffset()):
        rows = _read(reader, start, end)
        assert rows == _read(reader, start, end), "a batch can be read again"
        sizes.append(len(rows))
        found += [row["id"] for row in rows]
    assert sorted(found) == sorted(ids)
    assert len(sizes) >= 4
    assert max(sizes) < 900
    reader.stop()


def test_a_batch_of_the_journal_is_cut_by_its_events(
    redis_server: ServerProcess, prefix: str
) -> None:
    client = redis_server.client()
    key = f"{prefix}journal"
    # Ids say nothing of the weight here: first light entries, then heavy ones.
    total = fill_journal(client, key, entries=200, events=1)
    total = fill_journal(client, key, entries=200, events=200, first=total)
    reader = _reader(redis_server.url, prefix=prefix, decode="journal", reader="r")
    sizes = []
    for start, end in _batches(reader, 5_000, reader.initialOffset()):
        sizes.append(len(_read(reader, start, end)))
        assert end["counts"][key] == sum(sizes)
    assert sum(sizes) == total
    assert max(sizes) <= 7_000
    reader.stop()


def test_a_large_batch_is_divided_into_tasks_and_small_keys_share_one(
    redis_server: ServerProcess, prefix: str
) -> None:
    client = redis_server.client()
    fill_journal(client, f"{prefix}big", entries=300, events=300)
    for n in range(5):
        fill_journal(client, f"{prefix}small{n}", entries=1, events=3)
    reader = _reader(redis_server.url, keys=f"{prefix}*", decode="journal", parallelism=3)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    parts = list(reader.partitions(start, end))
    assert 3 <= len(parts) <= 4
    assert len(_read(reader, start, end)) == 90_015
    reader.stop()


async def test_the_rows_are_what_the_modules_wrote(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        store = SampleStore(runtime)
        for n in range(20):
            await store.accept(f'id"{n}é')
        entries = [decode_entry(*raw) for raw in await Journal(runtime).read(0)]

        def read() -> list[dict[str, Any]]:
            # In a thread without an event loop, as Spark calls it.
            reader = _reader(redis_url, prefix=runtime.settings.prefix, decode="journal")
            start = reader.initialOffset()
            found = _read(reader, start, reader.latestOffset(start, ALL))
            reader.stop()
            return found

        rows = await asyncio.to_thread(read)
        expected = [
            (each.id, each.first_sequence + n, each.module, each.at_ms, each.actor, event.event,
             event.subject, event.key, event.attempt, event.status)
            for each in entries
            for n, event in enumerate(each.events)
        ]  # fmt: skip
        names = ("id", "sequence", "module", "at_ms", "actor", "event", "subject", "key", "attempt",
                 "status")  # fmt: skip
        assert [tuple(row[name] for name in names) for row in rows] == expected
        assert {row["version"] for row in rows} == {1}


def test_what_can_not_be_read_is_kept_aside_with_its_bytes(
    redis_server: ServerProcess, prefix: str
) -> None:
    client = redis_server.client()
    key = f"{prefix}journal"
    base = {"v": 1, "module": "r", "at": 5, "by": "w", "n": 1, "seq": 9, "end": 0}
    fill_journal(client, key, entries=2, events=3)
    bad = {
        "not a journal entry": {"foo": "bar"},
        "schema version 2": {**base, "v": 2, "rows": "?"},
        "a field is missing": {"v": 1, "module": "r"},
        "'at' is not a number that fits": {**base, "at": "noon", "rows": "{}"},
        "its number of events is wrong": {**base, "rows": '{"e":"a","s":"b"}\n{"e":"a","s":"b"}'},
        "an event has no name or no subject": {**base, "rows": '{"e":"a"}'},
        "an attempt is not a number that fits": {
            **base, "rows": '{"e":"a","s":"b","a":9999999999}',
        },
    }  # fmt: skip
    for fields in bad.values():
        client.xadd(key, fields)
    client.xadd(key, {**base, "rows": "{broken"})
    client.xadd(key, {**base, "rows": '{"e":1,"s":[]}'})
    fill_journal(client, key, entries=2, events=3, first=6)
    reader = _reader(redis_server.url, prefix=prefix, decode="journal")
    start = reader.initialOffset()
    rows = _read(reader, start, reader.latestOffset(start, ALL))
    assert [row["subject"] for row in rows if not row["reject"]] == [f"m{n}" for n in range(12)]
    rejects = [row for row in rows if row["reject"]]
    assert len(rejects) == len(bad) + 2
    assert set(bad) <= {row["reject"] for row in rejects}
    assert sum("can't be read (JSON" in row["reject"] for row in rejects) == 2
    assert next(r for r in rejects if r["version"] == 2)["raw"].endswith(b"rows\xc4\x01?")
    reader.stop()


def test_entries_of_version_0_1_are_read(redis_server: ServerProcess, prefix: str) -> None:
    """They call the module a room."""
    client = redis_server.client()
    fields = {"v": 1, "room": "pickup", "at": 5, "by": "w", "n": 1, "seq": 1, "end": 0}
    client.xadd(f"{prefix}journal", {**fields, "rows": '{"e":"accepted","s":"m"}'})
    reader = _reader(redis_server.url, prefix=prefix, decode="journal")
    start = reader.initialOffset()
    (row,) = _read(reader, start, reader.latestOffset(start, ALL))
    assert (row["module"], row["event"], row["reject"]) == ("pickup", "accepted", None)
    reader.stop()


@given(st.binary(max_size=60))
def test_no_bytes_of_an_entry_stop_the_reader(junk: bytes) -> None:
    from angarium.lake.sources.journal import SCHEMA, JournalDecoder

    columns = [part.split(" ") for part in SCHEMA.split(", ")]
    schema = StructType([StructField(name, KINDS[kind]) for name, kind in columns])
    from pyspark.sql.pandas.types import to_arrow_schema

    base = [b"v", b"1", b"module", b"r", b"at", b"5", b"by", b"w", b"n", b"1", b"seq", b"9",
            b"end", b"0", b"rows", b'{"e":"a","s":"b"}']  # fmt: skip
    pages = [[[b"1-1", base], [b"1-2", [*base[:at], junk, *base[at + 1 :]]]] for at in range(16)]
    decoder = JournalDecoder(to_arrow_schema(schema, timezone="UTC"))
    for page in pages:
        rows = [row for batch in decoder.decode("journal", page) for row in batch.to_pylist()]
        good = [row for row in rows if row["id"] == "1-1"]
        assert [(row["event"], row["reject"]) for row in good] == [("a", None)]
        assert any(row["id"] == "1-2" for row in rows)


def test_reading_starts_where_it_is_told(redis_server: ServerProcess, prefix: str) -> None:
    client = redis_server.client()
    key = f"{prefix}s"
    ids = [client.xadd(key, {"n": n}).decode() for n in range(4)]
    late = _reader(redis_server.url, keys=key, startingOffsets="latest")
    start = late.initialOffset()
    assert late.latestOffset(start, ALL) == start
    ids.append(client.xadd(key, {"n": 4}).decode())
    assert [row["id"] for row in _read(late, start, late.latestOffset(start, ALL))] == ids[4:]
    some = _reader(redis_server.url, keys=key, startingOffsets=json.dumps({key: ids[1]}))
    start = some.initialOffset()
    assert [row["id"] for row in _read(some, start, some.latestOffset(start, ALL))] == ids[2:]
    some.prepareForTriggerAvailableNow()
    client.xadd(key, {"n": 5})
    assert some.latestOffset(start, ALL)["ids"] == {key: ids[4]}
    late.stop()
    some.stop()


def test_a_journal_is_trimmed_behind_the_slowest_reader_only(
    redis_server: ServerProcess, prefix: str
) -> None:
    client = redis_server.client()
    key = f"{prefix}journal"
    fill_journal(client, key, entries=400, events=2)
    fast, slow = (_reader(redis_server.url, prefix=prefix, decode="journal", reader=name)
                  for name in ("fast", "slow"))  # fmt: skip
    starts = [fast.initialOffset(), slow.initialOffset()]
    end = fast.latestOffset(starts[0], ALL)
    fast.commit(end)
    assert client.xlen(key) == 400
    assert len(_read(slow, starts[1], end)) == 800
    slow.commit(end)
    assert client.xlen(key) < 110
    assert fast.latestOffset(end, ALL) == end
    fast.stop()
    slow.stop()


def test_entries_removed_before_they_were_read_are_an_error_or_counted(
    redis_server: ServerProcess, prefix: str
) -> None:
    client = redis_server.client()
    key = f"{prefix}s"
    for n in range(10):
        client.xadd(key, {"n": n})
    readers = {gap: _reader(redis_server.url, keys=key, onGap=gap) for gap in ("error", "count")}
    start = readers["error"].initialOffset()
    end = readers["error"].latestOffset(start, ALL)
    # All that was read may go.
    client.xtrim(key, maxlen=0, approximate=False)
    assert readers["error"].latestOffset(end, ALL) == end
    for n in range(10, 30):
        client.xadd(key, {"n": n})
    client.xtrim(key, maxlen=20, approximate=False)
    assert readers["error"].latestOffset(end, ALL)["ids"] != end["ids"]
    # Five of the new ones went as well.
    client.xtrim(key, maxlen=15, approximate=False)
    with pytest.raises(EntriesTrimmed, match="lost at least 5 rows"):
        readers["error"].latestOffset(end, ALL)
    later = readers["count"].latestOffset(end, ALL)
    assert later["gaps"] == {key: 5}
    assert len(_read(readers["count"], end, later)) == 15
    client.xtrim(key, maxlen=0, approximate=False)
    client.xadd(key, {"n": 30})
    with pytest.raises(EntriesTrimmed):
        _read(readers["error"], end, later)
    client.xdel(key, client.xadd(key, {"n": 31}))
    with pytest.raises(EntriesTrimmed):
        readers["error"].latestOffset(later, ALL)
    for reader in readers.values():
        reader.stop()


def test_trimming_that_overtakes_a_task_is_noticed(
    redis_server: ServerProcess, prefix: str
) -> None:
    client = redis_server.client()
    key = f"{prefix}s"
    for n in range(500):
        client.xadd(key, {"n": n})
    reader = _reader(redis_server.url, keys=key)
    start = reader.initialOffset()
    (part,) = reader.partitions(start, reader.latestOffset(start, ALL))
    rows = reader.read(part)
    next(rows)
    client.xtrim(key, maxlen=10, approximate=False)
    with pytest.raises(EntriesTrimmed, match="removed before they were read"):
        list(rows)
    reader.stop()


def test_the_checkpoint_of_another_stream_is_refused(
    redis_server: ServerProcess, prefix: str
) -> None:
    client = redis_server.client()
    client.xadd(f"{prefix}a", {"n": 1})
    one, other = (_reader(redis_server.url, keys=f"{prefix}{name}") for name in "ab")
    end = one.latestOffset(one.initialOffset(), ALL)
    with pytest.raises(CheckpointMismatch, match=f"belongs to '{prefix}a'"):
        other.latestOffset(end, ALL)
    with pytest.raises(CheckpointMismatch, match="another source"):
        other.partitions({"batch": 1}, {"batch": 2})
    client.delete(f"{prefix}a")
    with pytest.raises(StreamReplaced, match="it was deleted, or this is another server"):
        one.latestOffset(end, ALL)
    one.stop()
    other.stop()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "keys: no stream is named"),
        ({"keys": "a", "colour": "red"}, "colour: there is no such option"),
        ({"keys": "a", "maxRowsPerBatch": "0"}, "maxRowsPerBatch: '0' is not a number"),
        ({"keys": "a", "onGap": "shrug"}, "onGap: 'shrug' is not known; use error or count"),
        ({"keys": "a", "startingOffsets": "soon"}, "startingOffsets: 'soon' can't be read"),
        ({"keys": "a", "startingOffsets": '{"a": "x-1"}'}, "'x-1' is not an entry id"),
        ({"keys": "a", "reader": "r"}, "only a journal has registered readers"),
    ],
)
def test_an_option_that_can_not_be_used_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionInvalid, match=says):
        _reader("redis://127.0.0.1:1", **options)


def test_what_is_not_a_stream_is_named(redis_server: ServerProcess, prefix: str) -> None:
    redis_server.client().set(f"{prefix}text", "x")
    reader = _reader(redis_server.url, keys=f"{prefix}text")
    with pytest.raises(OptionInvalid, match="is not a stream"):
        reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()


@given(st.integers(0, 2**127), st.integers(1, 2**100), st.integers(1, 50))
def test_a_divided_range_has_no_gap_and_no_overlap(first: int, length: int, parts: int) -> None:
    pieces = entry_ids.split(first, first + length, parts)
    assert pieces[0][0] == first
    assert pieces[-1][1] == first + length
    assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
    assert all(low < high for low, high in pieces)
    assert len(pieces) <= parts
