"""What each method takes, checked: raw JSON in, a struct out or `InputInvalid`. Pure.

The seed's names and those of shipped clients are both there. `recipient`, a DID, may stand
wherever a recipient is named; where a client names no connection, the recipient is the
connection, which is how clients that know recipients only are served. Members that are not
known here are ignored, because shipped clients send some.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from angarium.pickup.jsonrpc import DETAIL_CHARS_MAX
from angarium.pickup.model import check_word
from angarium.pickup.payload import check_payload
from angarium.runtime.errors import InputInvalid, LimitExceeded
from angarium.runtime.limits import Limits

# Other names of a method → the name it is known by here.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "addMessageToQueue": "addMessage",
        "addLiveModeSession": "addLiveSession",
        "removeLiveModeSession": "removeLiveSession",
    }
)
EVENTS = ("messagesReceived", "messageReceived")
# Each name is answered with some words, so many names would be a large answer.
EVENT_NAMES_MAX = 100


class Connection(msgspec.Struct, rename="camel"):
    """Every method but `ping` names a connection, or a recipient in its place."""

    connection_id: str | None = None
    recipient: str | None = None

    @property
    def connection(self) -> str:
        return self.connection_id or self.recipient or ""


class OfRecipient(Connection, rename="camel"):
    recipient_did: str | None = None

    @property
    def did(self) -> str:
        return self.recipient_did or self.recipient or ""


class Take(OfRecipient, rename="camel"):
    limit: int | None = None
    limit_bytes: int | None = None
    delete_messages: bool | None = None


class Count(OfRecipient):
    pass


class RemoveAll(OfRecipient):
    pass


class PushToken(msgspec.Struct):
    token: str
    type: str = "fcm"


class Add(Connection, rename="camel"):
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


class Remove(Connection, rename="camel"):
    message_ids: list[str] = msgspec.field(default_factory=list)


class Session(Connection, rename="camel"):
    session_id: str | None = None


_DECODERS = {
    kind: msgspec.json.Decoder(kind)
    for kind in (Connection, Take, Count, RemoveAll, Add, Remove, Session)
}


def read(kind: Any, params: bytes, limits: Limits) -> Any:
    """The params as `kind`, with its connection checked."""
    if params[:1] != b"{":
        raise InputInvalid("params must be an object")
    try:
        value = _DECODERS[kind].decode(params)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise InputInvalid(str(error)[:DETAIL_CHARS_MAX]) from None
    check_word("connectionId", value.connection, limits.id_bytes_max)
    return value


def read_take(params: bytes, limits: Limits) -> Take:
    take: Take = read(Take, params, limits)
    if take.did:
        check_word("recipientDid", take.did, limits.id_bytes_max)
    for name, value in (("limit", take.limit), ("limitBytes", take.limit_bytes)):
        if value is not None and value < 0:
            raise InputInvalid(f"{name} must not be negative")
    return take


def read_add(params: bytes, limits: Limits) -> Add:
    add: Add = read(Add, params, limits)
    dids = add.dids
    if not dids:
        raise InputInvalid("recipientDids must name a recipient")
    if len(dids) > limits.pickup_message_dids_max:
        raise LimitExceeded("pickup_message_dids_max", len(dids), limits.pickup_message_dids_max)
    for did in dids:
        check_word("recipientDids", did, limits.id_bytes_max)
    payload = add.payload
    size = len(bytes(payload))
    if size == 0 or bytes(payload) == b"null":
        raise InputInvalid("payload is missing")
    if size > limits.pickup_message_bytes_max:
        raise LimitExceeded("pickup_message_bytes_max", size, limits.pickup_message_bytes_max)
    check_payload(bytes(payload), limits.pickup_payload_levels_max)
    return add


def read_remove(params: bytes, limits: Limits) -> Remove:
    remove: Remove = read(Remove, params, limits)
    ids = remove.message_ids
    if b'"messageIds"' not in params:
        raise InputInvalid("messageIds is missing")
    if len(ids) > limits.pickup_remove_messages_max:
        raise LimitExceeded(
            "pickup_remove_messages_max", len(ids), limits.pickup_remove_messages_max
        )
    return remove


def read_of_recipient(kind: Any, params: bytes, limits: Limits) -> Any:
    value = read(kind, params, limits)
    if value.did:
        check_word("recipientDid", value.did, limits.id_bytes_max)
    elif kind is RemoveAll:
        raise InputInvalid("recipientDid is missing")
    return value


def read_session(params: bytes, limits: Limits, *, needs_id: bool) -> Session:
    session: Session = read(Session, params, limits)
    if session.session_id is not None:
        check_word("sessionId", session.session_id, limits.id_bytes_max)
    elif needs_id and session.recipient is None:
        raise InputInvalid("sessionId is missing")
    return session


def read_events(params: bytes) -> list[str]:
    """The names of events, as `rpc.on` and `rpc.off` list them."""
    try:
        names = msgspec.json.decode(params, type=list[str])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InputInvalid("params must be a list of event names") from None
    if len(names) > EVENT_NAMES_MAX:
        raise InputInvalid(f"params name more than {EVENT_NAMES_MAX} events")
    return names
