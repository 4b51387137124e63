"""A worker function's result as the fields of a stream entry. Pure: values in, bytes out.

A function returns a dict, or None when there is nothing to say: the entry then has `message_id`
and `consumer_id` and no further fields. Anything else is refused, as a failure of that message
alone: in a batch with other results it would make those fail too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from angarium.redis.connection import Argument

# A script can pass on only so many arguments at once; a result this wide is not one message.
RESULT_FIELDS_MAX = 1_000
# Ours, so that whoever reads the stream can rely on them; a result's own move aside.
RESERVED_FIELDS = frozenset({"message_id", "consumer_id"})

_encode = msgspec.json.Encoder().encode


def fields_of(result: Any) -> tuple[list[Argument], int]:
    """A result as fields of a stream entry, and their size in bytes, about.

    Text and numbers stand as they are, the rest as JSON.
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
    fields: list[Argument] = []
    size = 0
    for key, value in result.items():
        if not isinstance(key, str):
            raise TypeError(f"a result's keys are text, not {type(key).__name__}")
        # Encoded here, so that text that can't be is this message's fault and no other's.
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
