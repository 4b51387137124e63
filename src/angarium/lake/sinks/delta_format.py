"""The Spark format `angarium-delta`: Delta tables read and written by their log, without a jar.

| option | meaning |
|---|---|
| `path` | folder or URL of the table; also the argument of `load`, `save` and `start` |
| `version` | reads only: the table as it was at this version |
| `partitionBy` | writes only: columns, joined by commas, that files are put in folders by |
| `appId` | writes only: who writes, in the table's log; the query's id unless given |
| `batchId` | batch writes only: with `appId`, a write that is repeated is made once |
| `storage.*` | options of the object store, such as `storage.aws_region` |

    spark.read.format("angarium-delta").load("lake/events").where("module = 'dispatch'")
    events.writeStream.format("angarium-delta").option("checkpointLocation", …).start("lake/events")

Tasks read and write Parquet files by Arrow in their Python workers; the driver commits once, and
the batch's number stands in the log. Spark tells a Python format its filters (where
`spark.sql.python.filterPushdown.enabled` is set, as in our sessions), so files are skipped by
partition and statistics; it does not tell it the columns. `LakeTable.read`, which the views of a
session use, has Spark's own Parquet reader and prunes both.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from angarium.lake.delta_log import DataFile, DeltaLog
from angarium.lake.errors import OptionInvalid
from angarium.lake.parquet import read_batches, write_batches
from angarium.runtime.errors import Conflict, NotFound

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "angarium-delta"
QUERY_ID = "sql.streaming.queryId"  # how Spark calls it, in the properties of a task
STORAGE = "storage."
# Small files are read together, so that a table of many does not become as many tasks.
TASK_BYTES = 32 << 20
_SIGNS = {
    EqualTo: "=", GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<=",
}  # fmt: skip


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The files of one task, and the query it ran for."""

    files: tuple[DataFile, ...]
    query_id: str


@dataclass(frozen=True)
class DeltaOptions:
    path: str
    partition_by: tuple[str, ...]
    storage: Mapping[str, str]
    app_id: str
    batch_id: int | None
    version: int | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> DeltaOptions:
        path = options.get("path")
        if not path:
            problem = "no table is named"
            raise OptionInvalid("path", problem, "give its folder to load(), save() or start()")
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
            batch_id=_number(options, "batchId"),
            version=_number(options, "version"),
        )

    @property
    def log(self) -> DeltaLog:
        return DeltaLog(self.path, self.storage)


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is not None and not text.isdecimal():
        raise OptionInvalid(name, f"'{text}' is not a number", "give a whole number, 0 or more")
    return None if text is None else int(text)


class DeltaFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = DeltaOptions.read(self.options)
        table = options.log.open(options.version)
        if table is None:
            raise NotFound(f"there is no Delta table at {options.path}")
        return StructType.fromJson(json.loads(table.schema().to_json()))

    def reader(self, schema: StructType) -> DeltaReader:
        return DeltaReader(DeltaOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(DeltaOptions.read(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(DeltaOptions.read(self.options), schema, overwrite=overwrite)


class TableFiles(InputPartition):
    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = tuple(files)


class DeltaReader(DataSourceReader):
    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._matching: str | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Files are chosen by them; Spark still filters the rows."""
        known = [text for text in map(condition_of, filters) if text is not None]
        self._matching = " and ".join(known) or None
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        found: list[TableFiles] = []
        portion: list[DataFile] = []
        size = 0
        for each in options.log.files(version=options.version, matching=self._matching):
            portion.append(each)
            size += each.size_bytes
            if size >= TASK_BYTES:
                found.append(TableFiles(portion))
                portion, size = [], 0
        return [*found, TableFiles(portion)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TableFiles)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for each in partition.files:
            yield from read_batches(
                self._options.path, each.path, each.partition_values, schema, self._options.storage
            )


def condition_of(filter_: Filter) -> str | None:
    """A filter in the SQL that chooses files; None for one that can't choose any."""
    attribute: tuple[str, ...] = getattr(filter_, "attribute", ())
    if len(attribute) != 1:
        return None
    column = '"{}"'.format(attribute[0].replace('"', '""'))
    if isinstance(filter_, In):
        values = [_literal(value) for value in filter_.value]
        return f"{column} in ({', '.join(values)})" if all(values) else None  # type: ignore[arg-type]
    sign = _SIGNS.get(type(filter_))
    value = _literal(getattr(filter_, "value", None))
    return None if sign is None or value is None else f"{column} {sign} {value}"


def _literal(value: object) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return f"'{value.isoformat()}'"
    return None


class _Writer:
    def __init__(self, options: DeltaOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        options = self._options
        files = write_batches(iterator, options.path, options.partition_by, options.storage)
        task = TaskContext.get()
        query_id = (task.getLocalProperty(QUERY_ID) if task is not None else None) or ""
        return Written(tuple(files), query_id)

    def _commit(self, messages: Sequence[Any], app_id: str, batch_id: int) -> None:
        log, files = self._options.log, _files(messages)
        log.ensure(_optional(self._schema), self._options.partition_by, {})
        old = log.files() if self._overwrite else []
        done = None
        if files or old:
            done = log.commit(files, old, {app_id: batch_id}, once=app_id)
        if done is None:
            log.discard(files)

    def _discard(self, messages: Sequence[Any]) -> None:
        self._options.log.discard(_files(messages))


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        if any(messages):
            self._commit(messages, self._options.app_id or query_of(messages), batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._discard(messages)


class BatchWriter(_Writer, DataSourceArrowWriter):
    def commit(self, messages: Sequence[Any]) -> None:
        app_id = self._options.app_id or f"write-{uuid.uuid4()}"
        self._commit(messages, app_id, self._options.batch_id or 0)

    def abort(self, messages: Sequence[Any]) -> None:
        self._discard(messages)


def query_of(messages: Sequence[Any]) -> str:
    """The query whose tasks these were."""
    for each in messages:
        if each is not None and each.query_id:
            return str(each.query_id)
    # Without its id, another query's batches would pass for this one's.
    raise Conflict("Spark does not say which query a batch belongs to; set appId")


def _files(messages: Sequence[Any]) -> list[DataFile]:
    return [each for message in messages if message is not None for each in message.files]


def _optional(schema: StructType) -> str:
    from angarium.lake.tables import nullable

    return nullable(schema).json()
