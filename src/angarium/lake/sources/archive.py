"""The Spark format `angarium-archive`: ended transactions, each once, to be stored for good.

| option | meaning |
|---|---|
| `url` | the server, as in `ANGARIUM_REDIS_URL` |
| `prefix`, `partitions` | the keyspace |
| `lock1Seconds`, `lock2Seconds` | the role's two windows, as in the settings of the module |
| `maxRowsPerBatch` | transactions of a batch, 2,000 unless given |
| `journalBytesMax` | as `ANGARIUM_JOURNAL__BYTES_MAX`; 0 if the journal is off |
| `waitSeconds` | how long Redis may be away before a task fails |

An offset names the transactions of its batch, so a batch can be read again and is the same. They
stay in Redis until the batch is stored: Spark asks for the next batch only then, and with that
question Redis is told. Whoever has the role by the module's two locks is given work, whether it
fills a database or the lake; a batch that has to be read again waits for the role first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from angarium.lake.errors import CheckpointMismatch, OptionInvalid
from angarium.lake.sources.archive_rows import SCHEMA, record_batch
from angarium.lake.sources.archive_store import ArchiveOptions, ArchiveStore
from angarium.redis.blocking import BlockingRedis
from angarium.runtime.errors import RedisUnavailable
from angarium.runtime.lease import GrantStatus

if TYPE_CHECKING:
    import pyarrow as pa

POLL_S = 0.5
WORKING = (GrantStatus.GRANTED, GrantStatus.WORKING)
# Beyond its expiry, a lock may take this long to be seen as gone on a busy machine.
LOCK_MARGIN_S = 30.0
IDS_PER_TASK_MIN = 500


@dataclass(frozen=True)
class Portion(InputPartition):
    partition: int
    ids: tuple[str, ...]


class ArchiveFormat(DataSource):
    @classmethod
    def name(cls) -> str:
        return "angarium-archive"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> ArchiveReader:  # noqa: N802
        return ArchiveReader(ArchiveOptions.read(self.options), schema)


class ArchiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ArchiveOptions, schema: StructType) -> None:
        if schema.fieldNames() != [part.split()[0] for part in SCHEMA.split(", ")]:
            fix = "leave schema() out and select what you want"
            raise OptionInvalid("schema", "the archive has columns of its own", fix)
        self._options = options
        self._schema = schema
        self._redis: BlockingRedis | None = None
        self._store: ArchiveStore | None = None
        self._handed: dict[str, Any] | None = None
        self._left: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"source": self._options.source, "batch": 0, "ids": {}}

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Spark asks for more when what it was given is stored: the same goes for us."""
        found = self._take(self._ids(start))
        if not found:
            return dict(start)
        if self._left is not None:
            self._left = max(0, self._left - sum(map(len, found.values())))
        batch = int(start["batch"]) + 1
        self._handed = {"source": self._options.source, "batch": batch, "ids": found}
        return self._handed

    def _take(self, done: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """More to store, by partition."""
        rows = self._options.rows_max
        if self._left is not None:
            rows = min(rows, self._left)
        # A share for each, so that a partition with much to do does not keep the others waiting.
        share = -(-rows // self._options.partitions)
        stored = {each: done.get(str(each), ()) for each in range(self._options.partitions)}
        answers = self._asking().ask(stored, share, "idle")
        return {
            str(partition): [each.id for each in answer.transactions]
            for partition, answer in answers.items()
            if answer.transactions
        }

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is on the list now may be taken; what comes later may not."""
        self._left = self._asking().waiting()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        ids = self._ids(end)
        if start == end or not ids:
            return []
        if end != self._handed:
            self._take_role([int(partition) for partition in ids])
        portions = []
        for partition, names in ids.items():
            for first in range(0, len(names), IDS_PER_TASK_MIN):
                part = tuple(names[first : first + IDS_PER_TASK_MIN])
                portions.append(Portion(int(partition), part))
        return portions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Portion):
            return
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        with self._options.connect() as redis:
            states = ArchiveStore(self._options, redis).states(partition.partition, partition.ids)
        # One that is gone was stored by another who had the role while we had not.
        there = [(id, state) for id, state in zip(partition.ids, states, strict=True) if state]
        yield record_batch(arrow, there)

    def commit(self, end: Mapping[str, Any]) -> None:
        if ids := self._ids(end):
            self._asking().ask({int(partition): some for partition, some in ids.items()}, 0)

    def stop(self) -> None:
        if self._redis is not None:
            self._redis.close()

    def _ids(self, offset: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
        if offset.get("source") != self._options.source:
            raise CheckpointMismatch(
                f"the checkpoint belongs to '{offset.get('source', 'another source')}', and this "
                f"query reads '{self._options.source}'; give each query a checkpointLocation of "
                "its own"
            )
        found: Mapping[str, Sequence[str]] = offset["ids"]
        return found

    def _take_role(self, partitions: Sequence[int]) -> None:
        """Wait until nobody else may be storing what we are about to read again."""
        give_up = time.monotonic() + self._options.lock2_s + LOCK_MARGIN_S
        none: Sequence[str] = ()
        while True:
            answers = self._asking().ask(dict.fromkeys(partitions, none), 0).values()
            if all(each.grant in WORKING for each in answers):
                return
            refused = any(each.grant is GrantStatus.REFUSED for each in answers)
            if refused and time.monotonic() >= give_up:
                raise RedisUnavailable("another archiver keeps the role beyond its locks")
            time.sleep(POLL_S)

    def _asking(self) -> ArchiveStore:
        if self._store is None:
            self._redis = self._options.connect()
            self._store = ArchiveStore(self._options, self._redis)
        return self._store

    def __getstate__(self) -> dict[str, Any]:
        """Sent to the executors: without the driver's connection."""
        return {**self.__dict__, "_redis": None, "_store": None}
