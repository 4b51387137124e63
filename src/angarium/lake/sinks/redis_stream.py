"""Writing with the Spark format `redis-stream`: rows become entries of one stream, each once.

| option | meaning |
|---|---|
| `url` | the server, as in `ANGARIUM_REDIS_URL` |
| `key` | the stream; also the argument of `save` and `start` |
| `maxLength` | entries the stream keeps, about; all of them unless given |
| `appId` | who writes; the query's id unless given |
| `batchId` | batch writes only: with `appId`, a write that is repeated is made once |
| `waitSeconds` | how long Redis may be away before a task fails |

    orders.writeStream.format("redis-stream").option("url", …).start("messages:enriched")

Executors put their rows on lists of their own; the driver then names the lists of the batch, once
and for all, and moves them to the stream in steps that each take rows off a list and make them
entries. So a batch may die anywhere and be repeated, even if Spark puts other rows into other
tasks the next time: what counts are the lists that were named first.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from angarium.lake.errors import OptionInvalid, RowsMissing
from angarium.lake.sinks.delta_format import QUERY_ID, query_of
from angarium.lake.sources.options import (
    WAIT_S_MAX,
    check_names,
    connect_to_redis,
    positive,
    required,
)
from angarium.redis.blocking import BlockingRedis
from angarium.redis.cluster import slot_of
from angarium.runtime.errors import InputInvalid
from angarium.runtime.transition import Transition

if TYPE_CHECKING:
    import pyarrow as pa


class StagedChunk(NamedTuple):
    number: int
    expiry_ms: int
    chunk: bytes


class StagedList(NamedTuple):
    """An item that is a key and nothing else."""


class BatchNumber(NamedTuple):
    batch: int


class AppendedRows(NamedTuple):
    batch: int
    chunks_max: int
    length_max: int


class BatchLists(NamedTuple):
    lists: list[str]


class RowsMoved(NamedTuple):
    rows: int
    left: int


class RowsLeft(NamedTuple):
    list: str


# The keys are beside the user's stream, so none of them has a name in a manifest.
STAGE_ROWS: Transition[Any] = Transition(
    "angarium.lake",
    "stage_rows",
    keys={"staged": None},
    args=StagedChunk,
    replies={"staged": None, "already": None, "missing": None},
    journalled=False,
)
BEGIN_APPEND: Transition[StagedList] = Transition(
    "angarium.lake",
    "begin_append",
    keys={"writer": None},
    args=BatchNumber,
    item=StagedList,
    item_keys={"staged": None},
    replies={
        "begun": BatchLists,
        "resumed": BatchLists,
        "already": None,
        "unfinished": BatchNumber,
    },
    one_reply=True,
    journalled=False,
)
APPEND_ROWS: Transition[Any] = Transition(
    "angarium.lake",
    "append_rows",
    keys={"stream": None, "writer": None, "staged": None},
    args=AppendedRows,
    replies={"appended": RowsMoved, "closed": None},
    journalled=False,
)
END_APPEND: Transition[StagedList] = Transition(
    "angarium.lake",
    "end_append",
    keys={"writer": None},
    args=BatchNumber,
    item=StagedList,
    item_keys={"staged": None},
    replies={"committed": None, "already": None, "left": RowsLeft},
    one_reply=True,
    journalled=False,
)

# A chunk is what one step moves: a script must not hold up Redis for more than a few ms.
CHUNK_ROWS_MAX = 500
CHUNK_BYTES_AIM = 256 << 10
# Lists of a task that died. A batch that was named keeps its lists for as long as it needs.
STAGED_MS = 24 * 3_600_000
# What Lua can hand to one command, with a margin.
FIELDS_MAX = 1_000
MAP, POSITIONS = "fields", ("key", "id", "timestamp")


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    list: str
    rows: int
    query_id: str


@dataclass(frozen=True)
class StreamTarget:
    url: str
    key: str
    length_max: int
    app_id: str
    batch_id: int | None
    wait_s: float

    @classmethod
    def read(cls, options: Mapping[str, str], *, overwrite: bool) -> StreamTarget:
        given = {name: value for name, value in options.items() if name != "checkpointlocation"}
        check_names(given)
        if overwrite:
            raise OptionInvalid("mode", "a stream can't be overwritten", "use append")
        key = options.get("key") or options.get("path") or ""
        if not key:
            raise OptionInvalid("key", "no stream is named", "give it to save() or start()")
        number = options.get("batchId")
        if number is not None and not number.isdecimal():
            raise OptionInvalid("batchId", f"'{number}' is not a number", "count your writes up")
        return cls(
            url=required(options, "url", "set it to redis://host:6379 or the like"),
            key=key,
            length_max=positive(options, "maxLength") or 0,
            app_id=options.get("appId", ""),
            batch_id=None if number is None else int(number),
            wait_s=float(positive(options, "waitSeconds") or WAIT_S_MAX),
        )

    def beside(self, name: str) -> str:
        """A key of ours that is in the stream's slot, so that one script may touch both."""
        opening = self.key.find("{")
        closing = self.key.find("}", opening + 1) if opening >= 0 else -1
        tagged = closing > opening + 1
        made = (
            f"{self.key[opening : closing + 1]}:lake:{self.key}:{name}"
            if tagged
            else f"{{{self.key}}}:lake:{name}"
        )
        if "+cluster" in self.url and slot_of(made) != slot_of(self.key):
            problem = f"'{self.key}' has a brace that no other key can share a slot with"
            raise OptionInvalid("key", problem, "use a name without it, or with a {tag}")
        return made


class StreamAppender(DataSourceStreamArrowWriter):
    def __init__(self, target: StreamTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _stage(self._target, iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        if any(messages):
            _append(self._target, messages, self._target.app_id or query_of(messages), batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        _drop(self._target, messages)


class BatchAppender(DataSourceArrowWriter):
    def __init__(self, target: StreamTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _stage(self._target, iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        target = self._target
        _append(target, messages, target.app_id or f"write-{uuid.uuid4()}", target.batch_id or 0)

    def abort(self, messages: Sequence[Any]) -> None:
        _drop(self._target, messages)


def _stage(target: StreamTarget, batches: Iterator[pa.RecordBatch]) -> Staged:
    """On an executor: rows of one task, on a list that only this try of it knows."""
    name = target.beside(f"staged:{uuid.uuid4()}")
    rows = 0
    with connect_to_redis(target.url, target.wait_s) as redis:
        for number, chunk in enumerate(_chunks(batches)):
            staged = StagedChunk(number, STAGED_MS, packed(chunk))
            if run_transition(redis, STAGE_ROWS, [name], staged) == "missing":
                raise RowsMissing(f"rows staged for '{target.key}' are gone from Redis")
            rows += len(chunk)
    task = TaskContext.get()
    query_id = (task.getLocalProperty(QUERY_ID) if task is not None else None) or ""
    return Staged(name if rows else "", rows, query_id)


def _append(target: StreamTarget, messages: Sequence[Any], app_id: str, batch_id: int) -> None:
    """On the driver: the lists of a batch into the stream."""
    lists = [each.list for each in messages if each is not None and each.list]
    writer = target.beside(f"writer:{app_id}")
    with connect_to_redis(target.url, target.wait_s) as redis:
        number = BatchNumber(batch_id)
        begun = run_transition(redis, BEGIN_APPEND, [writer, *lists], number)
        if isinstance(begun, BatchNumber):
            raise RowsMissing(
                f"batch {begun.batch} of '{app_id}' was begun and not finished in "
                f"'{target.key}', and this is batch {batch_id}; use another checkpoint"
            )
        named = begun.lists if isinstance(begun, BatchLists) else []
        for each in named:
            left = 1
            while left:
                # One chunk at a time: others may want Redis too.
                names, args = (
                    [target.key, writer, each],
                    AppendedRows(batch_id, 1, target.length_max),
                )
                moved = run_transition(redis, APPEND_ROWS, names, args)
                left = moved.left if isinstance(moved, RowsMoved) else 0
        if begun != "already":
            run_transition(redis, END_APPEND, [writer, *named], number)
        _delete(redis, [each for each in lists if each not in named])


def run_transition(
    redis: BlockingRedis, transition: Transition[Any], names: list[str], args: tuple[Any, ...]
) -> Any:
    """`names` are the keys of the call; those past the declared ones are its staged lists."""
    lists = [StagedList()] * (len(names) - len(transition.keys))
    values = transition.arguments(args, lists)
    return transition.decode(redis.run(transition.script, names, values))


def _drop(target: StreamTarget, messages: Sequence[Any]) -> None:
    lists = [each.list for each in messages if each is not None and each.list]
    with connect_to_redis(target.url, target.wait_s) as redis:
        _delete(redis, lists)


def _delete(redis: BlockingRedis, lists: Sequence[str]) -> None:
    for each in lists:
        redis.call("UNLINK", each, key=each)


def packed(chunk: Sequence[Sequence[bytes]]) -> bytes:
    """MessagePack as Redis' Lua reads it: its bytes are what others call text."""
    parts = [b"\xdd", len(chunk).to_bytes(4, "big")]
    for fields in chunk:
        parts += (b"\xdd", len(fields).to_bytes(4, "big"))
        for each in fields:
            parts += (b"\xdb", len(each).to_bytes(4, "big"), each)
    return b"".join(parts)


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[list[list[bytes]]]:
    chunk: list[list[bytes]] = []
    size_bytes = 0
    for batch in batches:
        for fields in entries_of(batch):
            chunk.append(fields)
            size_bytes += sum(map(len, fields))
            if len(chunk) >= CHUNK_ROWS_MAX or size_bytes >= CHUNK_BYTES_AIM:
                yield chunk
                chunk, size_bytes = [], 0
    if chunk:
        yield chunk


def entries_of(batch: pa.RecordBatch) -> Iterator[list[bytes]]:
    """Names and values of each row: a column is a field, a map `fields` is several.

    Where there is such a map, `key`, `id` and `timestamp` are where the row came from and not
    part of it. What is null is left out.
    """
    import pyarrow as pa

    names = batch.schema.names
    mapped = MAP in names and pa.types.is_map(batch.schema.field(MAP).type)
    plain = [name for name in names if not (mapped and name in (MAP, *POSITIONS))]
    columns = [(name.encode(), batch.column(name).to_pylist()) for name in plain]
    maps = batch.column(MAP).to_pylist() if mapped else [None] * batch.num_rows
    for index in range(batch.num_rows):
        fields: list[bytes] = []
        for name, value in maps[index] or ():
            if value is not None:
                fields += (_bytes(name), _bytes(value))
        for encoded, values in columns:
            if values[index] is not None:
                fields += (encoded, _bytes(values[index]))
        if not fields:
            raise InputInvalid("a row without any value can't be an entry of a stream")
        if len(fields) > FIELDS_MAX:
            raise InputInvalid(
                f"a row has {len(fields) // 2} fields, {FIELDS_MAX // 2} are allowed"
            )
        yield fields


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return repr(value).encode()
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=str, separators=(",", ":")).encode()
    return (value.isoformat() if hasattr(value, "isoformat") else str(value)).encode()
