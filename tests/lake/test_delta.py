"""Delta tables without Spark: written once, whatever is repeated, and readable by others."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from angarium.lake.errors import TableUnwritable
from angarium.lake.sinks import parquet
from angarium.lake.sinks.delta import (
    DataFile,
    commit_files,
    committed_batch,
    compact,
    files_of,
    merge_rows,
    unwritable,
    vacuum,
)
from angarium.lake.sinks.parquet import write_files

DAY = datetime.date(2026, 1, 2)


def _batch(first: int, count: int, room: str | None = "dispatch") -> pa.RecordBatch:
    numbers = list(range(first, first + count))
    return pa.RecordBatch.from_pydict(
        {
            "date": [DAY] * count,
            "room": pa.array([room] * count, pa.string()),
            "n": pa.array(numbers, pa.int64()),
            "text": [f"t{n}" for n in numbers],
            "at": pa.array([n * 1000 for n in numbers], pa.timestamp("us", "UTC")),
        }
    )


def _write(
    table: Path | str, batches: list[pa.RecordBatch], batch_id: int, by: tuple[str, ...] = ()
) -> bool:
    files = write_files(str(table), batches, by)
    return commit_files(str(table), batches[0].schema, files, "app", batch_id, by)


def test_a_batch_is_in_the_table_once_however_often_it_is_committed(tmp_path: Path) -> None:
    assert committed_batch(str(tmp_path / "t"), "app") == -1
    assert _write(tmp_path / "t", [_batch(0, 10)], 0)
    assert not _write(tmp_path / "t", [_batch(0, 10)], 0)
    assert _write(tmp_path / "t", [_batch(10, 10)], 1)
    assert not _write(tmp_path / "t", [_batch(0, 10)], 0)
    table = DeltaTable(str(tmp_path / "t"))
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == list(range(20))
    assert committed_batch(str(tmp_path / "t"), "app") == 1


def test_two_drivers_that_commit_the_same_batch_at_once_leave_it_once(tmp_path: Path) -> None:
    _write(tmp_path / "t", [_batch(0, 1)], 0)
    for batch in range(1, 11):
        files = [write_files(str(tmp_path / "t"), [_batch(batch, 1)]) for _ in range(2)]
        start = threading.Barrier(2)
        problems: list[Exception] = []

        def commit(
            mine: list[DataFile],
            batch: int = batch,
            start: threading.Barrier = start,
            problems: list[Exception] = problems,
        ) -> None:
            start.wait()
            try:
                commit_files(str(tmp_path / "t"), _batch(0, 1).schema, mine, "app", batch)
            except Exception as error:
                problems.append(error)

        threads = [threading.Thread(target=commit, args=(each,)) for each in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(problems) <= 1, problems
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["n"].to_pylist()
    assert sorted(rows) == list(range(11))


def test_partitions_are_folders_and_odd_names_survive(tmp_path: Path) -> None:
    rooms: list[str | None] = ["dispatch", "a b/c%=é", None]
    batches = [_batch(10 * n, 5, room) for n, room in enumerate(rooms)]
    _write(tmp_path / "t", batches, 0, ("date", "room"))
    table = DeltaTable(str(tmp_path / "t"))
    found = table.to_pyarrow_table().to_pylist()
    assert {(row["room"], row["date"]) for row in found} == {(room, DAY) for room in rooms}
    assert len(found) == 15
    only = table.to_pyarrow_table(filters=[("room", "=", "dispatch")])
    assert sorted(only["n"].to_pylist()) == [0, 1, 2, 3, 4]


def test_others_read_the_table_and_skip_files_by_their_statistics(tmp_path: Path) -> None:
    _write(tmp_path / "t", [_batch(0, 100)], 0)
    _write(tmp_path / "t", [_batch(100, 100)], 1)
    files = list(files_of(str(tmp_path / "t")))
    with duckdb.connect() as database:
        question = "select count(*), max(text) from read_parquet($1)"
        assert database.execute(question, [files]).fetchall() == [(200, "t99")]
    log = sorted((tmp_path / "t" / "_delta_log").glob("*1.json"))
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    stats = [json.loads(a["add"]["stats"]) for a in actions if "add" in a]
    assert {(s["minValues"]["n"], s["maxValues"]["n"]) for s in stats} <= {(0, 99), (100, 199)}
    dataset = DeltaTable(str(tmp_path / "t")).to_pyarrow_dataset()
    assert dataset.filter(pa.compute.field("n") == 150).count_rows() == 1


def test_a_column_that_comes_later_is_added(tmp_path: Path) -> None:
    _write(tmp_path / "t", [_batch(0, 2)], 0)
    wider = _batch(2, 2).append_column("more", pa.array(["x", "y"]))
    _write(tmp_path / "t", [wider], 1)
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("n")
    assert rows["more"].to_pylist() == [None, None, "x", "y"]


def test_rows_are_merged_once(tmp_path: Path) -> None:
    table = str(tmp_path / "m")

    def merge(rows: dict[str, list[object]], batch: int) -> bool:
        update = {"n": "t.n + s.n"}
        return merge_rows(table, pa.table(rows), ["id"], "app", batch, update=update)

    assert merge({"id": ["a", "b"], "n": [1, 1]}, 0)
    assert merge({"id": ["b", "c"], "n": [5, 7]}, 1)
    assert not merge({"id": ["b", "c"], "n": [5, 7]}, 1)
    rows = DeltaTable(table).to_pyarrow_table().sort_by("id")
    assert rows.to_pydict() == {"id": ["a", "b", "c"], "n": [1, 6, 7]}


def test_compaction_and_vacuum_keep_the_rows_and_what_was_committed(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for batch in range(8):
        _write(table, [_batch(batch * 10, 10)], batch)
    write_files(str(table), [_batch(0, 10)])  # a task that died before its driver heard of it
    done = compact(str(table))
    assert (done.files_before, done.files_after) == (8, 1)
    assert len(vacuum(str(table), hours=0)) == 9
    assert len(list(table.glob("*.parquet"))) == 1
    assert sorted(DeltaTable(str(table)).to_pyarrow_table()["n"].to_pylist()) == list(range(80))
    assert not _write(table, [_batch(0, 10)], 7)


def test_a_url_of_a_store_does_what_a_folder_does(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/t"
    _write(url, [_batch(0, 10)], 0, ("room",))
    assert not _write(url, [_batch(0, 10)], 0, ("room",))
    assert DeltaTable(url).to_pyarrow_table().num_rows == 10
    assert compact(url).files_after <= 1


def test_memory_stays_within_a_row_group(tmp_path: Path) -> None:
    script = (
        "import pyarrow as pa, resource\n"
        "from angarium.lake.sinks.parquet import write_files\n"
        "batch = pa.RecordBatch.from_pydict({'t': ['x' * 100] * 20_000})\n"
        f"write_files({str(tmp_path / 'a')!r}, (batch for _ in range(20)))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"files = write_files({str(tmp_path / 'b')!r}, (batch for _ in range(400)))\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert sum(each.rows for each in files) == 8_000_000\n"
        "assert after < before + 150_000, (before, after)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_full_disk_is_a_clear_error_and_after_it_the_batch_is_there_once(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the same call fails the same way."""
    table = tmp_path / "t"
    _write(table, [_batch(0, 10)], 0)
    rows = _batch(10, 50_000)
    script = (
        "import resource, signal, sys, pyarrow as pa\n"
        "from angarium.lake.sinks.parquet import write_files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "batch = pa.ipc.open_stream(sys.stdin.buffer).read_next_batch()\n"
        f"write_files({str(table)!r}, [batch])\n"
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    failed = subprocess.run(
        [sys.executable, "-c", script], input=sink.getvalue().to_pybytes(), capture_output=True,
        check=False,
    )  # fmt: skip
    assert failed.returncode == 1
    assert b"File too large" in failed.stderr
    assert len(list(table.glob("*.parquet"))) == 1, "what was half written is gone"
    assert _write(table, [rows], 1)
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 50_010


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_no_space_left_is_told_in_words_that_help() -> None:
    with pytest.raises(OSError, match="space") as caught:
        Path("/dev/full").write_bytes(b"x")
    told = unwritable("lake/events", caught.value)
    assert isinstance(told, TableUnwritable)
    assert "lake/events: its disk is full; free some space and start again" in str(told)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TableUnwritable, match="may not be written"):
        _write(tmp_path / "t", [_batch(0, 1)], 0)


def test_many_partitions_do_not_keep_many_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "OPEN_FILES_MAX", 4)
    batches = [_batch(n, 1, f"r{n % 10}") for n in range(30)]
    files = write_files(str(tmp_path / "t"), batches, ("room",))
    assert sum(each.rows for each in files) == 30
    assert len(files) >= 10
