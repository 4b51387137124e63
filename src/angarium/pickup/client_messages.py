"""Decodes messages for the clients of the gateway, one by one. Pure.

A page is decoded without its payloads, then each payload alone. If a payload can't be read, its
message has an `error` and an id, so the caller can remove it; the other messages are not affected.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class QueuedMessage(msgspec.Struct, frozen=True, rename="camel"):
    """`raw` is the undecoded payload. If it can't be read, `encrypted_message` is None and
    `error` is the reason. The message stays in the queue until it is removed."""

    id: str
    received_at: datetime
    encrypted_message: Any
    error: str | None = None
    raw: bytes = b""


class Delivery(msgspec.Struct, frozen=True, rename="camel"):
    """Messages of a live session, oldest first."""

    connection_id: str
    messages: list[QueuedMessage] = msgspec.field(default_factory=list)


class _WireMessage(msgspec.Struct, rename="camel"):
    id: str
    received_at: datetime
    encrypted_message: msgspec.Raw = msgspec.Raw()
    error: str | None = None


class _DeliveryParams(msgspec.Struct, rename="camel"):
    connection_id: str
    messages: list[_WireMessage] = msgspec.field(default_factory=list)
    message: _WireMessage | None = None


_decode_page = msgspec.json.Decoder(list[_WireMessage]).decode
_decode_params = msgspec.json.Decoder(_DeliveryParams).decode
_decode_payload = msgspec.json.Decoder().decode


def read_page(data: bytes) -> list[QueuedMessage]:
    """The result of `takeFromQueue`."""
    return [_read(each) for each in _decode_page(data)]


def read_delivery(data: bytes) -> Delivery:
    """The params of `messagesReceived` and `messageReceived`."""
    params = _decode_params(data)
    received = params.messages if params.message is None else [params.message]
    return Delivery(params.connection_id, [_read(each) for each in received])


def _read(received: _WireMessage) -> QueuedMessage:
    raw, error, value = bytes(received.encrypted_message), received.error, None
    if error is None:
        try:
            value = _decode_payload(raw)
        except UNREADABLE as problem:
            error = f"the payload can't be read: {problem}"
    return QueuedMessage(received.id, received.received_at, value, error, raw)
