"""The Spark format `redis-stream`: streams of Redis as rows, and rows as entries of a stream.

Reading, as a stream or at once:

| option | meaning |
|---|---|
| `url` | the server, as in `ANGARIUM_REDIS_URL` |
| `keys` | streams, joined by commas; `*`, `?` and `[…]` make one a pattern |
| `startingOffsets` | `earliest`, `latest`, or for each key the last id not to be read, as JSON |
| `endingOffsets` | reading at once only: `latest`, or for each key the last id to be read |
| `maxRowsPerBatch` | about how many rows a batch may have |
| `parallelism` | tasks that a large batch is divided into |
| `onGap` | `error`, or `count` to go on when entries were removed before they were read |
| `decode` | `fields`, or `journal` for Angarium's journal, one row for each event |
| `prefix`, `partitions` | with `journal` and no `keys`: the keyspace whose journals are read |
| `reader` | with `journal`: the name under which it is held until we have read it |
| `waitSeconds` | how long Redis may be away before a task fails |

    spark.readStream.format("redis-stream").option("url", …).option("keys", "orders").load()

An offset is the id of the last entry read of each key, so a batch can be read again and is the
same. The columns are `key`, `id`, `timestamp` and `fields`, or those of a schema: a column takes
the field of its name.

Writing is described in `sinks/redis_stream.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from angarium.lake.errors import OptionInvalid
from angarium.lake.sources import decode, journal
from angarium.lake.sources.entry_ids import text_of
from angarium.lake.sources.options import Decode, Gap, StreamOptions
from angarium.lake.sources.planning import Planner, Position, Range
from angarium.lake.sources.streams import pages
from angarium.redis.blocking import BlockingRedis
from angarium.redis.connection import Argument
from angarium.runtime.journal import COMMIT_READER

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Ranges(InputPartition):
    """What one task reads: parts of one stream or of several small ones."""

    ranges: tuple[Range, ...]


class RedisStreamFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return "redis-stream"

    def schema(self) -> str:
        return _own_schema(StreamOptions.read(self.options)) or decode.SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(StreamOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        return StreamReader(StreamOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from angarium.lake.sinks.redis_stream import BatchAppender, StreamTarget

        return BatchAppender(StreamTarget.read(self.options, overwrite=overwrite))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from angarium.lake.sinks.redis_stream import StreamAppender, StreamTarget

        return StreamAppender(StreamTarget.read(self.options, overwrite=overwrite))


class BatchReader(DataSourceReader):
    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        _check_schema(options, schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with self._options.connect() as redis:
            planner = Planner(self._options, redis)
            start = planner.starting()
            end = planner.ending(start)
            return [Ranges(tuple(each)) for each in planner.divide(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        _check_schema(options, schema)
        self._options = options
        self._schema = schema
        self._redis: BlockingRedis | None = None
        self._planner: Planner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        start = self._plan().starting()
        # Held before anything is read: what is trimmed from here on is behind us.
        self._register(dict.fromkeys(start.ids, ""))
        return start.offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.rows_max
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._plan().latest(Position.of(start, self._options), rows).offset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan().stop_at_present()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        first, last = (Position.of(each, self._options) for each in (start, end))
        return [Ranges(tuple(each)) for each in self._plan().divide(first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        ids = Position.of(end, self._options).ids
        self._register({key: text_of(number) for key, number in ids.items()})

    def stop(self) -> None:
        if self._redis is not None:
            self._redis.close()

    def _plan(self) -> Planner:
        if self._planner is None:
            self._redis = self._options.connect()
            self._planner = Planner(self._options, self._redis)
        return self._planner

    def _register(self, positions: Mapping[str, str]) -> None:
        """Tell each journal how far it is stored for good; it is trimmed behind the slowest."""
        if not self._options.reader:
            return
        self._plan()
        assert self._redis is not None
        for key, position in positions.items():
            # All three names differ in their ends alone (runtime/keys/runtime.py).
            names = [key, f"{key}:meta", f"{key}:readers"]
            args: list[Argument] = ["", "lake", 0, self._options.reader, position]
            self._redis.run(COMMIT_READER.script, names, args)

    def __getstate__(self) -> dict[str, Any]:
        """Sent to the executors: without the driver's connection."""
        return {**self.__dict__, "_redis": None, "_planner": None}


def _own_schema(options: StreamOptions) -> str | None:
    """The columns where the user can't choose them."""
    return journal.SCHEMA if options.decode is Decode.JOURNAL else None


def _check_schema(options: StreamOptions, schema: StructType) -> None:
    own = _own_schema(options)
    if own is not None and schema.fieldNames() != [part.split()[0] for part in own.split(", ")]:
        fix = "leave schema() out and select what you want"
        raise OptionInvalid("schema", "a journal has columns of its own", fix)


def _read(
    options: StreamOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Ranges):
        return  # Spark asks for one empty partition when there is none
    # A page is some hundred thousand small objects, none of them in a cycle: looking for cycles
    # among them would take a third of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield from _rows(options, to_arrow_schema(schema, timezone="UTC"), partition)
    finally:
        if collecting:
            gc.enable()


def _rows(options: StreamOptions, schema: pa.Schema, part: Ranges) -> Iterator[pa.RecordBatch]:
    decoder: decode.FieldsDecoder | journal.JournalDecoder = (
        journal.JournalDecoder(schema)
        if options.decode is Decode.JOURNAL
        else decode.FieldsDecoder(schema)
    )
    strict = options.gap is Gap.ERROR
    with options.connect() as redis:
        for each in part.ranges:
            ids = each.start, each.end, each.first
            for page in pages(redis, each.key, *ids, strict=strict):
                yield from decoder.decode(each.key, page)
