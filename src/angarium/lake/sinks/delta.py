"""Delta tables without a jar: Parquet files written anywhere, committed once by the driver.

Every write names who writes (`app_id`) and a number that only grows (`batch_id`). Both stand in
the table's log beside the files of the write, so that one that was made already is not made
again, however often and from wherever it is repeated. A table is a folder or the URL of an object
store. Nothing here knows Spark or Redis.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from angarium.lake.errors import TableUnwritable

Mode = Literal["append", "overwrite"]
Storage = Mapping[str, str]

# Whoever opens the table reads its log from the last checkpoint on, and writers open it for every
# commit: each entry behind the checkpoint costs them 0.6 ms, a checkpoint 50.
CONFIGURATION = {"delta.checkpointInterval": "10", "delta.logRetentionDuration": "interval 7 days"}
# Another writer of the same table (compaction, say) may win; ours is then put behind it.
COMMIT_RETRIES_MAX = 20
FILE_BYTES_AIM = 128 << 20
# Older files may still be read by somebody who opened the table before.
VACUUM_HOURS = 24


@dataclass(frozen=True)
class DataFile:
    """A Parquet file that stands in the table's folder already, and is not part of it yet."""

    path: str
    size_bytes: int
    rows: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = ""

    def action(self, *, news: bool = True) -> AddAction:
        """`news` is false for rows that the table has already, in other files."""
        stats = self.stats or json.dumps({"numRecords": self.rows})
        now_ms = int(time.time() * 1000)
        return AddAction(self.path, self.size_bytes, self.partition_values, now_ms, news, stats)


def open_table(table: str, storage: Storage | None = None) -> DeltaTable | None:
    """The table as it is now; None where there is none yet."""
    options = dict(storage) if storage else None
    if not DeltaTable.is_deltatable(table, storage_options=options):
        return None
    return DeltaTable(table, storage_options=options)


def committed_batch(table: str, app_id: str, storage: Storage | None = None) -> int:
    """The last batch of this writer that is in the table; -1 before the first."""
    found = open_table(table, storage)
    return _last(found, app_id) if found is not None else -1


def commit_files(
    table: str,
    schema: pa.Schema,
    files: Sequence[DataFile],
    app_id: str,
    batch_id: int,
    partition_by: Sequence[str] = (),
    mode: Mode = "append",
    *,
    storage: Storage | None = None,
) -> bool:
    """Make the files part of the table; False when this batch is in it already."""
    with _clear_errors(table):
        target = ensure_table(table, schema, partition_by, storage)
        if _last(target, app_id) >= batch_id:
            return False
        if not files and mode == "append":
            return True
        target.create_write_transaction(
            [each.action() for each in files],
            mode,
            target.schema(),
            list(partition_by) or None,
            commit_properties=_properties(app_id, batch_id),
        )
        return True


def merge_rows(
    table: str,
    rows: pa.Table,
    keys: Sequence[str],
    app_id: str,
    batch_id: int,
    partition_by: Sequence[str] = (),
    *,
    update: Mapping[str, str] | None = None,
    storage: Storage | None = None,
) -> bool:
    """Insert rows, or update those with the same `keys`; False when this batch is in already.

    `update` says how a column comes out of the old row `t` and the new one `s`, such as
    `{"attempts": "t.attempts + s.attempts"}`; without it the new row replaces the old one.
    """
    with _clear_errors(table):
        target = ensure_table(table, rows.schema, partition_by, storage)
        if _last(target, app_id) >= batch_id:
            return False
        if rows.num_rows == 0:
            return True
        match = " and ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys)
        merge = target.merge(rows, match, "s", "t", commit_properties=_properties(app_id, batch_id))
        if update is None:
            merge = merge.when_matched_update_all()
        else:
            merge = merge.when_matched_update({_quoted(k): v for k, v in update.items()})
        merge.when_not_matched_insert_all().execute()
        return True


def ensure_table(
    table: str, schema: pa.Schema, partition_by: Sequence[str] = (), storage: Storage | None = None
) -> DeltaTable:
    """The table, made if there is none, with columns added that it lacks."""
    found = open_table(table, storage)
    if found is None:
        DeltaTable.create(
            table,
            Schema.from_arrow(_nullable(schema)),
            mode="ignore",  # another writer may have been faster
            partition_by=list(partition_by) or None,
            configuration=CONFIGURATION,
            storage_options=dict(storage) if storage else None,
        )
        found = DeltaTable(table, storage_options=dict(storage) if storage else None)
    known = {each.name for each in found.schema().fields}
    fresh = [
        Field(each.name, each.type, nullable=True)
        for each in Schema.from_arrow(_nullable(schema)).fields
        if each.name not in known
    ]
    if fresh:
        found.alter.add_columns(fresh)
    return found


@dataclass(frozen=True)
class Compacted:
    files_before: int
    files_after: int


def compact(
    table: str, *, storage: Storage | None = None, file_bytes: int = FILE_BYTES_AIM
) -> Compacted:
    """Put small files together. Readers and writers go on meanwhile."""
    found = open_table(table, storage)
    if found is None:
        return Compacted(0, 0)
    with _clear_errors(table):
        # On one core: batches go on beside it.
        figures = found.optimize.compact(target_size=file_bytes, max_concurrent_tasks=1)
        return Compacted(int(figures["numFilesRemoved"]), int(figures["numFilesAdded"]))


def vacuum(
    table: str, *, hours: int = VACUUM_HOURS, storage: Storage | None = None
) -> Sequence[str]:
    """Delete files that are no part of the table: replaced ones, and those of failed tasks."""
    found = open_table(table, storage)
    if found is None:
        return []
    with _clear_errors(table):
        return list(found.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True))


def _last(table: DeltaTable, app_id: str) -> int:
    version = table.transaction_version(app_id)
    return -1 if version is None else version


def _properties(app_id: str, batch_id: int) -> CommitProperties:
    return CommitProperties(
        app_transactions=[Transaction(app_id, batch_id)], max_commit_retries=COMMIT_RETRIES_MAX
    )


def _quoted(name: str) -> str:
    return f'"{name}"'


def _nullable(schema: pa.Schema) -> pa.Schema:
    """A column that may be added later can't be required."""
    return pa.schema([pa.field(each.name, each.type, nullable=True) for each in schema])


@contextmanager
def _clear_errors(table: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError:
        raise
    except (OSError, DeltaError) as error:
        raise unwritable(table, error) from error


def unwritable(table: str, error: Exception) -> Exception:
    """An error of the disk in words that say what to do; any other as it is."""
    text = str(error)
    known: tuple[tuple[str, str], ...] = (
        ("No space left", "its disk is full; free some space and start again"),
        ("Disk quota", "its disk quota is used up; free some space and start again"),
        ("Read-only file system", "it is read-only; make it writable and start again"),
        ("Permission denied", "it may not be written by this user; change that and start again"),
    )
    for mark, what in known:
        if mark.lower() in text.lower():
            return TableUnwritable(f"{table}: {what} (nothing of this batch is in the table)")
    return error


def remove_files(table: str, files: Sequence[DataFile], storage: Storage | None = None) -> None:
    """Files that nobody will commit; what can't be removed is left to vacuum."""
    from angarium.lake.sinks.parquet import filesystem_of

    filesystem, root = filesystem_of(table, storage)
    for each in files:
        with suppress(OSError):
            filesystem.delete_file(f"{root}/{each.path}")


def files_of(table: str, storage: Storage | None = None) -> Sequence[Any]:
    """Addresses of the table's files now, for readers that know Parquet but not Delta."""
    found = open_table(table, storage)
    return [] if found is None else found.file_uris()
