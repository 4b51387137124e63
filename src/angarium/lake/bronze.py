"""Bronze: the streams as rows, as they came. Functions DataFrame -> DataFrame.

Each takes what the source `redis-stream` reads. What can't be decoded or stored becomes a row of
`rejects` and stops nobody: the journal's source has marked such entries already, results are
checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium.lake.schemas import EVENTS, REJECTS, RESULTS, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The last millisecond of the year 9999: dates end there.
AT_MS_MAX = 253_402_300_799_999
# Columns of a results stream as the source is asked for them: bytes, because not all are text.
RESULTS_SCHEMA = "key string, id string, fields map<string,binary>"


def events(journal: DataFrame, batch: int = 0) -> DataFrame:
    """Every readable event of the journal."""
    from pyspark.sql import functions as f

    good = journal.where(f.col("reject").isNull()).select(
        "*",
        f.col("id").alias("entry_id"),
        f.to_date(f.timestamp_millis("at_ms")).alias("date"),
        f.lit(batch).alias("batch"),
    )
    return good.select(*columns_of(EVENTS))


def rejects(journal: DataFrame, batch: int = 0) -> DataFrame:
    """Every entry of the journal that could not be read, as it was."""
    from pyspark.sql import functions as f

    bad = journal.where(f.col("reject").isNotNull()).select(
        "*",
        f.col("id").alias("entry_id"),
        f.lit("journal").alias("stream"),
        f.col("reject").alias("reason"),
        f.lit(batch).alias("batch"),
    )
    return bad.select(*columns_of(REJECTS))


def results(stream: DataFrame, batch: int = 0) -> DataFrame:
    """The workers' results, one row each."""
    from pyspark.sql import functions as f

    own = ("message_id", "consumer_id")
    text = f.transform_values("fields", lambda _, value: value.cast("string"))
    rest = f.map_filter("text", lambda name, _: ~name.isin(*own))
    good = stream.where(problem_of_result().isNull()).select(
        partition_of("key").alias("partition"),
        f.col("id").alias("entry_id"),
        id_ms().alias("at_ms"),
        text.alias("text"),
    )
    return good.select(
        "*",
        f.col("text")["message_id"].alias("message_id"),
        f.col("text")["consumer_id"].alias("consumer_id"),
        f.to_json(rest).alias("fields"),
        f.to_date(f.timestamp_millis("at_ms")).alias("date"),
        f.lit(batch).alias("batch"),
    ).select(*columns_of(RESULTS))


def rejected_results(stream: DataFrame, batch: int = 0) -> DataFrame:
    """Results that are no text or have no date; `raw` holds their values in the order of names."""
    from pyspark.sql import functions as f

    bad = stream.select("*", problem_of_result().alias("reason")).where("reason is not null")
    lines = f.transform(
        f.sort_array(f.map_keys("fields")),
        lambda name: f.concat(name.cast("binary"), f.lit(b"="), f.col("fields")[name], f.lit(b"\n")),
    )
    raw = f.aggregate(lines, f.lit(b"").cast("binary"), lambda all, one: f.concat(all, one))
    return bad.select(
        partition_of("key").alias("partition"),
        f.col("id").alias("entry_id"),
        f.lit("results").alias("stream"),
        f.lit(None).alias("version"),
        f.lit(None).alias("at_ms"),
        "reason",
        raw.alias("raw"),
        f.lit(batch).alias("batch"),
    ).select(*columns_of(REJECTS))


def problem_of_result() -> Column:
    """Why a result can't be stored; null where it can."""
    from pyspark.sql import functions as f

    values = f.map_values("fields")
    return (
        f.when(id_ms().isNull() | (id_ms() > AT_MS_MAX), f.lit("its id is no time"))
        .when(f.exists(values, lambda value: ~f.is_valid_utf8(value)), f.lit("a value is no text"))
        .otherwise(f.lit(None))
    )


def id_ms() -> Column:
    """The time in an entry's id; null where the number is none that a time can have."""
    from pyspark.sql import functions as f

    return f.expr("try_cast(split_part(id, '-', 1) as bigint)")


def partition_of(key: str) -> Column:
    """From a stream's name, which begins with its partition where there are several."""
    from pyspark.sql import functions as f

    digits = f.regexp_extract(key, r"\{p(\d+)\}:", 1)
    return f.coalesce(f.nullif(digits, f.lit("")).cast("int"), f.lit(0))


def columns_of(table: Table) -> list[Column]:
    """The table's columns by name, each as its type."""
    from pyspark.sql import functions as f

    types = {"long": "bigint"}
    return [f.col(each.name).cast(types.get(each.type, each.type)) for each in table.columns]
