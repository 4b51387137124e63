"""The log of a Delta table: which files are the table, who wrote which batch, what may be deleted.

Files are written elsewhere (`parquet.py`) and are no part of the table until `commit` names them;
files that a commit removes stay readable until `vacuum`. A commit carries the writer's name and the
number of its batch, so two writers of one batch can't both win. The handle is kept open and brought
up to date, so a commit reads only what is new in the log. Nothing here knows Spark or Redis.
"""

from __future__ import annotations

import datetime
import json
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

from angarium.lake.errors import TableConflict, TableUnwritable

Storage = Mapping[str, str]

# In the log, who removes files: two that do at once can't both win.
REMOVER = "remover"
# Another writer of the same table (compaction, say) may win; ours is then put behind it.
COMMIT_RETRIES_MAX = 20
VACUUM_EVERY_S = 600
_CHANGED = (
    "another writer changed the table at the same time; nothing of this write is in the table"
)
# A reader that opened the table before a file was removed may go on for an hour. Such files stand
# in each checkpoint meanwhile, and each commit lists the log, so longer times cost every writer.
REMOVED = "delta.deletedFileRetentionDuration"
LOG = "delta.logRetentionDuration"
CONFIGURATION = {
    "delta.checkpointInterval": "50",
    LOG: "interval 15 minutes",
    REMOVED: "interval 60 minutes",
    # Left to `maintain`: after each checkpoint it would list the whole log once more.
    "delta.enableExpiredLogCleanup": "false",
}


@dataclass(frozen=True)
class DataFile:
    """A Parquet file in the table's folder; `path` as the store has it, below the table's."""

    path: str
    size_bytes: int
    rows: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = ""
    # The least and the greatest number of a batch in it, where its rows have one.
    batches: tuple[int, int] | None = None

    def added(self, now_ms: int, *, news: bool) -> AddAction:
        stats = self.stats or json.dumps({"numRecords": self.rows})
        values = dict(self.partition_values)
        return AddAction(self.path, self.size_bytes, values, now_ms, news, stats)

    def removed(self, now_ms: int, *, news: bool) -> RemoveAction:
        values = dict(self.partition_values)
        return RemoveAction(self.path, news, now_ms, self.size_bytes, values)


class DeltaLog:
    """One table's log. May be used by several threads; each call sees the table as it is now."""

    def __init__(self, path: str, storage: Storage | None = None) -> None:
        self.path = path
        self.storage = dict(storage) if storage else None
        self._handle: DeltaTable | None = None
        self._lock = threading.RLock()
        self._vacuumed = float("-inf")

    def open(self, version: int | None = None) -> DeltaTable | None:
        """The table as it is now, or as it was; None where there is none yet."""
        if version is not None:
            return DeltaTable(self.path, version=version, storage_options=self.storage)
        with self._lock:
            if self._handle is not None and self._stands(self._handle):
                try:
                    self._handle.update_incremental()
                    return self._handle
                except DeltaError:
                    pass  # the log was cut behind our version: begin at its last checkpoint
            self._handle = None
            if DeltaTable.is_deltatable(self.path, storage_options=self.storage):
                self._handle = DeltaTable(self.path, storage_options=self.storage)
            return self._handle

    def _stands(self, handle: DeltaTable) -> bool:
        """Whether a folder still has our version: it may have been removed and made anew."""
        if not is_local(self.path):
            return True
        log = Path(self.path.removeprefix("file://")) / "_delta_log"
        return (log / f"{handle.version():020}.json").exists()

    def ensure(
        self, schema: str, partition_by: Sequence[str], configuration: Mapping[str, str]
    ) -> DeltaTable:
        """The table, made if there is none, with the columns of `schema` (JSON) that it lacks."""
        wanted = Schema.from_json(schema)
        with self._lock, clear_errors(self.path):
            table = self.open()
            if table is None:
                DeltaTable.create(
                    self.path,
                    wanted,
                    mode="ignore",  # another process may have been faster
                    partition_by=list(partition_by) or None,
                    configuration={**CONFIGURATION, **configuration},
                    storage_options=self.storage,
                    raise_if_key_not_exists=False,
                )
                table = self.open()
                assert table is not None
            known = {each.name for each in table.schema().fields}
            fresh = [
                Field(each.name, each.type, nullable=True)
                for each in wanted.fields
                if each.name not in known
            ]
            if fresh:
                table.alter.add_columns(fresh)
            return table

    def known(self) -> DeltaTable | None:
        """The table as this process saw it last; for a writer, whose commit finds what is newer.

        Only while our version is still in the log: behind a log that was cut, a commit could take
        a number that was given already.
        """
        with self._lock:
            if self._handle is not None and is_local(self.path) and self._stands(self._handle):
                return self._handle
            return self.open()

    def last_batch(self, writer: str) -> int | None:
        table = self.open()
        return None if table is None else table.transaction_version(writer)

    def files(
        self,
        where: Mapping[str, Collection[object]] | None = None,
        version: int | None = None,
        *,
        matching: str | None = None,
        batches: tuple[int, int] | None = None,
    ) -> list[DataFile]:
        """Files of the named partition values; that may have rows `matching` a condition; that may
        have rows of `batches`, from the first to the last.
        """
        with self._lock:
            table = self.open(version)
            if table is None:
                return []
            return files_in(table, where, matching=matching, batches=batches)

    def commit(
        self,
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        batches: Mapping[str, int] | None = None,
        *,
        once: str | None = None,
        news: bool = True,
    ) -> int | None:
        """All of it or nothing; the table's version then, None where batch `once` is in already.

        `news` is false where the same rows are put into other files. Raises TableConflict when
        another commit has written one of `batches` or removed one of `removed` meanwhile.
        """
        batches = batches or {}
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [e.added(now_ms, news=news) for e in added]
        actions += [each.removed(now_ms, news=news) for each in removed]
        with self._lock, clear_errors(self.path):
            # As it was when the caller looked: what came since is judged by the commit itself, but
            # for files that were moved without a change of rows.
            table = self.open() if removed else self.known()
            assert table is not None, "a commit needs a table that was made"
            if once is not None and _last(table, once) >= batches[once]:
                return None
            if removed and not {e.path for e in removed} <= {e.path for e in files_in(table)}:
                raise TableConflict(f"{self.path}: {_CHANGED} (a file was removed already)")
            if removed:
                batches = {**batches, REMOVER: table.version() + 1}
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                table.metadata().partition_columns or None,
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(*each) for each in batches.items()],
                    max_commit_retries=COMMIT_RETRIES_MAX,
                ),
            )
            table.update_incremental()
            return table.version()

    def checkpoint(self) -> None:
        table = self.open()
        if table is not None and table.version() > 0:
            table.create_checkpoint()

    def cleanup(self) -> None:
        """Delete log entries that are older than the table's log retention."""
        table = self.open()
        if table is not None:
            table.cleanup_metadata()

    def forget(self) -> int:
        """Take the ranges of values out of all older log entries: removed rows may be named there.

        Entries stay where they are, so that a writer that has not seen the newest finds them.
        """
        table = self.open()
        if table is None or table.version() == 0:
            return 0
        table.create_checkpoint()
        filesystem, root = filesystem_of(self.path, self.storage)
        newest, count = f"{table.version():020}", 0
        log = f"{root}/_delta_log" if root else "_delta_log"
        for each in filesystem.get_file_info(pafs.FileSelector(log)):
            name = each.base_name
            if not name[:20].isdecimal() or name[:20] >= newest:
                continue
            if name.endswith(".json"):
                with filesystem.open_input_file(each.path) as file:
                    text = without_ranges(file.read().decode())
                # Buffered, for the store takes bytes and not Arrow's own buffers.
                with filesystem.open_output_stream(f"{each.path}.new", buffer_size=65536) as file:
                    file.write(text.encode())
                filesystem.move(f"{each.path}.new", each.path)  # whole or not at all
            else:
                filesystem.delete_file(each.path)
            count += 1
        return count

    def vacuum_is_due(self) -> bool:
        """It looks at every file of the folder: not more often than this."""
        return time.monotonic() >= self._vacuumed + VACUUM_EVERY_S

    def vacuum(self, hours: int | None = None) -> int:
        """Delete files that are no part of the table: replaced ones, and those of failed writes."""
        table = self.open()
        self._vacuumed = time.monotonic()
        if table is None:
            return 0
        with clear_errors(self.path):
            gone = table.vacuum(
                hours,
                dry_run=False,
                enforce_retention_duration=False,
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
                full=True,
            )
        if is_local(self.path):
            age_s = hours * 3600 if hours is not None else seconds_in(table, REMOVED)
            remove_leftovers(Path(self.path.removeprefix("file://")), time.time() - age_s)
        return len(gone)

    def discard(self, files: Sequence[DataFile]) -> None:
        """Delete files that nobody will commit; what can't be deleted is left to `vacuum`."""
        filesystem, root = filesystem_of(self.path, self.storage)
        for each in files:
            with suppress(OSError):
                filesystem.delete_file(f"{root}/{each.path}" if root else each.path)


def without_ranges(entry: str) -> str:
    """A log entry whose files have their row counts and nothing else of what is in them."""
    lines = []
    for line in entry.splitlines():
        action = json.loads(line)
        if action.get("add", {}).get("stats"):
            rows = json.loads(action["add"]["stats"]).get("numRecords", 0)
            action["add"]["stats"] = json.dumps({"numRecords": rows})
        lines.append(json.dumps(action))
    return "\n".join(lines) + "\n"


def _last(table: DeltaTable, writer: str) -> int:
    found = table.transaction_version(writer)
    return -1 if found is None else found


def files_in(
    table: DeltaTable,
    where: Mapping[str, Collection[object]] | None = None,
    *,
    matching: str | None = None,
    batches: tuple[int, int] | None = None,
) -> list[DataFile]:
    names = table.metadata().partition_columns
    chosen = {name: {text_of(value) for value in values} for name, values in (where or {}).items()}
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = ["path", "size_bytes", "num_records", *(f"partition.{name}" for name in names)]
    if {"min.batch", "max.batch"} <= set(actions.column_names):
        columns += ["min.batch", "max.batch"]
        if batches is not None:
            apart = pc.or_(
                pc.greater(actions["min.batch"], batches[1]),
                pc.less(actions["max.batch"], batches[0]),
            )
            actions = actions.filter(pc.invert(pc.fill_null(apart, False)))
    if actions.num_rows == 0:
        return []
    found: list[DataFile] = []
    prefix = f"{table.table_uri.removeprefix('file://').rstrip('/')}/"
    left = None if matching is None else set(table.file_uris(file_pruning_predicate=matching))
    for row in actions.select(columns).to_pylist():
        values = {name: text_of(row[f"partition.{name}"]) for name in names}
        path = unquote(row["path"])
        if left is not None and f"{prefix}{path}" not in left:
            continue
        if all(values[name] in wanted for name, wanted in chosen.items()):
            low, high = row.get("min.batch"), row.get("max.batch")
            span = None if low is None or high is None else (low, high)
            size, rows = row["size_bytes"], row["num_records"] or 0
            found.append(DataFile(path, size, rows, values, batches=span))
    return found


def seconds_in(table: DeltaTable, name: str) -> float:
    """A time in the table's properties, as Delta writes it: `interval 60 minutes`."""
    _, count, unit = table.metadata().configuration[name].split()
    return float(count) * {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}[unit.rstrip("s")]


def is_local(path: str) -> bool:
    return "://" not in path or path.startswith("file://")


def text_of(value: Any) -> str | None:
    """A partition value as Delta writes it; an empty one is none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return None if value is None or value == "" else str(value)


def filesystem_of(path: str, storage: Storage | None) -> tuple[pafs.FileSystem, str]:
    """Where the table's files are, and the table's place there."""
    if is_local(path):
        return pafs.LocalFileSystem(), str(Path(path.removeprefix("file://")).absolute())
    # The same store, with the same options, through which the log is written.
    from deltalake.fs import DeltaStorageHandler

    return pafs.PyFileSystem(DeltaStorageHandler(path, dict(storage) if storage else None)), ""


def remove_leftovers(root: Path, before_s: float) -> None:
    """Delete what vacuum leaves in folders of writes: Spark's own scratch files, empty folders."""
    for write in root.glob("w=*"):
        if write.stat().st_mtime >= before_s:
            continue
        for folder, _, names in os.walk(write, topdown=False):
            scratch = "/_temporary" in folder
            for name in names:
                if scratch or name.startswith((".", "_")):
                    Path(folder, name).unlink(missing_ok=True)
            with suppress(OSError):  # what the table has, or a later vacuum will take, is in it
                Path(folder).rmdir()


@contextmanager
def clear_errors(path: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        reason = str(error).splitlines()[0]
        raise TableConflict(f"{path}: {_CHANGED} ({reason})") from error
    except (OSError, DeltaError) as error:
        raise unwritable(path, error) from error


def unwritable(path: str, error: Exception) -> Exception:
    """An error of the disk in words that say what to do; any other as it is."""
    known: tuple[tuple[str, str], ...] = (
        ("No space left", "its disk is full; free some space and start again"),
        ("Disk quota", "its disk quota is used up; free some space and start again"),
        ("Read-only file system", "it is read-only; make it writable and start again"),
        ("Permission denied", "it may not be written by this user; change that and start again"),
    )
    for mark, what in known:
        if mark.lower() in str(error).lower():
            return TableUnwritable(f"{path}: {what} (nothing of this batch is in the table)")
    return error
