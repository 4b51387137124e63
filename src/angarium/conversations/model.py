"""Requests and replies: their states, ids and stored fields.

Field names are those of the stored hashes. `TRANSITIONS` is the whole state machine: a property
test checks that the scripts make no other transition. Pure: values only, no I/O.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from angarium.runtime.errors import InputInvalid


class RequestStatus(StrEnum):
    WAITING = "WAITING"  # no reply yet
    PENDING = "PENDING"  # at least one reply


class ResponseStatus(StrEnum):
    WAITING = "WAITING"  # accepted, not taken by a process yet
    PENDING = "PENDING"  # a process holds it and tries to send it
    SENT = "SENT"  # sent; waits for its ACK
    AWAITED = "AWAITED"  # could not be sent; will be tried again
    CANCEL = "CANCEL"  # its group failed permanently: removed


GONE = "gone"
"""Delivered or expired: Redis stores nothing of the reply."""

# None: not accepted yet. CANCEL and GONE: removed, with one terminal event in the journal.
_END = frozenset({ResponseStatus.CANCEL, GONE})
TRANSITIONS: Mapping[str | None, frozenset[str]] = MappingProxyType(
    {
        None: frozenset({ResponseStatus.WAITING, ResponseStatus.PENDING}),
        # To AWAITED without being held: another reply of the same request failed.
        ResponseStatus.WAITING: _END
        | {ResponseStatus.PENDING, ResponseStatus.AWAITED, ResponseStatus.SENT},
        ResponseStatus.PENDING: _END
        | {ResponseStatus.PENDING, ResponseStatus.SENT, ResponseStatus.AWAITED},
        # To SENT without being held again: a process that was paused reports its send.
        ResponseStatus.AWAITED: _END | {ResponseStatus.PENDING, ResponseStatus.SENT},
        ResponseStatus.SENT: _END,
    }
)


class MinMessageInfo(msgspec.Struct, frozen=True):
    """The ids of a reply. `key` encodes them as a list member; the bytes never vary."""

    request_id: str = msgspec.field(name="rqId")
    response_id: str = msgspec.field(name="rsId")
    conversation_id: str = msgspec.field(name="cnId")

    def key(self) -> bytes:
        try:
            return _encode(self)
        except UnicodeEncodeError as error:
            raise InputInvalid(f"an id of {self!r} is not valid Unicode: {error.reason}") from None

    def of_request(self) -> MinMessageInfo:
        return MinMessageInfo(self.request_id, "", self.conversation_id)

    @classmethod
    def read(cls, member: bytes) -> MinMessageInfo:
        return _decode_info(member)


_encode = msgspec.json.Encoder().encode
_decode_info = msgspec.json.Decoder(MinMessageInfo).decode


class CanSend(msgspec.Struct, frozen=True, rename="camel"):
    """Whether a reply may be sent; if not, what blocks it and for how long at most."""

    status: Literal["send", "wait_request", "wait_response", "gone"] = msgspec.field(
        name="canSendStatus"
    )
    first_response_id: str | None = None
    request_key: str | None = None
    left_ms: int | None = None
    holder: str | None = None


class ConversationMessage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A request or a reply as it is stored. Timestamps are the caller's, in ms."""

    conversation_id: str
    origin: str
    request_id: str
    request_timestamp: int = 0
    status: str = RequestStatus.WAITING
    response_id: str | None = None
    response_timestamp: int | None = None
    async_response_id: str | None = None
    last_access: float | None = None
    sent_attempt: int | None = None
    awaited_retries: int | None = None
    response_id_counter: int | None = None
    expires_at_ts: float | None = msgspec.field(name="expiresAtTS", default=None)
    awaited_to_date_ts: float | None = msgspec.field(name="awaitedToDateTS", default=None)
    task_item: Any = None
    position: int | None = None
    corr: str = ""

    def info(self) -> MinMessageInfo:
        return MinMessageInfo(self.request_id, self.response_id or "", self.conversation_id)


# aura-bridge has two names for each of these fields; both are read.
FORMER_FIELDS = {"requestIdCounter": "responseIdCounter", "asyncRequestId": "asyncResponseId"}


def read_message(fields: Sequence[bytes]) -> ConversationMessage | None:
    """Convert the reply of HGETALL; None if the hash is empty."""
    if not fields:
        return None
    named: dict[str, Any] = {}
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        field = name.decode()
        named.setdefault(FORMER_FIELDS.get(field, field), value.decode())
    task = named.pop("taskItem", None)
    if task:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            named["taskItem"] = msgspec.json.decode(task)  # a task that can't be read is left out
    if named.get("asyncResponseId") == "":
        del named["asyncResponseId"]
    return msgspec.convert(named, ConversationMessage, strict=False)


class OutgoingReply(msgspec.Struct, frozen=True):
    """A reply as a sender gets it, with the number of earlier tries."""

    conversation_id: str
    request_id: str
    response_id: str
    origin: str
    task_item: TaskItem
    request_timestamp: int
    response_timestamp: int
    awaited_retries: int = 0
    sent_attempts: int = 0
    corr: str = ""

    @property
    def payload(self) -> Any:
        return self.task_item.message_options.payload


class MessageOptions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The payload, and the sender or callback URL if the origin does not decide."""

    payload: Any = None
    sender: str | None = None
    callback_url: str | None = None
    address: Any = None
    """The destination, in the sender's own format: a connection, a push token."""


class TaskItem(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The part of a task that Redis stores, in the reply's hash."""

    message_options: MessageOptions = MessageOptions()
    task_id: str = ""
    task_group: str = ""
    ts_input: int = 0
    ts_output: int = 0
    time_in_queue: int | None = None
    corr: str = ""


HTTP_SENDER, DEFAULT_SENDER = "http", "default"


def required_sender_of(options: MessageOptions) -> str:
    """The sender that a reply requires, as the scripts spell it; '' if its origin decides."""
    if options.sender is not None:
        return f"n:{options.sender}"
    return "" if options.callback_url is None else f"n:{HTTP_SENDER}"


def acceptable_senders(required: str) -> tuple[str, ...]:
    """The senders that meet this requirement, the preferred one first."""
    kind, _, name = required.partition(":")
    if kind == "n" or name == DEFAULT_SENDER:
        return (name,)
    return (name, DEFAULT_SENDER)


_decode_task = msgspec.json.Decoder(TaskItem).decode


def read_task(text: bytes) -> TaskItem:
    return _decode_task(text) if text else TaskItem()


def encode_task(task: TaskItem) -> bytes:
    try:
        return _encode(task)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InputInvalid(f"the reply can't be stored as JSON: {error}") from None
