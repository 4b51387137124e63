"""SQL over the lake's tables, in this process: DuckDB on Parquet files, no Spark, no download.

Every table of the lake is a view, empty where it was never written. Which files a table has is
asked of its log when the connection is made, so a query sees one moment of each table. Tables that
are written in parts show one row for each key. Object stores are read through Arrow, because
DuckDB's own way there is an extension to be downloaded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from angarium.lake.jobs.parts import combined_sql
from angarium.lake.schemas import TABLES, Table
from angarium.lake.tables import Lake, LakeEmpty
from angarium.runtime.errors import InputInvalid

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_TYPES = {
    "string": "VARCHAR", "long": "BIGINT", "int": "INTEGER", "boolean": "BOOLEAN",
    "binary": "BLOB", "date": "DATE",
}  # fmt: skip


class QueryInvalid(InputInvalid):
    """The SQL can't be run; the message is DuckDB's own."""

    code = "query_invalid"


@dataclass(frozen=True)
class Answer:
    columns: list[str]
    rows: list[tuple[Any, ...]]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@contextmanager
def connect(
    lake: Lake, tables: Sequence[str] = tuple(TABLES)
) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with a view for each of the tables."""
    import duckdb

    connection = duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )
    try:
        connection.execute("SET TimeZone='UTC'")
        for name in tables:
            _view(connection, lake, TABLES[name])
        yield connection
    finally:
        connection.close()


def ask(
    lake: Lake, sql: str, parameters: Sequence[Any] = (), tables: Sequence[str] = tuple(TABLES)
) -> Answer:
    """One query's rows; raises `LakeEmpty` when no table was ever written."""
    if not any(lake.open(name) is not None for name in tables):
        raise LakeEmpty(
            f"nothing is in {lake.url} yet; run `angarium lake run --once` once something has "
            "happened in the modules, or set ANGARIUM_LAKE_URL"
        )
    with connect(lake, tables) as connection:
        return run(connection, sql, parameters)


def run(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] = ()) -> Answer:
    import duckdb

    try:
        found = connection.execute(sql, list(parameters))
        columns = [str(each[0]) for each in found.description or ()]
        return Answer(columns, found.fetchall() if columns else [])
    except duckdb.Error as error:
        raise QueryInvalid(f"the query can't be run: {error}") from None


def interrupted_after(connection: duckdb.DuckDBPyConnection, seconds: float) -> threading.Timer:
    """Ends a query that takes too long; cancel the timer when it did not."""
    timer = threading.Timer(seconds, connection.interrupt)
    timer.daemon = True
    timer.start()
    return timer


def _view(connection: duckdb.DuckDBPyConnection, lake: Lake, table: Table) -> None:
    found = lake.open(table.name)
    files = [] if found is None else list(found.file_uris())
    source = f"_{table.name}"
    if found is None or not files:
        _register(connection, source, table.arrow().empty_table())
        known = set(table.names)
    elif "://" in files[0] and not files[0].startswith("file://"):
        connection.register(source, found.to_pyarrow_dataset())
        known = {each.name for each in found.schema().fields}
    else:
        paths = [each.removeprefix("file://") for each in files]
        types = ", ".join(f"{_quoted(c.name)}: {_TYPES[c.type]}" for c in _folders(table))
        hive = f", hive_partitioning = true, hive_types = {{{types}}}" if types else ""
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
        connection.execute(
            f"CREATE VIEW {source} AS "
            f"SELECT * FROM read_parquet([{listed}], union_by_name = true{hive})"
        )
        about = connection.execute(f"DESCRIBE {source}").fetchall()
        known = {row[0] for row in about}
    columns = ", ".join(
        _quoted(each.name)
        if each.name in known
        else f"NULL::{_TYPES[each.type]} AS {_quoted(each.name)}"
        for each in table.columns
    )
    rows = f"SELECT {columns} FROM {source}"
    if found is not None and table.in_parts and not lake.whole(found):
        rows = combined_sql(table.name, f"({rows})")
    connection.execute(f"CREATE VIEW {table.name} AS {rows}")


def _register(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    connection.register(name, rows)


def _folders(table: Table) -> list[Any]:
    return [each for each in table.columns if each.name in table.partition_by]


def _quoted(name: str) -> str:
    return f'"{name}"'
