"""Parts become one row: while others write, when two try at once, and in bounded portions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from angarium.lake import compaction
from angarium.lake.compaction import combine, compact
from angarium.lake.jobs import parts
from angarium.lake.query import ask
from angarium.lake.schemas import EVENTS, INTERVALS_S
from angarium.lake.tables import Lake

AT_MS = 1_760_000_000_000
LIFE = ("accepted", "redelivered", "completed")
MESSAGES = 40


def events(step: int, messages: int = MESSAGES) -> pa.Table:
    """The same messages of two rooms, each a step further; a sequence never comes again."""
    told = [
        (room, LIFE[step] if room == "dispatch" else ("started", "taken", "completed")[step])
        for room in ("dispatch", "transactions")
    ]
    rows = [
        {"partition": 0, "entry_id": f"{AT_MS + step}-{place}", "sequence": number, "room": room,
         "at_ms": AT_MS + step * 60_000, "event": event, "subject": f"{room}{place % messages}"}
        for number, (place, (room, event)) in enumerate(
            ((place, each) for each in told for place in range(messages)), step * 1_000_000
        )
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, EVENTS.arrow())


def add(lake: Lake, step: int, messages: int = MESSAGES) -> None:
    """As a batch does it: a part of each table, and how far it has come."""
    for name, rows in parts.summed(events(step, messages).to_batches()):
        lake.append(name, rows, {"journal:0": step})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(str(tmp_path / "lake"))
    for step in range(len(LIFE)):
        add(made, step)
    return made


def contents(lake: Lake, names: Sequence[str] = parts.PARTS) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(ask(lake, f"select * from {name}").rows, key=repr) for name in names}


def stored(lake: Lake, name: str = "messages") -> int:
    """Rows as somebody sees them who reads the table without us."""
    return int(DeltaTable(lake.path(name)).to_pyarrow_table().num_rows)


def test_a_reader_sees_one_row_for_each_message_before_and_after(lake: Lake) -> None:
    before = contents(lake)
    assert (stored(lake), len(before["messages"])) == (6 * MESSAGES, 2 * MESSAGES)
    assert {row[0] for row in ask(lake, "select events from messages").rows} == {3}
    found = compact(lake)
    assert set(found) == set(parts.PARTS)
    assert contents(lake) == before
    assert stored(lake) == 2 * MESSAGES
    for name in parts.PARTS:
        assert stored(lake, name) == len(before[name])
        assert lake.positions(name, "journal") == {0: 2}
        assert lake.whole(lake.need(name))


def test_who_has_nothing_to_combine_writes_nothing(lake: Lake) -> None:
    assert combine(lake, "messages")
    version = lake.need("messages").version()
    assert not combine(lake, "messages")
    assert lake.need("messages").version() == version
    add(lake, 0)
    assert not lake.whole(lake.need("messages"))
    assert combine(lake, "messages")


def test_parts_that_come_meanwhile_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is stored between reading and committing: it is neither lost nor doubled."""
    write = compaction._written

    def slowly(*given: Any) -> Iterator[Any]:
        yield from write(*given)
        for name, rows in parts.summed(events(0, messages=1).to_batches()):
            lake.append(name, rows, {"journal:0": 7})

    monkeypatch.setattr(compaction, "_written", slowly)
    assert combine(lake, "messages")
    assert stored(lake) == 2 * MESSAGES + 2
    counts = "select count(*), sum(events) from messages"
    assert ask(lake, counts).rows == [(2 * MESSAGES, 6 * MESSAGES + 2)]
    # The part that came is not combined yet, and the mark that says so must not be there.
    assert not lake.whole(lake.need("messages"))
    assert lake.positions("messages", "journal") == {0: 7}


def test_of_two_that_combine_the_same_parts_one_gives_way(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(lake)
    write = compaction._written

    def overtaken(*given: Any) -> Iterator[Any]:
        made = list(write(*given))
        monkeypatch.setattr(compaction, "_written", write)
        assert combine(lake, "messages")
        yield from made

    monkeypatch.setattr(compaction, "_written", overtaken)
    assert not combine(lake, "messages")
    assert contents(lake) == before
    known = {path.removeprefix("file://") for path in lake.files("messages")}
    there = {str(path) for path in Path(lake.path("messages")).rglob("part-*.parquet")}
    assert len(there - known) == 6  # the parts of three batches in two rooms, for vacuum to take


def test_many_that_write_and_combine_at_once_agree(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    add(lake, 0)

    def work(number: int) -> None:
        if number % 3 == 0:
            combine(lake, "messages", whole=number % 2 == 0)
        else:
            rows = dict(parts.summed(events(1).to_batches()))["messages"]
            lake.append("messages", rows)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(24)))
    counts = "select count(*), min(events), max(events), min(accepts) from messages"
    assert ask(lake, counts).rows == [(2 * MESSAGES, 17, 17, 1)]


def test_in_passing_only_so_many_rows_are_written_anew(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file stays as it is, so the work does not grow with the table."""
    before = contents(lake)
    compact(lake)
    (large,) = (each for each in lake.files("messages") if "room=dispatch" in each)
    monkeypatch.setattr(compaction, "ROWS_TIDIED_MAX", 3 * MESSAGES - 1)
    monkeypatch.setattr(compaction, "ROWS_AT_ONCE", 10_000)
    for step in range(3):
        add(lake, step, messages=MESSAGES // 2)
    files = lake.files("messages")
    compact(lake, whole=False)
    after = lake.files("messages")
    assert large in after
    assert len(after) < len(files)
    assert ask(lake, "select sum(events) from messages").rows == [(9 * MESSAGES,)]
    assert len(contents(lake)["messages"]) == len(before["messages"])


def test_a_large_table_is_combined_in_portions(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(lake)
    monkeypatch.setattr(compaction, "ROWS_AT_ONCE", 50)
    assert combine(lake, "messages")
    assert contents(lake) == before
    assert stored(lake) == 2 * MESSAGES
    assert len(lake.files("messages")) > 2
    assert sum(count for (count,) in ask(lake, "select count from stats_coarse").rows) == 240
    assert set(INTERVALS_S) < set(before)
