"""The scripts behind the sink, called directly: what each does, refuses and repeats."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from angarium.lake.errors import OptionInvalid
from angarium.lake.sinks.redis_stream import (
    APPEND_ROWS,
    BEGIN_APPEND,
    END_APPEND,
    STAGE_ROWS,
    AppendedRows,
    BatchLists,
    BatchNumber,
    RowsLeft,
    RowsMoved,
    StagedChunk,
    StreamTarget,
    entries_of,
    packed,
    run_transition,
)
from angarium.lake.sources.options import connect_to_redis
from angarium.redis.cluster import slot_of
from angarium.runtime.errors import InputInvalid

DAY_MS = 86_400_000


class SinkScripts:
    """One stream with a writer, and lists beside it."""

    def __init__(self, url: str, prefix: str) -> None:
        self.redis = connect_to_redis(url)
        self.key = f"{prefix}s"
        target = StreamTarget(url, self.key, 0, "w", None, 10)
        self.writer = target.beside("writer:w")
        self.lists = [target.beside(f"staged:{n}") for n in range(3)]

    def stage(self, list_number: int, chunk: int, *rows: str) -> Any:
        return self.stage_packed(list_number, chunk, packed([[b"n", row.encode()] for row in rows]))

    def stage_packed(self, list_number: int, chunk: int, rows: bytes) -> Any:
        args = StagedChunk(chunk, DAY_MS, rows)
        return run_transition(self.redis, STAGE_ROWS, [self.lists[list_number]], args)

    def begin(self, batch: int, *lists: int) -> Any:
        names = [self.writer, *(self.lists[n] for n in lists)]
        return run_transition(self.redis, BEGIN_APPEND, names, BatchNumber(batch))

    def append(self, batch: int, list_number: int, length_max: int = 0) -> Any:
        names = [self.key, self.writer, self.lists[list_number]]
        return run_transition(self.redis, APPEND_ROWS, names, AppendedRows(batch, 1, length_max))

    def end(self, batch: int, *lists: int) -> Any:
        names = [self.writer, *(self.lists[n] for n in lists)]
        return run_transition(self.redis, END_APPEND, names, BatchNumber(batch))

    def entries(self) -> list[bytes]:
        return [fields[1] for _, fields in self.redis.call("XRANGE", self.key, "-", "+",
                                                           key=self.key)]  # fmt: skip


@pytest.fixture
def sink(any_redis_url: str, prefix: str) -> Iterator[SinkScripts]:
    sink = SinkScripts(any_redis_url, prefix)
    yield sink
    sink.redis.close()


def test_a_chunk_is_staged_once_and_a_lost_one_is_noticed(sink: SinkScripts) -> None:
    assert sink.stage(0, 0, "a") == "staged"
    assert sink.stage(0, 0, "a") == "already"
    assert sink.stage(0, 1, "b") == "staged"
    assert sink.stage(0, 3, "d") == "missing"
    name = sink.lists[0]
    assert sink.redis.call("LLEN", name, key=name) == 2
    assert 0 < sink.redis.call("PTTL", name, key=name) <= DAY_MS


def test_the_lists_that_were_named_first_are_the_batch(sink: SinkScripts) -> None:
    for number in range(3):
        sink.stage(number, 0, f"l{number}")
    named = BatchLists(sink.lists[:2])
    assert sink.begin(0, 0, 1) == named
    assert sink.redis.call("PTTL", sink.lists[0], key=sink.key) == -1
    assert sink.begin(0, 2) == named
    assert sink.begin(1, 2) == BatchNumber(0)


def test_rows_move_once_and_the_batch_ends_when_its_lists_are_empty(sink: SinkScripts) -> None:
    sink.stage(0, 0, "a", "b")
    sink.stage(0, 1, "c")
    assert sink.append(0, 0) == "closed"
    sink.begin(0, 0)
    assert sink.append(0, 0) == RowsMoved(2, left=1)
    assert sink.end(0, 0) == RowsLeft(sink.lists[0])
    assert sink.append(0, 0) == RowsMoved(1, left=0)
    assert sink.append(0, 0) == RowsMoved(0, left=0)
    assert sink.entries() == [b"a", b"b", b"c"]
    assert sink.end(0, 0) == "committed"
    assert sink.end(0, 0) == "already"
    assert sink.begin(0, 0) == "already"
    assert sink.append(0, 0) == "closed"
    assert sink.end(5) == RowsLeft("")


def test_the_stream_keeps_about_as_much_as_it_should(sink: SinkScripts) -> None:
    sink.stage(0, 0, *(f"{n}" for n in range(1_000)))
    sink.begin(0, 0)
    assert sink.append(0, 0, length_max=100).rows == 1_000
    assert 100 <= len(sink.entries()) < 300


def test_values_are_bytes_as_they_are(sink: SinkScripts) -> None:
    chunk = packed([[b"\xff\x00", bytes(range(256)) * 300]])
    sink.stage_packed(0, 0, chunk)
    sink.begin(0, 0)
    sink.append(0, 0)
    assert sink.entries() == [bytes(range(256)) * 300]


def test_a_row_becomes_fields_in_text() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "text": ["é", None],
            "number": [1, 2],
            "real": [0.5, None],
            "flag": [True, False],
            "raw": [b"\xff", None],
            "day": [datetime.date(2026, 1, 2), None],
            "list": [[1, 2], None],
        }
    )
    first, second = entries_of(batch)
    assert dict(zip(first[::2], first[1::2], strict=True)) == {
        b"text": "é".encode(), b"number": b"1", b"real": b"0.5", b"flag": b"true",
        b"raw": b"\xff", b"day": b"2026-01-02", b"list": b"[1,2]",
    }  # fmt: skip
    assert second == [b"number", b"2", b"flag", b"false"]


def test_what_was_read_can_be_written() -> None:
    kind = pa.map_(pa.string(), pa.binary())
    batch = pa.RecordBatch.from_pydict(
        {
            "key": ["k"],
            "id": ["1-1"],
            "fields": pa.array([[("a", b"\x00"), ("b", None)]], kind),
            "extra": ["x"],
        }
    )
    assert list(entries_of(batch)) == [[b"a", b"\x00", b"extra", b"x"]]


def test_a_row_without_values_is_refused() -> None:
    with pytest.raises(InputInvalid, match="without any value"):
        list(entries_of(pa.RecordBatch.from_pydict({"a": pa.array([None], pa.string())})))


def test_a_name_that_shares_no_slot_is_refused_on_a_cluster() -> None:
    def beside(key: str) -> str:
        return StreamTarget("redis+cluster://h:1", key, 0, "w", None, 1).beside("x")

    for key in ("plain", "{tag}rest", "a{b}c"):
        assert slot_of(beside(key)) == slot_of(key)
    with pytest.raises(OptionInvalid, match="use a name without it"):
        beside("a}b")
