"""The lake's tables: Spark writes and reads their files, one commit makes a write visible.

A write names its writer and a number that only grows; both stand in the table's log beside the
files, so a batch that is repeated adds nothing, whatever became of Spark's checkpoint. A write that
fails leaves files that are no part of the table. Each table says in its properties which layout it
has and for which keyspace it was made; a table of another is refused before anything is read.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from angarium.lake.errors import LakeEmpty as LakeEmpty
from angarium.lake.errors import LakeMismatch as LakeMismatch
from angarium.lake.errors import PackagesMissing, StoreUnavailable, TableConflict
from angarium.runtime.settings import CommonSettings

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from angarium.lake.delta_log import DataFile, DeltaLog
    from angarium.lake.maintenance import Compacted

Mode = Literal["append", "overwrite"]
Partitions = Mapping[str, Collection[object]]

# Raised when a table changes in a way that old readers, or old data, can't stand.
LAYOUT_VERSION = 2
PROPERTY = "angarium.lake"
CHECKPOINTS = "_checkpoints"
IDENTITY = "_lake"
# Variables of the environment that say how a store is reached.
STORES = ("AWS_", "AZURE_", "GOOGLE_")
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


def check_packages() -> None:
    """Raise unless the packages of the extra `lake` are there; none of them is imported."""
    for name in ("pyspark", "pyarrow", "deltalake", "duckdb"):
        if importlib.util.find_spec(name) is None:
            problem = f"the package {name} is not installed, and a lake needs it"
            raise PackagesMissing("lake", problem, "run: pip install 'angarium[lake]'")


@dataclass(frozen=True)
class Lake:
    """Where a keyspace's tables are. Making one touches nothing.

    `storage` are options of the object store, such as its address and keys. Spark's tasks get them
    with their work, so hosts of executors need none of their own.
    """

    url: str
    prefix: str = ""
    partitions: int = 1
    storage: Mapping[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: CommonSettings) -> Lake:
        url = settings.lake_url
        if "://" not in url:
            url = str(Path(url).absolute())
        storage = None
        if "://" in url and not url.startswith("file://"):
            storage = {name: os.environ[name] for name in os.environ if name.startswith(STORES)}
        return cls(url.rstrip("/"), settings.prefix, settings.partitions, storage)

    @property
    def local(self) -> bool:
        """Whether it is a folder."""
        return "://" not in self.url or self.url.startswith("file://")

    def path(self, name: str) -> str:
        return f"{self.url}/{name}"

    def checkpoint(self, query: str) -> str:
        return f"{self.url}/{CHECKPOINTS}/{query}"

    def identity(self) -> str:
        """The lake's id; the first who asks makes it, and all others get the same one."""
        column = {"name": "nothing", "type": "string", "nullable": True, "metadata": {}}
        schema = json.dumps({"type": "struct", "fields": [column]})
        table = self.log(IDENTITY).ensure(schema, (), self.properties())
        self.check_table(IDENTITY, table)
        return str(table.metadata().id)

    def log(self, name: str) -> DeltaLog:
        check_packages()
        from angarium.lake.delta_log import DeltaLog

        return DeltaLog(self.path(name), self.storage)

    def existing(self) -> list[str]:
        """Names of the tables that are there."""
        self.open(IDENTITY)  # refuses a folder of another layout or keyspace
        import pyarrow.fs as pafs

        from angarium.lake.delta_log import filesystem_of

        filesystem, root = filesystem_of(self.url, self.storage)
        try:
            found = filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        except OSError as error:
            raise StoreUnavailable.of(self.url, error) from error
        names = sorted(each.base_name for each in found if each.type == pafs.FileType.Directory)
        return [each for each in names if NAME.fullmatch(each) and self.open(each) is not None]

    def open(self, name: str) -> DeltaTable | None:
        """The table's log as it is now; None where the table was never written."""
        log = self.log(name)
        try:
            found = log.open()
        except OSError as error:
            if self.local:
                raise
            raise StoreUnavailable.of(self.url, error) from error
        if found is not None:
            self.check_table(name, found)
        return found

    def need(self, name: str) -> DeltaTable:
        found = self.open(name)
        if found is None:
            self.open(IDENTITY)
            raise LakeEmpty(
                f"there is no table '{name}' in {self.url} yet; run `angarium lake run --once` "
                "once something has happened in the modules, or set ANGARIUM_LAKE_URL"
            )
        return found

    def check(self) -> None:
        """Raise unless the folder is empty, missing, or this keyspace's lake."""
        self.existing()

    def files(self, name: str, matching: str | None = None) -> list[str]:
        """Addresses of the table's files now; of those that may have rows `matching` (SQL)."""
        found = self.open(name)
        return [] if found is None else list(found.file_uris(file_pruning_predicate=matching))

    def rows(self, name: str) -> int:
        """How many are stored, from the table's log: no file is read."""
        found = self.open(name)
        return 0 if found is None else int(found.count())

    def properties(self) -> dict[str, str]:
        return {PROPERTY: self._property()}

    def _property(self) -> str:
        return json.dumps(
            {"layout": LAYOUT_VERSION, "partitions": self.partitions, "prefix": self.prefix}
        )

    def check_table(self, name: str, table: DeltaTable) -> None:
        text = table.metadata().configuration.get(PROPERTY)
        if text is None:
            raise self._mismatch(f"'{name}' there was not made by Angarium")
        features = table.protocol().reader_features or table.protocol().min_reader_version > 1
        if features:
            raise self._mismatch(
                f"somebody has given '{name}' features of Delta that a Parquet reader does not "
                f"know: {features}"
            )
        made = json.loads(text)
        if made.get("layout") != LAYOUT_VERSION:
            raise self._mismatch(
                f"'{name}' has layout {made.get('layout')}, this version writes {LAYOUT_VERSION}"
            )
        if made.get("prefix") != self.prefix:
            raise self._mismatch(f"'{name}' belongs to the keyspace with prefix {made['prefix']!r}")
        if made.get("partitions") != self.partitions:
            raise self._mismatch(
                f"'{name}' was made for {made.get('partitions')} partitions, "
                f"the settings say {self.partitions}"
            )

    def _mismatch(self, problem: str) -> LakeMismatch:
        return LakeMismatch(
            "ANGARIUM_LAKE_URL", f"{self.url}: {problem}", "choose another folder for this lake"
        )


@dataclass(frozen=True)
class CommitResult:
    """`added` is false where the batch was in the table already, or had no rows to add."""

    added: bool
    version: int
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    files_removed: int = 0


class LakeTable:
    """One table. May be used by several threads and processes at once; commits exclude each other.

    `statistics` names the columns whose range stands in the log for each file, so that a look-up
    skips files; all plain columns unless given.
    """

    def __init__(
        self,
        lake: Lake,
        name: str,
        schema: StructType,
        partition_by: tuple[str, ...] = (),
        *,
        statistics: Sequence[str] | None = None,
    ) -> None:
        self.lake = lake
        self.name = name
        self.schema = nullable(schema)
        self.partition_by = partition_by
        self.statistics = statistics
        self.path = lake.path(name)
        self.log = lake.log(name)
        self._checked = False

    # Write

    def write(
        self,
        frame: DataFrame,
        *,
        writer: str,
        batch: int,
        mode: Mode = "append",
        marks: Mapping[str, int] | None = None,
    ) -> CommitResult:
        """Add the frame's rows, or have them instead of all others; once for each batch.

        `marks` are further names and numbers for the same commit; `last_batch` reads them, too.
        """
        if self.has(writer, batch):
            return CommitResult(False, self.version())
        old = self.log.files() if mode == "overwrite" else []
        files = self.write_files(frame)
        if not files and not old and not marks:
            return CommitResult(False, self.version())
        return self._commit(files, old, {**(marks or {}), writer: batch}, once=writer)

    def replace(
        self,
        frame: DataFrame,
        *,
        writer: str,
        batch: int,
        where: Partitions,
        read_version: int | None = None,
        marks: Mapping[str, int] | None = None,
    ) -> CommitResult:
        """Have the frame's rows instead of those with the named partition values, in one commit.

        Raises TableConflict when one of those partitions was written meanwhile: since
        `read_version` (the version that the frame was made from), or since this call began.
        """
        if self.has(writer, batch):
            return CommitResult(False, self.version())
        old = self.log.files(where, read_version)
        files = self.write_files(frame)
        if not files and not old and not marks:
            return CommitResult(False, self.version())
        now = {each.path for each in self.log.files(where)}
        if now != {each.path for each in old}:
            self.log.discard(files)
            raise TableConflict(
                f"{self.path}: another writer changed the partitions that this write replaces; "
                "nothing of it is in the table"
            )
        return self._commit(files, old, {**(marks or {}), writer: batch}, once=writer)

    def commit_files(
        self,
        files: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        *,
        batches: Mapping[str, int] | None = None,
        once: str | None = None,
        news: bool = True,
    ) -> CommitResult:
        """Make files that stand in the table's folder part of it, and let others go.

        Where `once` is named, nothing happens if its batch is in the table already.
        """
        return self._commit(files, removed, batches or {}, once=once, news=news)

    def has(self, writer: str, batch: int) -> bool:
        """Whether the batch is in the table (made if there is none), as this process knows it."""
        table = self.log.known() if self._checked else None
        if table is None:
            properties = self.lake.properties()
            table = self.log.ensure(self.schema.json(), self.partition_by, properties)
            self.lake.check_table(self.name, table)
            self._checked = True
        last = table.transaction_version(writer)
        return last is not None and last >= batch

    def write_files(self, frame: DataFrame) -> list[DataFile]:
        from angarium.lake.parquet import write_files

        rows = frame.select(*self.schema.names)
        return write_files(
            rows, self.path, self.partition_by, storage=self.lake.storage,
            statistics=self.statistics,
        )  # fmt: skip

    def _commit(
        self,
        files: Sequence[DataFile],
        removed: Sequence[DataFile],
        batches: Mapping[str, int],
        *,
        once: str | None = None,
        news: bool = True,
    ) -> CommitResult:
        try:
            version = self.log.commit(files, removed, batches, once=once, news=news)
        except TableConflict:
            self.log.discard(files)
            last = None if once is None else self.last_batch(once)
            if once is None or last is None or last < batches[once]:
                raise
            version = None  # somebody else wrote the same batch while we did, and that is all
        if version is None:
            self.log.discard(files)
            return CommitResult(False, self.version())
        return CommitResult(
            True,
            version,
            len(files),
            sum(each.rows for each in files),
            sum(each.size_bytes for each in files),
            len(removed),
        )

    # Read

    def read(
        self, spark: SparkSession, version: int | None = None, *, matching: str | None = None
    ) -> DataFrame:
        """The table as it is now, or was at `version`; no rows where it was never written.

        Spark prunes columns and partitions. `matching` is a condition in SQL: files are left out
        whose statistics say that no row fulfils it, and the rest is filtered.
        """
        table = self.log.open(version)
        if table is None:
            return spark.createDataFrame([], self.schema)
        self.lake.check_table(self.name, table)
        found = self.frame(spark, self.log.files(version=version, matching=matching))
        return found if matching is None else found.where(matching)

    def frame(
        self, spark: SparkSession, files: Sequence[DataFile], *, place: bool = False
    ) -> DataFrame:
        """The rows of some of the table's files; `place` is one more column, the file's address."""
        from angarium.lake.parquet import read_files

        return read_files(
            spark, self.path, files, self.schema, self.partition_by, storage=self.lake.storage,
            place=place,
        )  # fmt: skip

    def files(
        self,
        where: Partitions | None = None,
        *,
        matching: str | None = None,
        batches: tuple[int, int] | None = None,
    ) -> list[DataFile]:
        """The files of the table's newest version. Of them only those of the partition values
        `where`, those that may have rows `matching` (SQL), those with rows of `batches` (first and
        last number).
        """
        return self.log.files(where, matching=matching, batches=batches)

    def version(self) -> int:
        """The newest version; -1 before the table is made."""
        table = self.log.open()
        return -1 if table is None else table.version()

    def last_batch(self, writer: str) -> int | None:
        return self.log.last_batch(writer)

    # Keep

    def compact(self, spark: SparkSession, *, sort_by: Sequence[str] = ()) -> Compacted:
        from angarium.lake import maintenance

        return maintenance.compact(self, spark, sort_by=sort_by)

    def retain(self, days: float, *, column: str = "date") -> int:
        from angarium.lake import maintenance

        return maintenance.retain(self, days, column=column)

    def vacuum(self, hours: int | None = None) -> int:
        """Delete files that are no part of the table, after so long or the table's own time."""
        return self.log.vacuum(hours)


def write_files_of(frame: DataFrame, tables: Mapping[str, LakeTable]) -> dict[str, list[DataFile]]:
    """Rows of several tables as files of theirs; the column `table` says whose each row is.

    In a folder it is one job of Spark. In an object store, where a file can't be moved, each table
    is one.
    """
    from angarium.lake.parquet import write_apart

    if all(each.lake.local for each in tables.values()):
        targets = {
            name: (each.path, each.partition_by, each.schema.names) for name, each in tables.items()
        }
        return write_apart(frame, targets)
    rows = frame.cache()
    try:
        return {
            name: each.write_files(rows.where(rows["table"] == name))
            for name, each in tables.items()
        }
    finally:
        rows.unpersist()


def nullable(schema: StructType) -> StructType:
    """A column that may be added later, or left out by another version, can't be required."""
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(
                each.name,
                nullable(each.dataType) if isinstance(each.dataType, StructType) else each.dataType,
            )
            for each in schema.fields
        ]
    )
