"""A transaction's state in Redis as a row of the archive. Pure.

`state` is the JSON that the transactions module itself writes to its archive and reads back; the
other columns are what is often asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from angarium.transactions.model import transaction_of

SCHEMA = (
    "id string, owner string, external_id string, pipeline string, version bigint, "
    "node_group string, status string, created_ms bigint, completed_ms bigint, state string"
)


def record_batch(
    schema: pa.Schema, states: Sequence[tuple[str, Mapping[bytes, bytes]]]
) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row_of(id, fields) for id, fields in states], schema)


def row_of(id: str, fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    found = transaction_of(id, fields)
    return {
        **msgspec.structs.asdict(found),
        "status": found.status.value,
        "completed_ms": found.completed_ms or found.updated_ms,
        "state": msgspec.json.encode(found).decode(),
    }
