"""Entries of a stream as rows: the fields as a map, or as columns of a schema the user gives.

Redis holds bytes and Spark wants types. A value that can't be read as its column's type becomes
null, as Spark does it with JSON; bytes that are no text are replaced in a text column and stay as
they are in a binary one. Pure: pages in, record batches out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from angarium.lake.sources.streams import Entry

KEY, ID, TIMESTAMP, FIELDS = "key", "id", "timestamp", "fields"
SCHEMA = "key string, id string, timestamp timestamp, fields map<string,string>"


class FieldsDecoder:
    """`schema` is Arrow's, as Spark expects it: names, types and all."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def decode(self, key: str, page: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        columns = [self._column(field, key, page) for field in self._schema]
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, field: pa.Field, key: str, page: Sequence[Entry]) -> pa.Array:
        if field.name == KEY:
            return pa.repeat(pa.scalar(key, pa.string()), len(page)).cast(field.type)
        if field.name == ID:
            return _texts([entry[0] for entry in page]).cast(field.type)
        if field.name == TIMESTAMP and pa.types.is_timestamp(field.type):
            found = [int(entry[0].partition(b"-")[0]) for entry in page]
            # Ids need not be times, and one that is none must not stop the others.
            times = [each if each < 1 << 47 else None for each in found]
            return pa.array(times, pa.timestamp("ms", "UTC")).cast(field.type)
        if field.name == FIELDS and pa.types.is_map(field.type):
            return _maps(field.type, page)
        name = field.name.encode()
        return _typed([_value(entry[1], name) for entry in page], field.type)


def _value(fields: Sequence[bytes], name: bytes) -> bytes | None:
    for index in range(0, len(fields), 2):
        if fields[index] == name:
            return fields[index + 1]
    return None


def _maps(kind: pa.MapType, page: Sequence[Entry]) -> pa.Array:
    offsets = [0]
    names: list[bytes] = []
    values: list[bytes] = []
    for _, fields in page:
        # A field may be there twice; a map has it once, and the last one counts.
        if len(set(fields[::2])) * 2 != len(fields):
            fields = [part for pair in _last_ones(fields) for part in pair]
        names += fields[::2]
        values += fields[1::2]
        offsets.append(len(names))
    items = _typed(values, kind.item_type)
    made = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), _texts(names), items)
    return made.cast(kind)


def _last_ones(fields: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    yield from dict(zip(fields[::2], fields[1::2], strict=True)).items()


def _texts(values: Sequence[bytes | None]) -> pa.Array:
    raw = pa.array(values, pa.binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if each is None else each.decode(errors="replace") for each in values],
            pa.string(),
        )


def _typed(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array(values, kind)
    texts = _texts(values)
    if pa.types.is_string(kind):
        return texts
    try:
        return _cast(texts, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([_one(each, kind) for each in texts], kind)


def _one(value: pa.Scalar, kind: pa.DataType) -> Any:
    try:
        return _cast(pa.array([value.as_py()], pa.string()), kind)[0].as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            # Without a zone it is in the session's, which we start as UTC.
            return pc.assume_timezone(texts.cast(pa.timestamp(kind.unit)), kind.tz)
    return texts.cast(kind)
