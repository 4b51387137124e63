"""The nouns of the module: a queue's name, a message as it is stored and as clients get it. Pure.

Redis stores a message as one string, `sequence received_ms dids\\npayload`. The payload is never
changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

import msgspec

from angarium.runtime.errors import InputInvalid, LimitExceeded

# Lists of ids and DIDs are divided by spaces, so neither may contain one.
_WORD = re.compile(r"[^\s\x00-\x20\x7f]+")
_TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DEFAULT_TENANT = "default"
# First character of the ids that deduplicated_add.py derives. Ids of the gateway are hexadecimal.
DERIVED_ID_PREFIX = "r"
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


class StoredMessage(NamedTuple):
    """One message out of Redis or the database; `dids` are divided by spaces."""

    id: str
    sequence: int
    received_ms: int
    dids: str
    payload: bytes


class PushToken(msgspec.Struct, frozen=True):
    token: str
    type: str = "fcm"


def queue_name(tenant: str, connection_id: str) -> str:
    """Unique for each pair, because the name of a tenant has no colon."""
    return f"{tenant}:{connection_id}"


def connection_of(queue: str) -> str:
    return queue.partition(":")[2]


def is_tenant(name: str) -> bool:
    return _TENANT.fullmatch(name) is not None


def check_id(name: str, value: str, bytes_max: int) -> str:
    """The id or DID, unless it is empty, too long or contains a space."""
    if not value.isascii() or len(value) > bytes_max:
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > bytes_max:
            raise LimitExceeded(f"{name}: id_bytes_max", size, bytes_max)
    if _WORD.fullmatch(value) is None:
        raise InputInvalid(f"{name} must be a word without spaces")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputInvalid(f"{name} is not text") from None
    return value


def message_of(message_id: bytes, record: bytes) -> StoredMessage:
    header, _, payload = record.partition(b"\n")
    sequence, received_ms, dids = header.split(b" ", 2)
    return StoredMessage(
        message_id.decode(), int(sequence), int(received_ms), dids.decode(), payload
    )


def messages_of(fields: Sequence[bytes]) -> list[StoredMessage]:
    """Scripts return messages as pairs of id and record."""
    return [message_of(fields[at], fields[at + 1]) for at in range(0, len(fields), 2)]


def iso(received_ms: int) -> str:
    return f"{_second(received_ms // 1000)}.{received_ms % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def encode_message(message: StoredMessage) -> bytes:
    """As clients get it. Ids need no escaping in JSON."""
    payload = message.payload
    if message.id.startswith(DERIVED_ID_PREFIX) and not _is_json(payload):
        # Until 0.1.0 programs could store any bytes; those would break the page of the others.
        payload = b'null,"error":"the stored payload is not JSON"'
    return b'{"id":"%b","receivedAt":"%b","encryptedMessage":%b}' % (
        message.id.encode(),
        iso(message.received_ms).encode(),
        payload,
    )


def _is_json(payload: bytes) -> bool:
    try:
        _decode_raw(payload)
        payload.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True
