"""The lake's tables on disk or in an object store: opened, checked, written once.

Each table says in its own properties which layout it has and for which keyspace it was made; a lake
of another is refused before anything is read or written. A write names how far it brings each
stream it was made from; that stands in the same commit as the rows, so a row that is in the table
is never put there again, whatever became of Spark's checkpoint. Nothing here knows Spark or Redis.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from angarium.lake.errors import StoreUnavailable
from angarium.lake.schemas import LAYOUT_VERSION, TABLES, Table
from angarium.runtime.errors import NotFound, SettingInvalid
from angarium.runtime.settings import CommonSettings

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from deltalake import CommitProperties, DeltaTable

    from angarium.lake.sinks.delta import DataFile

PROPERTY = "angarium.lake"
CHECKPOINTS = "_checkpoints"
# Names in a table's log beside those of streams: who combines parts, and the version of the table
# at which each key had one row.
COMPACTION, WHOLE = "compaction", "whole"
# Stream and partition -> the last entry that is in the table, as `jobs.events.position_of` has it.
Positions = Mapping[str, int]


class LakeMismatch(SettingInvalid):
    """The folder holds something else than the lake of this keyspace."""

    code = "lake_mismatch"
    http_status = 503


class LakeEmpty(NotFound):
    """Nothing was ever stored here."""

    code = "lake_empty"


class PackagesMissing(SettingInvalid):
    """The extra `lake` is not installed."""

    code = "packages_missing"
    http_status = 503


def check_packages() -> None:
    """Raise unless the packages of the extra `lake` are there; none of them is imported."""
    for name in ("pyspark", "pyarrow", "deltalake", "duckdb"):
        if importlib.util.find_spec(name) is None:
            problem = f"the package {name} is not installed, and a lake needs it"
            raise PackagesMissing("lake", problem, "run: pip install 'angarium[lake]'")


@dataclass(frozen=True)
class Lake:
    """Where a keyspace's tables are. Making one touches nothing."""

    url: str
    prefix: str = ""
    partitions: int = 1

    @classmethod
    def of(cls, settings: CommonSettings) -> Lake:
        url = settings.lake_url
        if "://" not in url:
            url = str(Path(url).absolute())
        return cls(url.rstrip("/"), settings.prefix, settings.partitions)

    def path(self, name: str) -> str:
        return f"{self.url}/{name}"

    def checkpoint(self, query: str) -> str:
        return f"{self.url}/{CHECKPOINTS}/{query}"

    @property
    def local(self) -> bool:
        """Whether it is a folder, which Spark and DuckDB read by themselves."""
        return "://" not in self.url or self.url.startswith("file://")

    def dataset(self, name: str, paths: Sequence[str]) -> ds.Dataset:
        """Some files in the table's folder, whether they are part of it or not."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        from angarium.lake.sinks.parquet import filesystem_of

        filesystem, root = filesystem_of(self.path(name), None)
        schema = TABLES[name].arrow()
        folders = pa.schema([schema.field(column) for column in TABLES[name].partition_by])
        return ds.dataset(
            [f"{root}/{path}" for path in paths], schema=schema, filesystem=filesystem,
            format="parquet", partitioning=ds.partitioning(folders, flavor="hive"),
        )  # fmt: skip

    def read(self, name: str, paths: Sequence[str]) -> pa.Table:
        """Their rows."""
        return self.dataset(name, paths).to_table()

    def open(self, name: str) -> DeltaTable | None:
        """The table as it is now; None where it was never written."""
        check_packages()
        from angarium.lake.sinks.delta import open_table

        try:
            found = open_table(self.path(name))
        except OSError as error:
            if self.local:
                raise
            raise StoreUnavailable.of(self.url, error) from error
        if found is not None:
            self._check(name, found)
        return found

    def need(self, name: str) -> DeltaTable:
        found = self.open(name)
        if found is None:
            raise LakeEmpty(
                f"there is no table '{name}' in {self.url} yet; run `angarium lake run --once` "
                "once something has happened in the modules, or set ANGARIUM_LAKE_URL"
            )
        return found

    def ensure(self, name: str) -> DeltaTable:
        """The table, made if there is none, with columns that this version has added."""
        from deltalake import DeltaTable, Field, Schema

        from angarium.lake.sinks.delta import CONFIGURATION

        found = self.open(name)
        table = TABLES[name]
        schema = Schema.from_arrow(table.arrow())
        if found is None:
            DeltaTable.create(
                self.path(name),
                schema,
                mode="ignore",  # another process may have been faster
                partition_by=list(table.partition_by) or None,
                configuration={**CONFIGURATION, PROPERTY: self._property()},
                raise_if_key_not_exists=False,
            )
            found = self.need(name)
        known = {each.name for each in found.schema().fields}
        fresh = [Field(e.name, e.type, nullable=True) for e in schema.fields if e.name not in known]
        if fresh:
            found.alter.add_columns(fresh)
        return found

    def existing(self) -> list[str]:
        """The tables that are there, in the order of `schemas.TABLES`."""
        return [name for name in TABLES if self.open(name) is not None]

    def check(self) -> None:
        """Raise unless the folder is empty, missing, or this keyspace's lake."""
        for name in TABLES:
            self.open(name)

    def files(self, name: str) -> list[str]:
        """Addresses of the table's Parquet files now; none where there is no table."""
        found = self.open(name)
        return [] if found is None else list(found.file_uris())

    def rows(self, name: str) -> int:
        """How many are stored, parts one by one, from the table's log: no file is read."""
        found = self.open(name)
        return 0 if found is None else int(found.count())

    def whole(self, table: DeltaTable) -> bool:
        """Whether no key has more than one row, because nothing came since all was combined."""
        return _version(table, WHOLE) == table.version()

    def positions(self, name: str, stream: str) -> dict[int, int]:
        """Partition -> how far this table has come with the stream; -1 before its first entry."""
        return self.positions_in(self.open(name), stream)

    def positions_in(self, table: DeltaTable | None, stream: str) -> dict[int, int]:
        """The same of a table that was opened already."""
        return {
            partition: _version(table, f"{stream}:{partition}")
            for partition in range(self.partitions)
        }

    def add_files(
        self, name: str, table: DeltaTable, files: Sequence[DataFile], positions: Positions
    ) -> None:
        """Make files that stand in the table's folder part of it, as it was opened or later."""
        table.create_write_transaction(
            [each.action() for each in files],
            "append",
            table.schema(),
            list(TABLES[name].partition_by) or None,
            commit_properties=commit_properties(positions),
        )

    def append(self, name: str, rows: pa.Table, positions: Positions | None = None) -> None:
        from deltalake import write_deltalake

        if rows.num_rows == 0 and not positions:
            return
        table = self.ensure(name)
        write_deltalake(
            table,
            rows.cast(TABLES[name].arrow()),
            mode="append",
            commit_properties=commit_properties(positions or {}),
        )

    def insert(self, name: str, rows: pa.Table) -> int:
        """Add rows whose key the table does not have; its version then."""
        about, table = TABLES[name], self.ensure(name)
        match = " and ".join(f't."{key}" = s."{key}"' for key in about.key)
        merge = table.merge(
            rows.cast(about.arrow()), match, "s", "t", commit_properties=commit_properties({})
        )
        merge.when_not_matched_insert_all().execute()
        return table.version()

    def _property(self) -> str:
        return json.dumps(
            {"layout": LAYOUT_VERSION, "partitions": self.partitions, "prefix": self.prefix}
        )

    def _check(self, name: str, table: DeltaTable) -> None:
        text = table.metadata().configuration.get(PROPERTY)
        if text is None:
            raise self._mismatch(f"'{name}' there was not made by Angarium")
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


def table_of(name: str) -> Table:
    if name not in TABLES:
        raise NotFound(f"there is no table '{name}' in a lake; tables: {', '.join(TABLES)}")
    return TABLES[name]


def positions_of(stream: str, newest: Iterable[tuple[int, int]]) -> dict[str, int]:
    """What a commit says of a stream: partition and the last entry it brings in."""
    return {f"{stream}:{partition}": position for partition, position in newest}


def _version(table: DeltaTable | None, name: str) -> int:
    found = None if table is None else table.transaction_version(name)
    return -1 if found is None else int(found)


def commit_properties(positions: Positions) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    from angarium.lake.sinks.delta import COMMIT_RETRIES_MAX

    return CommitProperties(
        app_transactions=[Transaction(name, position) for name, position in positions.items()],
        max_commit_retries=COMMIT_RETRIES_MAX,
    )
