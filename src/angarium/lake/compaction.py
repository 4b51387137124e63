"""Small files put together, parts made one row, files that nobody needs deleted; writers go on.

What is written anew and what it replaces stand in one commit, so a reader sees the one or the
other, and a process that dies leaves only files that are no part of the table. Two that compact
the same table at once can't both win: the commit names who compacts, and the loser gives way.
Memory is bounded: parts are divided by their key on disk before they are combined. No Spark.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from angarium.lake.jobs.parts import combined_sql, own_connection
from angarium.lake.schemas import TABLES, Table
from angarium.lake.tables import COMPACTION, WHOLE, Lake, commit_properties

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from deltalake import DeltaTable

    from angarium.lake.sinks.delta import DataFile

# Parts that are combined at once: about half a gigabyte where each is another message's.
ROWS_AT_ONCE = 500_000
# Beside running queries, so many rows are written anew each time and no more, however large the
# table has become; the smallest files come first.
ROWS_TIDIED_MAX = 1_000_000
RECORDS_PER_BATCH = 65_536


def compact(
    lake: Lake, *, tables: Sequence[str] = tuple(TABLES), whole: bool = True
) -> dict[str, tuple[int, int]]:
    """Table -> files before and after. Without `whole`, only as much as may be done in passing."""
    from angarium.lake.sinks import delta

    found: dict[str, tuple[int, int]] = {}
    for name in tables:
        before = len(lake.files(name))
        if before:
            delta.vacuum(lake.path(name))
            if TABLES[name].in_parts:
                combine(lake, name, whole=whole)
            else:
                delta.compact(lake.path(name))
            found[name] = before, len(lake.files(name))
    return found


@dataclass(frozen=True)
class _Stored:
    """A file of a table, as its log has it."""

    path: str
    size_bytes: int
    rows: int
    partition_values: dict[str, str | None]


def combine(lake: Lake, name: str, *, whole: bool = True) -> bool:
    """Make one row of parts of the same key; False when there was nothing to do, or others did it.

    With `whole` all of them, so that each key has one row; else only those in small files.
    """
    from deltalake.exceptions import CommitFailedError

    from angarium.lake.sinks.delta import remove_files

    table = lake.need(name)
    chosen = _stored(table, TABLES[name])
    if not whole:
        chosen = _smallest(chosen)
    if lake.whole(table) or len(chosen) < (1 if whole else 2):
        return False
    made = list(_written(lake, name, chosen))
    try:
        _replace(table, TABLES[name], chosen, made, whole=whole)
    except CommitFailedError:
        # Somebody else has combined them meanwhile; appends do not count as such.
        remove_files(lake.path(name), made)
        return False
    return True


def _stored(table: DeltaTable, about: Table) -> list[_Stored]:
    import pyarrow as pa

    return [
        _Stored(
            row["path"], row["size_bytes"], row["num_records"],
            {column: row[f"partition.{column}"] for column in about.partition_by},
        )
        for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]  # fmt: skip


def _smallest(files: Sequence[_Stored]) -> list[_Stored]:
    chosen: list[_Stored] = []
    rows = 0
    for each in sorted(files, key=lambda file: file.rows):
        rows += each.rows
        if rows > ROWS_TIDIED_MAX:
            break
        chosen.append(each)
    return chosen


def _written(lake: Lake, name: str, files: Sequence[_Stored]) -> Iterator[DataFile]:
    """New files with what stands in these, parts of a key as one row."""
    from angarium.lake.sinks.parquet import write_files

    portions = -(-sum(each.rows for each in files) // ROWS_AT_ONCE)
    with (
        tempfile.TemporaryDirectory(prefix="angarium-lake-") as scratch,
        own_connection() as connection,
    ):
        connection.execute(f"set temp_directory = '{scratch}/spill'")
        # In a notebook it would draw over what is there.
        connection.execute("set enable_progress_bar = false")
        connection.register("stored", lake.dataset(name, [each.path for each in files]))
        for rows in _portions(connection, TABLES[name], portions, Path(scratch)):
            # Each portion has files of its own, so that none grows without bound.
            found = connection.sql(combined_sql(name, rows))
            batches = _typed(found.to_arrow_reader(RECORDS_PER_BATCH), TABLES[name])
            yield from write_files(lake.path(name), batches, TABLES[name].partition_by)


def _portions(
    connection: duckdb.DuckDBPyConnection, table: Table, count: int, scratch: Path
) -> Iterator[str]:
    """Relations that no key is in two of; several are divided on disk, so each row is read once."""
    if count <= 1:
        yield "stored"
        return
    key = ", ".join(f'"{name}"' for name in table.key)
    connection.execute(
        f"copy (select *, hash({key}) % {count} as portion from stored) to '{scratch}/portions' "
        "(format parquet, partition_by (portion), compression zstd)"
    )
    columns = ", ".join(f'"{name}"' for name in table.names)
    for number in range(count):
        folder = scratch / "portions" / f"portion={number}"
        if folder.exists():
            yield f"(select {columns} from read_parquet('{folder}/*.parquet'))"


def _typed(batches: pa.RecordBatchReader, table: Table) -> Iterator[pa.RecordBatch]:
    schema = table.arrow()
    for batch in batches:
        yield batch.cast(schema)


def _replace(
    table: DeltaTable,
    about: Table,
    old: Sequence[_Stored],
    new: Sequence[DataFile],
    *,
    whole: bool,
) -> None:
    from deltalake.transaction import RemoveAction

    now_ms = int(time.time() * 1000)
    removed = [
        RemoveAction(each.path, False, now_ms, each.size_bytes, dict(each.partition_values))
        for each in old
    ]
    # The version that this commit makes, if nobody adds anything meanwhile.
    version = table.version() + 1
    marks = {COMPACTION: version} | ({WHOLE: version} if whole else {})
    table.create_write_transaction(
        [*(each.action(news=False) for each in new), *removed],
        "append",
        table.schema(),
        list(about.partition_by) or None,
        commit_properties=commit_properties(marks),
    )
