"""Parameters of each JSON-RPC method: reads raw JSON, returns a checked struct. Pure.

Parameters by position follow the order of the protocol page. `recipient` is a DID that may replace
`recipientDid`. If a call names no connection, the recipient is also the connection, and messages of
other connections that name the recipient are meant too. Unknown members are ignored, because
shipped clients send some.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from angarium.pickup.limits import PickupLimits
from angarium.pickup.model import PushToken, check_id
from angarium.pickup.payload import DETAIL_CHARS_MAX, check_payload
from angarium.runtime.errors import InputInvalid, LimitExceeded

EVENTS = ("messagesReceived", "messageReceived")
# The answer repeats every name, so many names would make a large answer.
EVENT_NAMES_MAX = 100


class ConnectionParams(msgspec.Struct, rename="camel"):
    """Of every method but `ping`."""

    connection_id: str | None = None
    recipient: str | None = None

    @property
    def connection(self) -> str:
        return self.connection_id or self.recipient or ""

    @property
    def by_did(self) -> bool:
        """The caller named a recipient and no connection: all connections are meant."""
        return not self.connection_id


class RecipientParams(ConnectionParams, rename="camel"):
    recipient_did: str | None = None

    @property
    def did(self) -> str:
        return self.recipient_did or self.recipient or ""


class TakeParams(RecipientParams, rename="camel"):
    limit: int | None = None
    limit_bytes: int | None = None
    delete_messages: bool | None = None


class AddParams(ConnectionParams, rename="camel"):
    payload: msgspec.Raw = msgspec.Raw()
    recipient_dids: list[str] | None = None
    push_notification_token: PushToken | None = None
    token: str | None = None
    notification_uri: str | None = None

    @property
    def dids(self) -> list[str]:
        if self.recipient_dids is None:
            return [self.recipient] if self.recipient else []
        return self.recipient_dids

    @property
    def push_token(self) -> PushToken | None:
        if self.push_notification_token is None and self.token:
            return PushToken(self.token)
        return self.push_notification_token


class RemoveParams(ConnectionParams, rename="camel"):
    message_ids: list[str] | None = None


class SessionParams(ConnectionParams, rename="camel"):
    session_id: str | None = None


_DECODERS = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        ConnectionParams,
        RecipientParams,
        TakeParams,
        AddParams,
        RemoveParams,
        SessionParams,
    )
}


_CONNECTION = ("connectionId",)
_POSITIONS: Mapping[Any, tuple[str, ...]] = MappingProxyType(
    {
        ConnectionParams: _CONNECTION,
        RecipientParams: (*_CONNECTION, "recipientDid"),
        TakeParams: (*_CONNECTION, "recipientDid", "limit", "limitBytes", "deleteMessages"),
        AddParams: (*_CONNECTION, "recipientDids", "payload", "pushNotificationToken"),
        RemoveParams: (*_CONNECTION, "messageIds"),
        SessionParams: (*_CONNECTION, "sessionId"),
    }
)
# Calls of the seed that name a recipient only, by their number of parameters.
_TO_RECIPIENT = ("recipient", "payload")
_SEED_POSITIONS: Mapping[tuple[Any, int], tuple[str, ...]] = MappingProxyType(
    {(AddParams, 2): _TO_RECIPIENT, (SessionParams, 1): ("recipient",)}
)
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _is_text(value: msgspec.Raw) -> bool:
    return bytes(value)[:1] == b'"'


def _by_name(kind: Any, params: bytes) -> bytes:
    """Params by position as an object."""
    values = _decode_list(params)
    names = _SEED_POSITIONS.get((kind, len(values)), _POSITIONS[kind])
    if names == _TO_RECIPIENT and not _is_text(values[0]) and _is_text(values[1]):
        # The seed has both orders. A recipient is a text, so here the message is the first one.
        names = names[::-1]
    if len(values) > len(names):
        raise InputInvalid(f"params are more than {len(names)}: {', '.join(names)}")
    named = zip(names, values, strict=False)  # the last ones may be left out
    pairs = (b'"%b":%b' % (name.encode(), bytes(value)) for name, value in named)
    return b"{" + b",".join(pairs) + b"}"


def read(kind: Any, params: bytes, limits: PickupLimits) -> Any:
    """The params as `kind`; the connection is checked."""
    if not params:
        raise InputInvalid("params are missing")
    try:
        if params[:1] == b"[":
            params = _by_name(kind, params)
        value = _DECODERS[kind].decode(params)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise InputInvalid(str(error)[:DETAIL_CHARS_MAX]) from None
    check_id("connectionId", value.connection, limits.id_bytes_max)
    return value


def read_take(params: bytes, limits: PickupLimits) -> TakeParams:
    take: TakeParams = read(TakeParams, params, limits)
    if take.did:
        check_id("recipientDid", take.did, limits.id_bytes_max)
    for name, value in (("limit", take.limit), ("limitBytes", take.limit_bytes)):
        if value is not None and value < 0:
            raise InputInvalid(f"{name} must not be negative")
    return take


def read_add(params: bytes, limits: PickupLimits) -> AddParams:
    add: AddParams = read(AddParams, params, limits)
    dids = add.dids
    if not dids:
        raise InputInvalid("recipientDids must name a recipient")
    if len(dids) > limits.pickup_message_dids_max:
        raise LimitExceeded("pickup_message_dids_max", len(dids), limits.pickup_message_dids_max)
    for did in dids:
        check_id("recipientDids", did, limits.id_bytes_max)
    payload = add.payload
    size = len(bytes(payload))
    if size == 0 or bytes(payload) == b"null":
        raise InputInvalid("payload is missing")
    if size > limits.pickup_message_bytes_max:
        raise LimitExceeded("pickup_message_bytes_max", size, limits.pickup_message_bytes_max)
    check_payload(bytes(payload), limits.pickup_payload_levels_max)
    return add


def read_remove(params: bytes, limits: PickupLimits) -> RemoveParams:
    remove: RemoveParams = read(RemoveParams, params, limits)
    ids = remove.message_ids
    if ids is None:
        raise InputInvalid("messageIds is missing")
    if len(ids) > limits.pickup_remove_messages_max:
        raise LimitExceeded(
            "pickup_remove_messages_max", len(ids), limits.pickup_remove_messages_max
        )
    return remove


def read_recipient(params: bytes, limits: PickupLimits, *, needs_did: bool) -> RecipientParams:
    value: RecipientParams = read(RecipientParams, params, limits)
    if value.did:
        check_id("recipientDid", value.did, limits.id_bytes_max)
    elif needs_did:
        raise InputInvalid("recipientDid is missing")
    return value


def read_session(params: bytes, limits: PickupLimits, *, needs_id: bool) -> SessionParams:
    session: SessionParams = read(SessionParams, params, limits)
    if session.session_id is not None:
        check_id("sessionId", session.session_id, limits.id_bytes_max)
    elif needs_id and session.recipient is None:
        raise InputInvalid("sessionId is missing")
    return session


def read_events(params: bytes) -> list[str]:
    """The event names in the params of `rpc.on` and `rpc.off`."""
    try:
        names = msgspec.json.decode(params, type=list[str])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InputInvalid("params must be a list of event names") from None
    if len(names) > EVENT_NAMES_MAX:
        raise InputInvalid(f"params name more than {EVENT_NAMES_MAX} events")
    return names
