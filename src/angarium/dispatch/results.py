"""Converts the result of a worker function into the fields of a stream entry. Does no I/O.

A function returns a dict or None. For None the entry has `message_id` and `consumer_id` and no
further fields. Any other result is an error of that message alone. The check happens here, before
the result joins a batch: in the batch it would make the other results fail too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

# Lua passes a limited number of arguments to one command.
RESULT_FIELDS_MAX = 1_000
# Readers of the stream rely on these. A result's own field of this name is renamed.
RESERVED_FIELDS = frozenset({"message_id", "consumer_id"})

_encode = msgspec.json.Encoder().encode


def stream_fields(result: Any) -> tuple[list[bytes], int]:
    """The fields of the stream entry, and their approximate size in bytes.

    Text, bytes and integers are stored unchanged, all other values as JSON.
    """
    if result is None:
        return [], 0
    if type(result) is not dict and not isinstance(result, Mapping):
        raise TypeError(
            "a worker function returns a dict, or None for an empty result; this one returned "
            f"{type(result).__name__}"
        )
    if len(result) > RESULT_FIELDS_MAX:
        raise ValueError(f"a result has {len(result)} fields, {RESULT_FIELDS_MAX} are allowed")
    fields: list[bytes] = []
    size = 0
    for key, value in result.items():
        if not isinstance(key, str):
            raise TypeError(f"a result's keys are text, not {type(key).__name__}")
        # Text that can't be encoded fails here, before the result joins a batch.
        name = (f"result_{key}" if key in RESERVED_FIELDS else key).encode()
        fields.append(name)
        kind = type(value)
        if kind is str:
            text = value.encode()
        elif kind is int:
            text = b"%d" % value
        else:
            text = value if kind is bytes else _encode(value)
        fields.append(text)
        size += len(name) + len(text)
    return fields, size
