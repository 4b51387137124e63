"""Bronze: the streams as rows, as they came. Functions DataFrame -> DataFrame.

Each takes what the source `redis-stream` reads. What can't be decoded or stored becomes a row of
`rejects` and stops nobody: the journal's source has marked such entries already, results are
checked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from angarium.lake.schemas import EVENTS, REJECTS, RESULTS, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

# The last millisecond of the year 9999: dates end there.
AT_MS_MAX = 253_402_300_799_999
# Columns of a results stream as the source is asked for them: bytes, because not all are text.
RESULTS_SCHEMA = "key string, id string, fields map<string,binary>"


_DATE = "to_date(timestamp_millis(at_ms))"
_ID_MS = "try_cast(split_part(id, '-', 1) as bigint)"
# From a stream's name, which begins with its partition where there are several.
_PARTITION = r"cast(coalesce(nullif(regexp_extract(key, '\\{p([0-9]+)\\}:', 1), ''), '0') as int)"
# Why a result can't be stored; null where it can.
PROBLEM = (
    f"case when {_ID_MS} is null or {_ID_MS} > {AT_MS_MAX} then 'its id is no time' "
    "when exists(map_values(fields), value -> not is_valid_utf8(value)) "
    "then 'a value is no text' end"
)


def with_values(rows: DataFrame, **values: int) -> DataFrame:
    """With these values as columns.

    A number in a query's text is a number in the code that Spark makes of it, which would be
    compiled anew for each batch. A text is handed to that code from outside, but Spark must not
    see that it always is the same: so it is put behind an empty text that comes from the row.
    """
    column = rows.columns[0]
    empty = f"coalesce(left(cast(`{column}` as string), 0), '')"
    return rows.selectExpr(
        "*",
        *(f"cast(concat({empty}, '{value}') as bigint) as {n}" for n, value in values.items()),
    )


def observed(frame: DataFrame, **figures: str) -> tuple[Observation, DataFrame]:
    """Figures of the rows that pass here, counted by whatever job reads them first."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    return seen, frame.observe(seen, *(f.expr(sql).alias(name) for name, sql in figures.items()))


def events(journal: DataFrame, batch: int = 0) -> DataFrame:
    """Every readable event of the journal."""
    good = with_values(journal.where("reject is null"), batch=batch)
    return good.selectExpr(*expressions_of(EVENTS, {"entry_id": "id", "date": _DATE}))


def rejects(journal: DataFrame, batch: int = 0) -> DataFrame:
    """Every entry of the journal that could not be read, as it was."""
    given = {"entry_id": "id", "stream": "'journal'", "reason": "reject", "batch": f"{batch}L"}
    return journal.where("reject is not null").selectExpr(*expressions_of(REJECTS, given))


def results(stream: DataFrame, batch: int = 0) -> DataFrame:
    """The workers' results, one row each."""
    own = "'message_id', 'consumer_id'"
    good = with_values(stream.where(f"{PROBLEM} is null"), batch=batch).selectExpr(
        "key", "id", "batch",
        "transform_values(fields, (name, value) -> cast(value as string)) as text",
    )  # fmt: skip
    given = {
        "partition": _PARTITION,
        "entry_id": "id",
        "at_ms": _ID_MS,
        "message_id": "text['message_id']",
        "consumer_id": "text['consumer_id']",
        "fields": f"to_json(map_filter(text, (name, value) -> name not in ({own})))",
        "date": f"to_date(timestamp_millis({_ID_MS}))",
    }
    return good.selectExpr(*expressions_of(RESULTS, given))


def rejected_results(stream: DataFrame, batch: int = 0) -> DataFrame:
    """Results that are no text or have no date; `raw` holds names and values, line by line."""
    line = "concat(cast(name as binary), cast('=' as binary), fields[name], cast('\\n' as binary))"
    names = "sort_array(map_keys(fields))"
    raw = f"aggregate({names}, cast('' as binary), (raw, name) -> concat(raw, {line}))"
    given = {
        "partition": _PARTITION,
        "entry_id": "id",
        "stream": "'results'",
        "version": "null",
        "at_ms": "null",
        "reason": PROBLEM,
        "raw": raw,
        "batch": f"{batch}L",
    }
    return stream.where(f"{PROBLEM} is not null").selectExpr(*expressions_of(REJECTS, given))


def expressions_of(table: Table, given: Mapping[str, str]) -> list[str]:
    """The table's columns as SQL: what is given for a name, or the column of that name."""
    types = {"long": "bigint"}
    return [
        f"cast({given.get(each.name, each.name)} as {types.get(each.type, each.type)}) "
        f"as {each.name}"
        for each in table.columns
    ]


def partition_of(key: str) -> int:
    """From a stream's name, as above."""
    found = re.search(r"\{p(\d+)\}:", key)
    return int(found[1]) if found else 0
