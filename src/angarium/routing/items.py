"""Encodes and decodes the items of the queues. Pure: values to bytes and back.

Inbound items, outbound items and direct responses are JSON with base64url payloads, as the
published plugin writes them. In layout `native` an item begins with its id. In layout `acapy` it
has no id, and the hash of its bytes is used instead. Decoding raises only `ItemInvalid`.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from angarium.routing.envelope import decode_base64url
from angarium.routing.errors import ItemInvalid

_OWN_ID = re.compile(rb'\{"id":"([0-9A-Za-z_-]*)"')
_TO_URL = bytes.maketrans(b"+/", b"-_")
# 5, 7.5, 11.2, 16.7 and 25 s: each is the one before times the fourth root of five.
RETRY_DELAYS_MS = tuple(round(1000 * 5 ** (1 + 0.25 * n)) for n in range(5))


class InboundMessage(msgspec.Struct, frozen=True, gc=False):
    """The argument of a function decorated with `@app.inbox()`."""

    id: str
    recip_key: str
    payload: bytes
    transport_type: str = "http"
    txn_id: str | None = None


class _Inbound(msgspec.Struct, gc=False):
    payload: str
    id: str = ""
    transport_type: str = "http"
    txn_id: str | None = None


class _ResponseData(msgspec.Struct, gc=False):
    response: str
    content_type: str = msgspec.field(name="content-type", default="application/json")


class _Response(msgspec.Struct, gc=False):
    txn_id: str
    response_data: _ResponseData


class DirectResponse(msgspec.Struct, frozen=True, gc=False):
    txn_id: str
    content_type: str
    body: bytes


class _Service(msgspec.Struct):
    url: str


class OutboundItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message for the deliverer; `retries` counts failed attempts."""

    id: str = ""  # the first field: scripts look for it there
    service: _Service
    payload: str
    headers: dict[str, Any] | None = None
    retries: int | None = None

    @property
    def url(self) -> str:
        return self.service.url

    @property
    def failures(self) -> int:
        return max(0, self.retries or 0)


_decode_inbound = msgspec.json.Decoder(_Inbound).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_outbound = msgspec.json.Decoder(OutboundItem, strict=False).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def encode_base64url(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL).decode()


def encode_inbound(
    payload: bytes, transport_type: str | None, txn_id: str | None, message_id: str = ""
) -> str:
    """Without a JSON encoder: payloads need no quoting, and this runs for each message."""
    # No blank after the colons: so scripts tell our items from those of `json.dumps`.
    head = f'{{"id":"{message_id}",' if message_id else "{"
    text = f'{head}"payload":"{encode_base64url(payload)}"'
    if transport_type is not None:
        text += f',"transport_type":"{transport_type}"'
    if txn_id is not None:
        text += f',"txn_id":"{txn_id}"'
    return text + "}"


def id_of(item: bytes) -> str:
    """The item's own id, or else the hash of its bytes; `finish_messages` computes the same."""
    found = _OWN_ID.match(item)
    if found is not None:
        return found[1].decode()
    return hashlib.sha1(item, usedforsecurity=False).hexdigest()


def decode_inbound(item: bytes, recip_key: str) -> InboundMessage:
    try:
        found = _decode_inbound(item)
        payload = decode_base64url(found.payload)
    except _UNREADABLE as error:
        raise ItemInvalid(f"not an inbound item: {error}") from None
    return InboundMessage(id_of(item), recip_key, payload, found.transport_type, found.txn_id)


def encode_response(response: DirectResponse) -> bytes:
    data = _ResponseData(encode_base64url(response.body), response.content_type)
    return msgspec.json.encode(_Response(response.txn_id, data))


def decode_response(item: bytes) -> DirectResponse:
    try:
        found = _decode_response(item)
        body = decode_base64url(found.response_data.response)
    except _UNREADABLE as error:
        raise ItemInvalid(f"not a direct response: {error}") from None
    return DirectResponse(found.txn_id, found.response_data.content_type, body)


def response_to(message: InboundMessage, answer: Any) -> DirectResponse | None:
    """A handler's result as the response to a waiting caller; None when no caller waits."""
    if message.txn_id is None or answer is None:
        return None
    if isinstance(answer, bytes):
        return DirectResponse(message.txn_id, "application/ssi-agent-wire", answer)
    if isinstance(answer, str):
        return DirectResponse(message.txn_id, "application/json", answer.encode())
    return DirectResponse(message.txn_id, "application/json", msgspec.json.encode(answer))


def new_outbound(
    url: str, payload: bytes, headers: Mapping[str, str] | None = None, message_id: str = ""
) -> OutboundItem:
    return OutboundItem(
        id=message_id,
        service=_Service(url),
        payload=encode_base64url(payload),
        headers=dict(headers or {}),
    )


def encode_outbound(item: OutboundItem) -> bytes:
    return msgspec.json.encode(item)


def decode_outbound(item: bytes) -> tuple[OutboundItem, bytes]:
    """The item and its payload."""
    try:
        found = _decode_outbound(item)
        payload = decode_base64url(found.payload)
    except _UNREADABLE as error:
        raise ItemInvalid(f"not an outbound item: {error}") from None
    return found, payload


def outbound_id(item: OutboundItem) -> str:
    """The item's id; for an item without one, a hash that stays the same over retries."""
    if item.id:
        return item.id
    text = f"{item.url}\n{item.payload}"
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def with_failure(item: OutboundItem) -> OutboundItem:
    return msgspec.structs.replace(item, retries=item.failures + 1)
