"""Reads the recipient key of a DIDComm envelope. Pure: bytes in, a recipient key out.

Version 1 names the recipients inside the `protected` header, version 2 beside it; neither is
encrypted. Several recipients make one key, joined by commas. Reading raises `EnvelopeInvalid` or
`LimitExceeded`, and no other error for any bytes.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass

import msgspec

from angarium.routing.errors import EnvelopeInvalid
from angarium.runtime.errors import LimitExceeded

# The list of this key would be the list of the direct responses.
RESERVED = frozenset({"direct_resp"})
_FROM_URL = bytes.maketrans(b"-_", b"+/")


class _Header(msgspec.Struct, gc=False):
    kid: str


class _Recipient(msgspec.Struct, gc=False):
    header: _Header


class _Protected(msgspec.Struct, gc=False):
    recipients: list[_Recipient] | None = None


class _Transport(msgspec.Struct, gc=False):
    return_route: str | None = None


class _Envelope(msgspec.Struct, gc=False):
    protected: str
    recipients: list[_Recipient] | None = None
    transport: _Transport | None = msgspec.field(name="~transport", default=None)


@dataclass(frozen=True, slots=True)
class Envelope:
    """`wants_response`: the sender keeps its connection open for an answer."""

    recip_key: str
    wants_response: bool


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_protected = msgspec.json.Decoder(_Protected).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def read_envelope(body: bytes, recip_key_bytes_max: int) -> Envelope:
    try:
        outer = _decode_envelope(body)
    except _UNREADABLE as error:
        raise EnvelopeInvalid(f"the body is not a DIDComm envelope: {error}") from None
    recipients = _inner_recipients(outer.protected) or outer.recipients
    if not recipients:
        raise EnvelopeInvalid("the envelope has no recipients")
    key = ",".join([each.header.kid for each in recipients])
    size = len(key.encode())
    if size > recip_key_bytes_max:
        raise LimitExceeded("recip_key_bytes_max", size, recip_key_bytes_max)
    if not key.isprintable() or not all(each.header.kid for each in recipients):
        raise EnvelopeInvalid("a recipient's kid is empty or can't be printed")
    if key in RESERVED:
        raise EnvelopeInvalid(f"{key!r} can't be a recipient key")
    route = outer.transport.return_route if outer.transport is not None else None
    return Envelope(key, route is not None and route != "none")


def _inner_recipients(protected: str) -> list[_Recipient] | None:
    try:
        header = decode_base64url(protected)
    except ValueError as error:
        raise EnvelopeInvalid(f"`protected` is not base64url: {error}") from None
    try:
        return _decode_protected(header).recipients
    except _UNREADABLE as error:
        raise EnvelopeInvalid(f"`protected` is not a header: {error}") from None


def decode_base64url(text: str) -> bytes:
    """With or without padding. Raises ValueError."""
    data = text.encode("ascii").translate(_FROM_URL).rstrip(b"=")
    return binascii.a2b_base64(data + b"=" * (-len(data) % 4), strict_mode=True)
