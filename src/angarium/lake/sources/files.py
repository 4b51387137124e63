"""The journal straight into files: a task reads, decodes and writes Parquet by itself.

Where rows are only to be stored, Spark need not see them. It divides the work, repeats what
failed and says what is done; what passes through it are the names of files, which its driver
makes part of the tables. Rows that can't be read go to a table of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from angarium.lake.schemas import EVENTS, REJECTS, Table
from angarium.lake.sinks.delta import DataFile, unwritable
from angarium.lake.sinks.parquet import TableWriter

if TYPE_CHECKING:
    from pyspark.sql import Row

SCHEMA = (
    "name string, path string, size_bytes bigint, rows bigint, partition_values string, "
    "stats string"
)
DAY_MS = 86_400_000


def write_tables(batches: Iterable[pa.RecordBatch], lake: str) -> Iterator[pa.RecordBatch]:
    """Batches of the journal as files of `events` and `rejects` in a lake; a row for each file."""
    writers = {
        each.name: TableWriter(f"{lake}/{each.name}", each.partition_by)
        for each in (EVENTS, REJECTS)
    }
    try:
        for batch in batches:
            bad = batch.num_rows > 0 and batch.column("reject")[0].is_valid
            table = REJECTS if bad else EVENTS
            writers[table.name].write(rejects_of(batch) if bad else events_of(batch))
        files = [(name, each) for name, writer in writers.items() for each in writer.close()]
    except BaseException as error:
        for writer in writers.values():
            writer.discard()
        if isinstance(error, OSError):
            raise unwritable(lake, error) from error
        raise
    if files:
        yield _described(files)


def files_in(rows: Iterable[Row]) -> dict[str, list[DataFile]]:
    """What the driver gets from its tasks, by table."""
    found: dict[str, list[DataFile]] = {}
    for row in rows:
        values = json.loads(row.partition_values)
        made = DataFile(row.path, row.size_bytes, row.rows, values, row.stats)
        found.setdefault(row.name, []).append(made)
    return found


def events_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the journal in the columns of `events`."""
    days = pa.compute.divide(batch.column("at_ms"), DAY_MS).cast(pa.int32()).cast(pa.date32())
    given = {"entry_id": batch.column("id"), "date": days}
    return _shaped(EVENTS, batch, given)


def rejects_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    given = {"entry_id": batch.column("id"), "reason": batch.column("reject")}
    return _shaped(REJECTS, batch, given)


def _shaped(table: Table, batch: pa.RecordBatch, given: dict[str, pa.Array]) -> pa.RecordBatch:
    schema = table.arrow()
    columns = [
        (given[field.name] if field.name in given else batch.column(field.name)).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _described(files: list[tuple[str, DataFile]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "name": pa.array([name for name, _ in files], pa.string()),
            "path": pa.array([each.path for _, each in files], pa.string()),
            "size_bytes": pa.array([each.size_bytes for _, each in files], pa.int64()),
            "rows": pa.array([each.rows for _, each in files], pa.int64()),
            "partition_values": pa.array(
                [json.dumps(dict(each.partition_values)) for _, each in files], pa.string()
            ),
            "stats": pa.array([each.stats for _, each in files], pa.string()),
        }
    )
