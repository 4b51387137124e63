"""SQL over finished tables for a person: DuckDB in this process, no Spark, no download.

Every table of the lake is a view, empty where it was never written. Which files a table has is
asked of its log when the connection is made, so a query sees one moment of each table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from angarium.lake.errors import LakeEmpty
from angarium.lake.schemas import TABLES
from angarium.lake.tables import Lake
from angarium.runtime.errors import InputInvalid

if TYPE_CHECKING:
    import duckdb


class QueryInvalid(InputInvalid):
    """The SQL can't be run; the message is the engine's own."""

    code = "query_invalid"


@dataclass(frozen=True)
class Answer:
    columns: list[str]
    rows: list[tuple[Any, ...]]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@contextmanager
def connect(lake: Lake, tables: Sequence[str] | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with a view for each of the tables; for all that are there unless some are named."""
    import duckdb

    connection = duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )
    try:
        connection.execute("SET TimeZone='UTC'")
        for name in tables if tables is not None else {*TABLES, *lake.existing()}:
            found = lake.open(name)
            rows = TABLES[name].arrow().empty_table() if found is None else (
                found.to_pyarrow_dataset()
            )  # fmt: skip
            connection.register(name, rows)
        yield connection
    finally:
        connection.close()


def ask(
    lake: Lake, sql: str, parameters: Sequence[Any] = (), tables: Sequence[str] | None = None
) -> Answer:
    """One query's rows; raises `LakeEmpty` when no table was ever written."""
    if not lake.existing():
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
