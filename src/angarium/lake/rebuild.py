"""A table made anew from the tables before it: dropped, then followed from their first batch.

Only tables that follow the journal's events can be: what bronze has is all there is. Tables that
belong together are dropped together, the one that holds the state first; whoever finds the rest
takes the same batches again, so a rebuild that was interrupted is finished by the next run.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs as pafs

from angarium.lake.delta_log import filesystem_of
from angarium.lake.steps import LakeTables, PipelineStep, follow, last_batch, steps_of
from angarium.lake.tables import Lake
from angarium.runtime.errors import InputInvalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild(spark: SparkSession, lake: Lake, name: str) -> dict[str, int]:
    """Make the table anew; rows of each table that was. The lake's lease must be held."""
    step = _step_of(spark, lake, name)
    for table in reversed(step.tables):
        drop(lake, table.name)
    step = _step_of(spark, lake, name)
    source = step.lake_tables[step.source]
    follow(step, lambda: last_batch(source, step.source_writer))
    return {table.name: lake.rows(table.name) for table in step.tables}


def _step_of(spark: SparkSession, lake: Lake, name: str) -> PipelineStep:
    steps = steps_of(spark, LakeTables(lake))
    known = {table.name: step for step in steps for table in step.tables}
    if name not in known:
        raise InputInvalid(
            f"'{name}' can't be made anew from the events; tables that can: "
            + ", ".join(sorted(known))
        )
    return known[name]


def drop(lake: Lake, name: str) -> None:
    """The table with all its files; one that is being read goes from under its reader."""
    if lake.local:
        folder = Path(lake.path(name).removeprefix("file://"))
        if folder.exists():
            # Away at once, whatever becomes of us while its files are deleted.
            aside = folder.with_name(f"_dropped-{uuid.uuid4().hex}")
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        return
    filesystem, root = filesystem_of(lake.path(name), lake.storage)
    found = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    paths = [each.path for each in found if each.type == pafs.FileType.File]
    for path in sorted(paths, key=lambda each: "_delta_log" not in each):
        filesystem.delete_file(path)
