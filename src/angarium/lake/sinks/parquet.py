"""Parquet files of a Delta table, written by an executor; the driver makes them part of it.

A file stands under the folder of its partition values, without those columns, as Delta wants it.
Until the driver's commit nobody reads it, so a task that dies leaves only files that vacuum takes
away. Memory is bounded by the rows of one row group for each file that is open.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from angarium.lake.sinks.delta import DataFile, unwritable

# One file each; more of them are closed and begun anew, so that a column with a thousand values
# costs files and not memory.
OPEN_FILES_MAX = 64
ROW_GROUP_ROWS = 262_144
# Long texts make the table's log large and help nobody to skip a file.
STATS_TEXT_MAX = 64
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def write_files(
    table: str,
    batches: Iterable[pa.RecordBatch],
    partition_by: Sequence[str] = (),
    storage: Mapping[str, str] | None = None,
) -> list[DataFile]:
    """All batches as files in the table's folder. Files of a call that fails are removed."""
    writer = TableWriter(table, partition_by, storage)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.close()
    except BaseException as error:
        writer.discard()
        if isinstance(error, OSError):
            raise unwritable(table, error) from error
        raise


class TableWriter:
    def __init__(
        self,
        table: str,
        partition_by: Sequence[str] = (),
        storage: Mapping[str, str] | None = None,
    ) -> None:
        self._filesystem, self._root = filesystem_of(table, storage)
        self._partition_by = tuple(partition_by)
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._done: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        rows = pa.Table.from_batches([batch])
        if not self._partition_by:
            self._file(()).write(rows)
            return
        for values, part in _split(rows, self._partition_by):
            self._file(values).write(part)

    def close(self) -> list[DataFile]:
        while self._open:
            self._end(next(iter(self._open)))
        return self._done

    def discard(self) -> None:
        for each in self._open.values():
            # It failed once already, and may fail in other ways now: only its file matters.
            with contextlib.suppress(Exception):
                each.close()
        paths = [each.path for each in self._done]
        paths += [each.path for each in self._open.values()]
        self._open.clear()
        for path in paths:
            with contextlib.suppress(OSError):
                self._filesystem.delete_file(f"{self._root}/{path}")

    def _file(self, values: tuple[str | None, ...]) -> _OpenFile:
        if values not in self._open:
            if len(self._open) >= OPEN_FILES_MAX:
                self._end(next(iter(self._open)))
            named = dict(zip(self._partition_by, values, strict=True))
            self._open[values] = _OpenFile(self._filesystem, self._root, named)
        return self._open[values]

    def _end(self, values: tuple[str | None, ...]) -> None:
        # It stays among the open ones until it is closed, so that `discard` finds it.
        self._done.append(self._open[values].close())
        del self._open[values]


class _OpenFile:
    """Rows are gathered into row groups of a fair size; small ones read slowly."""

    def __init__(
        self, filesystem: pafs.FileSystem, root: str, values: Mapping[str, str | None]
    ) -> None:
        folders = [f"{name}={_escaped(value)}" for name, value in values.items()]
        self._root = root
        self._filesystem = filesystem
        self._values = values
        self.path = "/".join([*folders, f"part-{uuid.uuid4()}.parquet"])
        self._waiting: list[pa.Table] = []
        self._rows_waiting = 0
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._rows_waiting += rows.num_rows
        if self._rows_waiting >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> DataFile:
        self._flush()
        assert self._writer is not None
        self._writer.close()
        size_bytes = self._sink.tell()
        self._sink.close()
        about = self._writer.writer.metadata
        return DataFile(
            self.path,
            size_bytes,
            about.num_rows,
            dict(self._values),
            statistics_of(about),
        )

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._rows_waiting = [], 0
        if self._writer is None:
            full = f"{self._root}/{self.path}"
            self._filesystem.create_dir(full.rpartition("/")[0], recursive=True)
            self._sink = self._filesystem.open_output_stream(full)
            self._writer = pq.ParquetWriter(
                self._sink,
                rows.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=True,
                coerce_timestamps="us",
            )
        self._writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)


def filesystem_of(table: str, storage: Mapping[str, str] | None) -> tuple[pafs.FileSystem, str]:
    """Where to write, and the table's place there."""
    if "://" not in table or table.startswith("file://"):
        return pafs.LocalFileSystem(), str(Path(table.removeprefix("file://")).absolute())
    # The same store, with the same options, through which the log is written.
    from deltalake.fs import DeltaStorageHandler

    handler = DeltaStorageHandler(table, dict(storage) if storage else None)
    return pafs.PyFileSystem(handler), ""


def _split(
    rows: pa.Table, names: Sequence[str]
) -> Iterable[tuple[tuple[str | None, ...], pa.Table]]:
    rest = rows.drop_columns(list(names))
    keys = rows.select(list(names))
    groups = keys.group_by(list(names)).aggregate([])
    if groups.num_rows == 1:
        yield tuple(_text(value) for value in groups.to_pylist()[0].values()), rest
        return
    for group in groups.to_pylist():
        masks = [
            pc.is_null(keys[name]) if value is None else pc.equal(keys[name], value)
            for name, value in group.items()
        ]
        mask = masks[0]
        for other in masks[1:]:
            mask = pc.and_kleene(mask, other)
        yield tuple(_text(group[name]) for name in names), rest.filter(mask)


def _text(value: object) -> str | None:
    """A partition value as Delta writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return str(value)


def _escaped(value: str | None) -> str:
    """In a folder's name; an empty value is no value to Delta."""
    return quote(value, safe=" ") if value else NO_PARTITION


def statistics_of(about: pq.FileMetaData) -> str:
    """What lets a reader skip the file: counts, and the range of each plain column."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in range(about.num_row_groups):
        for index in range(about.num_columns):
            column = about.row_group(group).column(index)
            name, found = column.path_in_schema, column.statistics
            if "." in name:
                continue
            if found is None or found.null_count is None:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if not found.has_min_max:
                if found.null_count < column.num_values:
                    unknown.add(name)
                continue
            least, most = _plain(found.min), _plain(found.max)
            if least is None or most is None:
                unknown.add(name)
                continue
            low[name] = min(low.get(name, least), least)
            high[name] = max(high.get(name, most), most)
    for name in unknown:
        low.pop(name, None)
        high.pop(name, None)
    return json.dumps(
        {"numRecords": about.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    )


def _plain(value: object) -> Any:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value if value == value else None
    if isinstance(value, str):
        return value if len(value) <= STATS_TEXT_MAX else None
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return None
