"""The journal straight into files: a task reads, decodes and writes Parquet by itself.

Where rows are only to be stored, Spark need not see them. It divides the work, repeats what
failed and says what is done; what passes through it are the names of files, which its driver
makes part of the tables. Rows that can't be read go to a table of their own. A task that is asked
to also sums up its events, a bounded number at a time, into parts of `messages` and the statistics.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from angarium.lake.jobs import parts
from angarium.lake.jobs.events import SEQUENCE_BITS, position_of
from angarium.lake.schemas import EVENTS, REJECTS, TABLES, Table
from angarium.lake.sinks.delta import DataFile, unwritable
from angarium.lake.sinks.parquet import TableWriter, write_files

if TYPE_CHECKING:
    from pyspark.sql import Row

SCHEMA = (
    "name string, path string, size_bytes bigint, rows bigint, partition_values string, "
    "stats string, spans string"
)
DAY_MS = 86_400_000
# So many events are summed up at once: what a task holds in memory, whatever the batch has.
ROWS_SUMMED = 200_000
# Partition -> the first and the last entry, as `jobs.events.position_of` has them.
Spans = Mapping[int, tuple[int, int]]


@dataclass
class Written:
    """What the tasks of a batch have made: files by table, and the entries these are of."""

    files: dict[str, list[DataFile]] = field(default_factory=dict)
    spans: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)

    def add(self, name: str, spans: Spans) -> None:
        known = self.spans.setdefault(name, {})
        for partition, (first, last) in spans.items():
            low, high = known.get(partition, (first, last))
            known[partition] = min(low, first), max(high, last)


def write_tables(
    batches: Iterable[pa.RecordBatch], lake: str, *, sums: bool = False
) -> Iterator[pa.RecordBatch]:
    """Batches of the journal as files of the tables of a lake; a row for each file."""
    writers = {
        name: TableWriter(f"{lake}/{name}", TABLES[name].partition_by)
        for name in (EVENTS.name, REJECTS.name, *(parts.PARTS if sums else ()))
    }
    written = Written()
    try:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            if batch.num_rows == 0:
                continue
            bad = batch.column("reject")[0].is_valid
            table, rows = (REJECTS, rejects_of(batch)) if bad else (EVENTS, events_of(batch))
            writers[table.name].write(rows)
            written.add(table.name, _span(batch))
            if sums and not bad:
                waiting.append(rows)
                if sum(each.num_rows for each in waiting) >= ROWS_SUMMED:
                    _sum_up(waiting, writers)
        _sum_up(waiting, writers)
        written.files = {name: writer.close() for name, writer in writers.items()}
    except BaseException as error:
        for writer in writers.values():
            writer.discard()
        if isinstance(error, OSError):
            raise unwritable(lake, error) from error
        raise
    if any(written.files.values()):
        yield _described(written)


def write_table(
    batches: Iterable[pa.RecordBatch], lake: str, name: str
) -> Iterator[pa.RecordBatch]:
    """Rows of one table as its files; a row for each."""
    written = Written()

    def seen() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and "entry_id" in batch.schema.names:
                written.add(name, spans_of(batch))
            yield batch

    table = TABLES[name]
    written.files[name] = write_files(f"{lake}/{name}", seen(), table.partition_by)
    if written.files[name]:
        yield _described(written)


def written_by(rows: Iterable[Row]) -> Written:
    """What the driver gets from its tasks."""
    found = Written()
    for row in rows:
        values = json.loads(row.partition_values)
        made = DataFile(row.path, row.size_bytes, row.rows, values, row.stats)
        found.files.setdefault(row.name, []).append(made)
        spans = {int(partition): span for partition, span in json.loads(row.spans).items()}
        found.add(row.name, spans)
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


def _span(batch: pa.RecordBatch) -> Spans:
    """A batch is of one stream, and in its order."""
    ids: Any = batch.column("id")
    first, last = (position_of(ids[place].as_py()) for place in (0, len(ids) - 1))
    return {batch.column("partition")[0].as_py(): (first, last)}


def spans_of(batch: pa.RecordBatch) -> Spans:
    """Of rows in any order: the first and last entry of each partition."""
    ids = pa.compute.split_pattern(batch.column("entry_id"), "-").flatten().cast(pa.int64())
    numbers = ids.to_numpy().reshape(-1, 2)
    positions = (numbers[:, 0] << SEQUENCE_BITS) + numbers[:, 1]
    rows = pa.table({"partition": batch.column("partition"), "position": positions})
    found = rows.group_by("partition").aggregate([("position", "min"), ("position", "max")])
    return {
        row["partition"]: (row["position_min"], row["position_max"]) for row in found.to_pylist()
    }


def _sum_up(waiting: list[pa.RecordBatch], writers: Mapping[str, TableWriter]) -> None:
    if waiting:
        for name, rows in parts.summed(waiting):
            for batch in rows.to_batches():
                writers[name].write(batch)
        waiting.clear()


def _described(written: Written) -> pa.RecordBatch:
    files = [(name, each) for name, found in written.files.items() for each in found]
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
            "spans": pa.array(
                [json.dumps(written.spans.get(name, {})) for name, _ in files], pa.string()
            ),
        }
    )
