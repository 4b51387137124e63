"""A person's rows out of every table, and tables made anew from what is before them.

`erase_key` removes each row that names the key, in any text or bytes of it, and each event of a
message that belonged to it. Only files that hold such rows are written anew; then the files and log
entries that had them are deleted, so a search over the lake's folder finds nothing. What Redis and
its database still have is theirs to forget.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from angarium.lake.errors import TableConflict
from angarium.lake.maintenance import Erased, clean, erase
from angarium.lake.tables import Lake, LakeTable
from angarium.lake.views import table_of

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

# Tables with one row for a message, and the columns elsewhere that name one.
MESSAGES = ("messages", "messages_open")
NAMES_A_MESSAGE = ("subject", "message_id", "id")
# The runner may commit meanwhile; it is looked again at what is there then.
TRIES_MAX = 5


def erase_key(lake: Lake, spark: SparkSession, key: str) -> dict[str, Erased]:
    """Table → what was removed from it; tables that had nothing are left out."""
    tables = [table_of(lake, name) for name in lake.existing()]
    messages = _messages_of(spark, tables, key)
    found: dict[str, Erased] = {}
    for table in tables:
        done = _erased(table, spark, key, messages)
        if done.files:
            found[table.name] = done
    for table in tables:
        clean(table, everything=table.name in found)
    return found


def _messages_of(spark: SparkSession, tables: list[LakeTable], key: str) -> list[str]:
    """Ids of the messages that belong to the key."""
    subjects: set[str] = set()
    for table in tables:
        if table.name in MESSAGES:
            rows = table.read(spark).where(names_key(table, key)).select("subject").distinct()
            subjects.update(row.subject for row in rows.collect())
    return sorted(subjects)


def _erased(table: LakeTable, spark: SparkSession, key: str, messages: list[str]) -> Erased:
    from pyspark.sql import functions as f

    condition = names_key(table, key)
    for column in NAMES_A_MESSAGE:
        if messages and column in table.schema.names:
            # A list in the plan, which Spark keeps as a set: one person's messages.
            condition = condition | f.coalesce(f.col(column).isin(messages), f.lit(False))
    for attempt in range(TRIES_MAX):
        try:
            return erase(table, spark, condition)
        except TableConflict:
            if attempt + 1 == TRIES_MAX:
                raise
    raise AssertionError("not reached")


def names_key(table: LakeTable, key: str) -> Column:
    """Whether a row has the key as a word of its own, in any of its texts."""
    from pyspark.sql import functions as f

    found = f.lit(False)
    for field in table.schema.fields:
        for each in _names(f.col(f"`{field.name}`"), field.dataType, key):
            found = found | f.coalesce(each, f.lit(False))
    return found


def _names(column: Column, kind: DataType, key: str) -> list[Column]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, StringType, StructType

    if isinstance(kind, StringType):
        return [column.rlike(rf"(?<![\w-]){re.escape(key)}(?![\w-])")]
    if isinstance(kind, BinaryType):  # any byte may stand before it, such as its length
        return [f.contains(column, f.lit(key.encode()))]
    if isinstance(kind, StructType):
        inner = (_names(column[field.name], field.dataType, key) for field in kind.fields)
        return [each for conditions in inner for each in conditions]
    return []
