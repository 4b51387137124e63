"""The Spark format `delta`: a DataFrame or a stream into a Delta table, each batch once.

| option | meaning |
|---|---|
| `path` | folder or URL of the table; also the argument of `save` and `start` |
| `partitionBy` | columns, joined by commas, that files are put in folders by |
| `appId` | who writes, in the table's log; the query's id unless given |
| `batchId` | batch writes only: with `appId`, a write that is repeated is made once |
| `storage.*` | options of the object store, such as `storage.aws_region` |

    events.writeStream.format("delta").option("checkpointLocation", …).start("lake/events")

Executors write Parquet files; the driver commits them once. The batch's number stands in the
table's log, so a batch that is repeated after a crash finds itself there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from angarium.lake.errors import OptionInvalid
from angarium.lake.sinks.delta import DataFile, Mode, commit_files, remove_files
from angarium.lake.sinks.parquet import write_files
from angarium.runtime.errors import Conflict

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID = "sql.streaming.queryId"  # how Spark calls it, in the properties of a task
STORAGE = "storage."


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The files of one task, and the query it ran for."""

    files: tuple[DataFile, ...]
    query_id: str


@dataclass(frozen=True)
class Target:
    path: str
    partition_by: tuple[str, ...]
    storage: Mapping[str, str]
    app_id: str
    batch_id: int | None
    mode: Mode

    @classmethod
    def read(cls, options: Mapping[str, str], *, overwrite: bool) -> Target:
        path = options.get("path")
        if not path:
            raise OptionInvalid("path", "no table is named", "give its folder to save() or start()")
        number = options.get("batchId")
        if number is not None and not number.isdecimal():
            raise OptionInvalid("batchId", f"'{number}' is not a number", "count your writes up")
        columns = options.get("partitionBy", "")
        return cls(
            path=path,
            partition_by=tuple(name.strip() for name in columns.split(",") if name.strip()),
            # Spark's options forget their case, which no store minds.
            storage={
                name[len(STORAGE) :]: value
                for name, value in options.items()
                if name.startswith(STORAGE)
            },
            app_id=options.get("appId", ""),
            batch_id=int(number) if number is not None else None,
            mode="overwrite" if overwrite else "append",
        )


class DeltaFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return "delta"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(Target.read(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(Target.read(self.options, overwrite=overwrite), schema)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target, schema: StructType) -> None:
        self._target = target
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._target, iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        if any(messages):
            app_id = self._target.app_id or query_of(messages)
            _commit(self._target, self._schema, messages, app_id, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        _remove(self._target, messages)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, target: Target, schema: StructType) -> None:
        self._target = target
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._target, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        target = self._target
        app_id = target.app_id or f"write-{uuid.uuid4()}"
        _commit(target, self._schema, messages, app_id, target.batch_id or 0)

    def abort(self, messages: Sequence[Any]) -> None:
        _remove(self._target, messages)


def query_of(messages: Sequence[Any]) -> str:
    """The query whose tasks these were."""
    for each in messages:
        if each is not None and each.query_id:
            return str(each.query_id)
    # Without its id, another query's batches would pass for this one's.
    raise Conflict("Spark does not say which query a batch belongs to; set appId")


def _write(target: Target, iterator: Iterator[pa.RecordBatch]) -> Written:
    files = write_files(target.path, iterator, target.partition_by, target.storage)
    task = TaskContext.get()
    query_id = (task.getLocalProperty(QUERY_ID) if task is not None else None) or ""
    return Written(tuple(files), query_id)


def _commit(
    target: Target, schema: StructType, messages: Sequence[Any], app_id: str, batch_id: int
) -> None:
    files = [each for message in messages if message is not None for each in message.files]
    made = commit_files(
        target.path,
        to_arrow_schema(schema, timezone="UTC"),
        files,
        app_id,
        batch_id,
        target.partition_by,
        target.mode,
        storage=target.storage,
    )
    if not made:
        _remove(target, messages)


def _remove(target: Target, messages: Sequence[Any]) -> None:
    files = [each for message in messages if message is not None for each in message.files]
    remove_files(target.path, files, target.storage)
