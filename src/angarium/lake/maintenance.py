"""What keeps a table's cost flat: files put together, old rows let go, a person's rows erased.

Each of these is one commit, beside which others go on appending. Files are put together by
partition and by size: files of about the same size become one of the next size, so a row is written
anew a few times in its life, and a partition that nobody adds to is left alone. What a commit
removed is deleted by `clean`, after readers that had opened the table before are done.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from angarium.lake.errors import TableConflict

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from angarium.lake.delta_log import DataFile
    from angarium.lake.tables import LakeTable

# Sizes are apart by this factor, and so many files of one size become one of the next.
FILES_PER_SIZE = 8
FILE_BYTES_SMALLEST = 64 << 10
FILE_BYTES_AIM = 128 << 20
# What one pass writes anew at most, so that batches beside it do not wait for long.
PASS_BYTES_MAX = 256 << 20
# Reading a file list into Spark costs 3 ms a file.
PASS_FILES_MAX = 2_000
DAY_S = 86_400


@dataclass(frozen=True)
class Compacted:
    files_before: int = 0
    files_after: int = 0
    size_bytes: int = 0


def compact(
    table: LakeTable, spark: SparkSession, *, sort_by: Sequence[str] = (), all_files: bool = False
) -> Compacted:
    """Put files together where there are enough of a size; with `all_files` wherever two are small.

    Rows are sorted by `sort_by` in each file, so that its statistics let a look-up skip it. When
    another writer has removed one of the files meanwhile, nothing is changed.
    """
    chosen = chosen_files(table.files(), 2 if all_files else FILES_PER_SIZE, all_files=all_files)
    if not chosen:
        return Compacted()
    total = sum(each.size_bytes for each in chosen)
    rows = table.frame(spark, chosen)
    if table.partition_by:
        rows = rows.repartition(min(len(chosen), _cores(spark)), *table.partition_by)
    else:
        rows = rows.coalesce(math.ceil(total / FILE_BYTES_AIM))
    if table.partition_by or sort_by:
        rows = rows.sortWithinPartitions(*table.partition_by, *sort_by)
    made = table.write_files(rows)
    try:
        table.commit_files(made, chosen, news=False)
    except TableConflict:
        return Compacted()
    return Compacted(len(chosen), len(made), sum(each.size_bytes for each in made))


def _cores(spark: SparkSession) -> int:
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def chosen_files(
    files: Sequence[DataFile], count_min: int, *, all_files: bool = False
) -> list[DataFile]:
    """Of each partition and size with enough files, all of them and all smaller ones."""
    partitions: dict[tuple[str | None, ...], list[DataFile]] = {}
    for each in files:
        if each.size_bytes < FILE_BYTES_AIM // 2:
            partitions.setdefault(tuple(each.partition_values.values()), []).append(each)
    chosen: list[DataFile] = []
    for small in partitions.values():
        sizes: dict[int, int] = {}
        for each in small:
            sizes[size_class(each.size_bytes)] = sizes.get(size_class(each.size_bytes), 0) + 1
        full = [size for size, count in sizes.items() if count >= count_min]
        if all_files and len(small) >= count_min:
            full = list(sizes)
        if full:
            chosen += [each for each in small if size_class(each.size_bytes) <= max(full)]
    return _bounded(chosen)


def _bounded(files: Sequence[DataFile]) -> list[DataFile]:
    """As many of the smallest as one pass may take."""
    taken: list[DataFile] = []
    total = 0
    for each in sorted(files, key=lambda file: file.size_bytes)[:PASS_FILES_MAX]:
        total += each.size_bytes
        if taken and total > PASS_BYTES_MAX:
            break
        taken.append(each)
    return taken


def size_class(size_bytes: int) -> int:
    return max(0, math.ceil(math.log(max(1, size_bytes) / FILE_BYTES_SMALLEST, FILES_PER_SIZE)))


def retain(
    table: LakeTable, days: float, *, column: str = "date", now_s: float | None = None
) -> int:
    """Let go of files whose rows are all older; how many. No file is read or written.

    `column` is the partition column `date`, or one that ends in `_s` or `_ms` and has statistics.
    """
    limit_s = (time.time() if now_s is None else now_s) - days * DAY_S
    day = datetime.datetime.fromtimestamp(limit_s, datetime.UTC).date()
    if column == "date":
        matching = f"date < '{day.isoformat()}'"
        old = [
            each
            for each in table.files(matching=matching)
            if (each.partition_values.get("date") or day.isoformat()) < day.isoformat()
        ]
    else:
        limit = int(limit_s * 1000) if column.endswith("_ms") else int(limit_s)
        young = {each.path for each in table.files(matching=f"{column} >= {limit}")}
        old = [each for each in table.files() if each.path not in young]
    if old:
        table.commit_files([], old)
    return len(old)


@dataclass(frozen=True)
class Erased:
    rows: int = 0
    files: int = 0


def erase(
    table: LakeTable, spark: SparkSession, condition: Column, matching: str | None = None
) -> Erased:
    """Remove the rows that fulfil `condition`; only files that have such rows are written anew.

    `matching` says the same in SQL, where statistics can tell which files may have such rows. The
    rows are out of the table at once, and out of folder and log after `clean(…, everything=True)`.
    """
    from pyspark.sql import functions as f

    candidates = table.files(matching=matching)
    if not candidates:
        return Erased()
    rows = table.frame(spark, candidates, place=True).where(condition)
    held = {
        row.place: row.rows
        for row in rows.groupBy("place").agg(f.count("*").alias("rows")).collect()
    }
    holding = [each for each in candidates if any(place.endswith(each.path) for place in held)]
    if not holding:
        return Erased()
    rest = table.frame(spark, holding).where(~f.coalesce(condition, f.lit(False)))
    table.commit_files(table.write_files(rest.coalesce(len(holding))), holding)
    return Erased(sum(held.values()), len(holding))


def clean(table: LakeTable, *, everything: bool = False) -> int:
    """Delete removed files and old log entries; how many files.

    With `everything` also what somebody may still read, and the log before now, which names values
    of rows that were erased.
    """
    if everything:
        table.log.forget()
        return table.log.vacuum(0)
    table.log.cleanup()
    return table.log.vacuum() if table.log.vacuum_is_due() else 0


def upkeep(
    table: LakeTable,
    spark: SparkSession,
    *,
    sort_by: Sequence[str] = (),
    days: float | None = None,
    all_files: bool = False,
) -> None:
    """Everything that keeps a table's cost flat; batches go on beside it."""
    compact(table, spark, sort_by=sort_by, all_files=all_files)
    column = time_column(table)
    if days is not None and column is not None:
        retain(table, days, column=column)
    clean(table)


def time_column(table: LakeTable) -> str | None:
    """By which a table's rows are old; None where they do not age, as what is in flight."""
    if "date" in table.partition_by:
        return "date"
    if table.partition_by:
        return None
    names = ("start_s", "audited_ms", "at_ms")
    return next((each for each in names if each in table.schema.names), None)
