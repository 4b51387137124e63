"""Tables that are written in parts: what a part is made of, and how parts become one row again.

A part holds what some events say of the keys they touch; parts of one key are combined when they
are read, or put together by compaction. One place for everybody who reads or writes such tables:
`summed` for who has events, `combined_sql` for who asks, `combined` for DataFrames. DuckDB works
on Arrow here, in the task that decoded the events; the SQL is the jobs' own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from angarium.lake.jobs import messages, statistics
from angarium.lake.schemas import INTERVALS_S, MESSAGES, STATS_FINE, TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame

PARTS: tuple[str, ...] = tuple(name for name, table in TABLES.items() if table.in_parts)


def combined_sql(name: str, rows: str) -> str:
    """One row for each key, from the parts that the relation `rows` has."""
    text = messages.COMBINED if name == MESSAGES.name else statistics.COMBINED
    return text.format(rows=rows)


def combined(name: str, rows: DataFrame) -> DataFrame:
    """The same in Spark."""
    return messages.combined(rows) if name == MESSAGES.name else statistics.combined(rows)


def part(name: str, events: DataFrame) -> DataFrame:
    """What these events add to a table, in Spark."""
    if name == MESSAGES.name:
        return messages.partial(events)
    return statistics.statistics(events, INTERVALS_S[name])


def summed(events: Sequence[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """What these events add to each table in parts."""
    import pyarrow as pa

    with own_connection() as connection:
        connection.register("events", pa.Table.from_batches(events))
        yield MESSAGES.name, _rows(connection, MESSAGES.name, messages.PARTIAL, events="events")
        fine = _rows(
            connection, STATS_FINE.name, statistics.STATISTICS,
            events="events", interval_s=INTERVALS_S[STATS_FINE.name],
        )  # fmt: skip
        yield STATS_FINE.name, fine
        connection.register("fine", fine)
        for name, interval_s in INTERVALS_S.items():
            if name != STATS_FINE.name:
                yield (
                    name,
                    _rows(connection, name, statistics.COARSER, rows="fine", interval_s=interval_s),
                )


def own_connection(threads: int = 1) -> duckdb.DuckDBPyConnection:
    """DuckDB in memory, on as many threads as a task has cores; it downloads nothing."""
    import duckdb

    return duckdb.connect(
        config={
            "threads": threads,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )


def _rows(
    connection: duckdb.DuckDBPyConnection, name: str, text: str, **names: str | int
) -> pa.Table:
    return connection.sql(text.format(**names)).to_arrow_table().cast(TABLES[name].arrow())
