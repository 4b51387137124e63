"""The nouns of the module: a queue's name, a message as it is kept and as it is told. Pure.

A message is kept as one string: `sequence received_ms dids\\npayload`, the payload being the very
bytes that came in.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

import msgspec

from angarium.runtime.errors import InputInvalid, LimitExceeded

# A space or a control character would break the lists that ids and DIDs are kept in.
_WORD = re.compile(r"[^\s\x00-\x20\x7f]+")
_TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DEFAULT_TENANT = "default"
# Begins the ids of messages that programs put in by themselves (letterbox.py); those that the
# gateway gives are hexadecimal.
LETTER_MARK = "r"
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


class Message(NamedTuple):
    """One message out of Redis or the database."""

    id: str
    sequence: int
    received_ms: int
    dids: str
    payload: bytes


def queue_name(tenant: str, connection_id: str) -> str:
    """A tenant has no colon in its name, so two tenants can't meet in one queue."""
    return f"{tenant}:{connection_id}"


def connection_of(queue: str) -> str:
    return queue.partition(":")[2]


def is_tenant(name: str) -> bool:
    return _TENANT.fullmatch(name) is not None


def check_word(name: str, value: str, bytes_max: int) -> str:
    """An id or a DID: not empty, not too long, without spaces."""
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


def message_of(message_id: bytes, record: bytes) -> Message:
    header, _, payload = record.partition(b"\n")
    sequence, received_ms, dids = header.split(b" ", 2)
    return Message(message_id.decode(), int(sequence), int(received_ms), dids.decode(), payload)


def iso(received_ms: int) -> str:
    return f"{_second(received_ms // 1000)}.{received_ms % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def encode_message(message: Message) -> bytes:
    """As clients get it. An id is ours, and holds nothing that JSON would have to escape."""
    payload = message.payload
    if message.id.startswith(LETTER_MARK) and not _is_json(payload):
        # Programs could store any bytes until 0.1.0; they would break the page of all the others.
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
