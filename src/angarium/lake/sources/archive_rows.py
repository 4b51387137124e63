"""A transaction's state in Redis as a row of the archive. Pure.

`state` is the JSON that the transactions module itself writes to its archive and reads back, as a
test checks; the other columns are what is often asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

SCHEMA = (
    "id string, owner string, external_id string, pipeline string, version bigint, "
    "node_group string, status string, created_ms bigint, completed_ms bigint, state string"
)
_RAW = (("data", b"data"), ("metadata", b"metadata"), ("progress", b"progress"),
        ("output", b"output"))  # fmt: skip
# Name in the archive → field in Redis, for what is left out when there is none.
_TEXTS = (
    ("external_id", b"externalId"), ("node", b"node"), ("parent", b"parent"), ("note", b"note"),
    ("webhook", b"webhook"), ("webhook_error", b"hookError"),
)  # fmt: skip
_NUMBERS = (
    ("completed_ms", b"completed"), ("notified_ms", b"notified"),
    ("children_left", b"childrenLeft"), ("webhook_delivered_ms", b"hookDelivered"),
    ("webhook_given_up_ms", b"hookGivenUp"),
)  # fmt: skip
# Left out when they are 0.
_COUNTS = (("step", b"step"), ("run", b"run"), ("webhook_tries", b"hookTries"))


def record_batch(
    schema: pa.Schema, states: Sequence[tuple[str, Mapping[bytes, bytes]]]
) -> pa.RecordBatch:
    rows = [row_of(id, fields) for id, fields in states]
    columns = [pa.array([row[name] for row in rows], schema.field(name).type) for name in
               schema.names]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def row_of(id: str, fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    state = state_of(id, fields)
    return {
        **{name: state.get(name) for name in (
            "id", "owner", "external_id", "pipeline", "version", "node_group", "status",
            "created_ms",
        )},
        "completed_ms": state.get("completed_ms", state["updated_ms"]),
        "state": msgspec.json.encode(state).decode(),
    }  # fmt: skip


def state_of(id: str, fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    group, pipeline, owner = fields[b"label"].decode().split("|")
    created_ms = int(fields[b"created"])
    completed_ms = int(fields.get(b"completed") or 0)
    touched = (int(fields.get(name) or created_ms) for name in (b"updated", b"taken"))
    state: dict[str, Any] = {
        "id": id,
        "status": fields[b"status"].decode(),
        "owner": owner,
        "pipeline": pipeline,
        "version": int(fields[b"version"]),
        "node_group": group,
        "created_ms": created_ms,
        "updated_ms": completed_ms or max(touched),
    }
    state |= {name: fields[field].decode() for name, field in _TEXTS if fields.get(field)}
    state |= {name: int(fields[field]) for name, field in _NUMBERS if fields.get(field)}
    state |= {name: int(fields[field]) for name, field in _COUNTS if int(fields.get(field) or 0)}
    state |= {name: msgspec.Raw(fields.get(field) or b"null") for name, field in _RAW}
    return state
