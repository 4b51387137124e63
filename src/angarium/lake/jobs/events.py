"""The journal as rows: events that could be read, and entries that could not.

Both take what the source `redis-stream` makes of the journal. Functions of DataFrames only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium.lake.schemas import EVENTS, PROCESSED, REJECTS, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# An entry's id as one number that orders like it: 2^20 entries of one millisecond are room enough,
# and milliseconds fit until the year 2248.
SEQUENCE_BITS = 20


def events(journal: DataFrame) -> DataFrame:
    """Every readable event, in the columns of `events`."""
    from pyspark.sql import functions as f

    good = (
        journal.where(f.col("reject").isNull())
        .withColumnRenamed("id", "entry_id")
        .withColumn("date", f.to_date(f.timestamp_millis("at_ms")))
    )
    return good.select(*_typed(EVENTS))


def rejects(journal: DataFrame) -> DataFrame:
    """Every entry that could not be read, as it was."""
    from pyspark.sql import functions as f

    bad = (
        journal.where(f.col("reject").isNotNull())
        .withColumnRenamed("id", "entry_id")
        .withColumnRenamed("reject", "reason")
    )
    return bad.select(*_typed(REJECTS))


def processed(stream: DataFrame) -> DataFrame:
    """The workers' results, in the columns of `processed`."""
    from pyspark.sql import functions as f

    own = ("message_id", "consumer_id")
    at_ms = f.split_part("id", f.lit("-"), f.lit(1)).cast("long")
    rest = f.map_filter("fields", lambda name, _: ~name.isin(*own))
    rows = stream.select(
        _partition("key").alias("partition"),
        f.col("id").alias("entry_id"),
        at_ms.alias("at_ms"),
        f.col("fields")["message_id"].alias("message_id"),
        f.col("fields")["consumer_id"].alias("consumer_id"),
        f.to_json(rest).alias("fields"),
        f.to_date(f.timestamp_millis(at_ms)).alias("date"),
    )
    return rows.select(*_typed(PROCESSED))


def deduplicated(rows: DataFrame) -> DataFrame:
    """Each event once, however often its entry was read: an entry's id never comes again."""
    return rows.dropDuplicates(list(EVENTS.key))


def position(entry_id: str) -> Column:
    """An entry's id as one number that orders like it."""
    from pyspark.sql import functions as f

    ms = f.split_part(entry_id, f.lit("-"), f.lit(1)).cast("long")
    sequence = f.split_part(entry_id, f.lit("-"), f.lit(2)).cast("long")
    return f.shiftleft(ms, SEQUENCE_BITS) + sequence


def position_of(entry_id: str) -> int:
    ms, _, sequence = entry_id.partition("-")
    return (int(ms) << SEQUENCE_BITS) + int(sequence or 0)


def entry_id_of(position: int) -> str:
    return f"{position >> SEQUENCE_BITS}-{position & (1 << SEQUENCE_BITS) - 1}"


def _partition(key: str) -> Column:
    """From a stream's name, which begins with its partition where there are several."""
    from pyspark.sql import functions as f

    digits = f.regexp_extract(key, r"^\{p(\d+)\}:", 1)
    return f.coalesce(f.nullif(digits, f.lit("")).cast("int"), f.lit(0))


def _typed(table: Table) -> list[Column]:
    from pyspark.sql import functions as f

    types = {"long": "bigint"}
    return [f.col(each.name).cast(types.get(each.type, each.type)) for each in table.columns]
