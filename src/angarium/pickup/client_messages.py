"""Messages as a client of the gateway reads them: each by itself. Pure.

A page is decoded without looking into payloads, then each payload alone. One that can't be read is
a message with an `error`; it has its id, so it can be removed, and the others are not affected.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class QueuedMessage(msgspec.Struct, frozen=True, rename="camel"):
    """`raw` is the payload as it came. If it can't be read, `encrypted_message` is None and
    `error` says why; it stays in the queue until it is removed, like any other."""

    id: str
    received_at: datetime
    encrypted_message: Any
    error: str | None = None
    raw: bytes = b""


class Delivery(msgspec.Struct, frozen=True, rename="camel"):
    """What a live session brought: oldest first."""

    connection_id: str
    messages: list[QueuedMessage] = msgspec.field(default_factory=list)


class _Received(msgspec.Struct, rename="camel"):
    id: str
    received_at: datetime
    encrypted_message: msgspec.Raw = msgspec.Raw()
    error: str | None = None


class _Params(msgspec.Struct, rename="camel"):
    connection_id: str
    messages: list[_Received] = msgspec.field(default_factory=list)
    message: _Received | None = None


_decode_page = msgspec.json.Decoder(list[_Received]).decode
_decode_params = msgspec.json.Decoder(_Params).decode
_decode_payload = msgspec.json.Decoder().decode


def read_page(data: bytes) -> list[QueuedMessage]:
    """The result of `takeFromQueue`."""
    return [_read(each) for each in _decode_page(data)]


def read_delivery(data: bytes) -> Delivery:
    """The params of `messagesReceived` and `messageReceived`."""
    params = _decode_params(data)
    received = params.messages if params.message is None else [params.message]
    return Delivery(params.connection_id, [_read(each) for each in received])


def _read(received: _Received) -> QueuedMessage:
    raw, error, value = bytes(received.encrypted_message), received.error, None
    if error is None:
        try:
            value = _decode_payload(raw)
        except UNREADABLE as problem:
            error = f"the payload can't be read: {problem}"
    return QueuedMessage(received.id, received.received_at, value, error, raw)
