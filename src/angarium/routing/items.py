"""What stands in the queues, byte by byte. Pure: values to bytes and back.

Inbound and outbound items, and direct responses, are JSON with base64url payloads, as the
published plugin writes them. In our own layout an item begins with its id; in layout `acapy` it
has none, and the hash of its bytes stands in. Reading never raises anything but `ItemInvalid`.
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
# 5 s at first, then the same root of five more each time: 5, 7.5, 11.2, 16.7 and 25 s.
RETRY_DELAYS_MS = tuple(round(1000 * 5 ** (1 + 0.25 * n)) for n in range(5))


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a function decorated with `@app.inbox()` gets."""

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


class Outbound(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message for the deliverer; `retries` counts the attempts that failed."""

    id: str = ""  # first, where scripts look for it
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
_decode_outbound = msgspec.json.Decoder(Outbound, strict=False).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def encode_base64url(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL).decode()


def encode_inbound(
    payload: bytes, transport_type: str | None, txn_id: str | None, message_id: str = ""
) -> str:
    """By hand: payloads need no quoting, and this is done for each message."""
    # No blank behind the colons: it tells ours from what `json.dumps` writes.
    head = f'{{"id":"{message_id}",' if message_id else "{"
    text = f'{head}"payload":"{encode_base64url(payload)}"'
    if transport_type is not None:
        text += f',"transport_type":"{transport_type}"'
    if txn_id is not None:
        text += f',"txn_id":"{txn_id}"'
    return text + "}"


def id_of(item: bytes) -> str:
    """What `finish_messages` will know the item by: its id, or else the hash of its bytes."""
    found = _OWN_ID.match(item)
    if found is not None:
        return found[1].decode()
    return hashlib.sha1(item, usedforsecurity=False).hexdigest()


def decode_inbound(item: bytes, recip_key: str) -> Message:
    try:
        found = _decode_inbound(item)
        payload = decode_base64url(found.payload)
    except _UNREADABLE as error:
        raise ItemInvalid(f"not an inbound item: {error}") from None
    return Message(id_of(item), recip_key, payload, found.transport_type, found.txn_id)


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


def response_to(message: Message, answer: Any) -> DirectResponse | None:
    """What a handler returned, as an answer to a caller who waits; None when nobody does."""
    if message.txn_id is None or answer is None:
        return None
    if isinstance(answer, bytes):
        return DirectResponse(message.txn_id, "application/ssi-agent-wire", answer)
    if isinstance(answer, str):
        return DirectResponse(message.txn_id, "application/json", answer.encode())
    return DirectResponse(message.txn_id, "application/json", msgspec.json.encode(answer))


def new_outbound(
    url: str, payload: bytes, headers: Mapping[str, str] | None = None, message_id: str = ""
) -> Outbound:
    return Outbound(
        id=message_id,
        service=_Service(url),
        payload=encode_base64url(payload),
        headers=dict(headers or {}),
    )


def encode_outbound(item: Outbound) -> bytes:
    return msgspec.json.encode(item)


def decode_outbound(item: bytes) -> tuple[Outbound, bytes]:
    """The item and its payload."""
    try:
        found = _decode_outbound(item)
        payload = decode_base64url(found.payload)
    except _UNREADABLE as error:
        raise ItemInvalid(f"not an outbound item: {error}") from None
    return found, payload


def name_of(item: Outbound) -> str:
    """Its id, or for another writer's item a hash that its retries share."""
    if item.id:
        return item.id
    text = f"{item.url}\n{item.payload}"
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def retried(item: Outbound) -> Outbound:
    return msgspec.structs.replace(item, retries=item.failures + 1)
