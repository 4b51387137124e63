"""What the store takes and returns, as values. Pure: converts bytes, does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from angarium.conversations.model import (
    MinMessageInfo,
    OutgoingReply,
    acceptable_senders,
    read_task,
)
from angarium.conversations.transitions import (
    Delivered,
    ExpiredReply,
    NoSender,
    ReplyRow,
    SenderWaitRow,
    Taken,
)
from angarium.conversations.wait_reasons import OpenRequest, QueuedReply, SenderWait

SPAN = 1 << 26  # as in the scripts: score = position × SPAN + number of the reply

# 'unasked': the sender expects no ACK.
FinishReason = Literal["acknowledged", "unasked", "deleted"]
# 'near': only if the reply is near its turn, so that a long conversation fills no memory.
HoldWish = Literal["", "near", "always"]


@dataclass(frozen=True, slots=True)
class NewReply:
    """A reply to accept. `hold`: whether the accepting store holds it, to send it."""

    conversation_id: str
    request_id: str
    response_id: str
    response_timestamp: int
    task: bytes
    corr: str = ""
    hold: HoldWish = ""
    origin: str = ""  # '': the origin of its request
    required_sender: str = ""  # see `model.required_sender_of`; '': the sender of its origin


@dataclass(frozen=True, slots=True)
class AcceptResult:
    """`duplicate`: the reply was accepted before."""

    info: MinMessageInfo
    score: int
    held: bool
    origin: str = ""
    request_timestamp: int = 0
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class TakenReply:
    """A reply that this process holds now."""

    info: MinMessageInfo
    score: int
    left_ms: int
    reply: OutgoingReply
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TakeResult:
    """`next`: a reply this process holds that may be sendable now."""

    status: str
    taken: TakenReply | None = None
    next: MinMessageInfo | None = None


class Claim(NamedTuple):
    """Due replies, claimed. `due_in_ms`: when the first of the others is due; None if none is."""

    claim: str
    infos: list[MinMessageInfo]
    due_in_ms: int | None


@dataclass(frozen=True, slots=True)
class CancelOptions:
    """Which replies of a group to cancel. `close`: the request accepts no more replies."""

    close: bool = True
    status: str = ""
    except_origin: str = ""
    why: str = ""
    dead: bool = False  # keep the cancelled replies as dead ones


@dataclass(frozen=True, slots=True)
class ConversationSnapshot:
    now_ms: int
    requests_total: int
    replies_total: int
    requests: Sequence[OpenRequest]
    replies: Sequence[QueuedReply]


def read_sender_waits(rows: Iterable[SenderWaitRow]) -> list[SenderWait]:
    return [
        SenderWait(
            acceptable_senders(row.required.decode(errors="backslashreplace")),
            row.waiting,
            int(row.since),
        )
        for row in rows
    ]


def read_infos(members: Iterable[bytes]) -> list[MinMessageInfo]:
    found = []
    for member in members:
        try:
            found.append(MinMessageInfo.read(member))
        except (msgspec.MsgspecError, RecursionError):
            continue  # another program wrote into this key
    return found


def read_next(member: bytes) -> MinMessageInfo | None:
    return MinMessageInfo.read(member) if member else None


def read_take_result(info: MinMessageInfo, reply: Any) -> TakeResult:
    if isinstance(reply, ExpiredReply):
        return TakeResult("expired", next=read_next(reply.next_member))
    if isinstance(reply, Delivered):
        return TakeResult("delivered", next=read_next(reply.next_member))
    if isinstance(reply, NoSender):
        return TakeResult("no_sender")
    if not isinstance(reply, Taken):
        return TakeResult(reply)
    try:
        return TakeResult("taken", _read_taken(info, reply))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return TakeResult("unreadable")  # the other replies of the batch are still sent


def _read_taken(info: MinMessageInfo, reply: Taken) -> TakenReply:
    outgoing = OutgoingReply(
        conversation_id=info.conversation_id,
        request_id=info.request_id,
        response_id=info.response_id,
        origin=reply.origin.decode(),
        task_item=read_task(reply.task),
        request_timestamp=int(reply.request_timestamp),
        response_timestamp=int(reply.response_timestamp),
        awaited_retries=reply.retries,
        sent_attempts=int(reply.attempts),
        corr=reply.corr.decode(),
    )
    return TakenReply(info, reply.score, reply.left_ms, outgoing, len(reply.task))


def read_queued(info: MinMessageInfo, row: ReplyRow, stored: Sequence[bytes | None]) -> QueuedReply:
    """`stored`: status and retries of the reply's hash, which may have expired already."""
    status, retries = stored
    status_by_state = b"SENT" if row.state == "S" else b"PENDING"
    return QueuedReply(
        request_id=info.request_id,
        response_id=info.response_id,
        position=row.score // SPAN,
        number=row.score % SPAN,
        status=(status or status_by_state).decode(),
        holder=None if row.required or row.holder == "-" else row.holder,
        until_ms=row.until_ms,
        due_ms=int(row.due * 1000),
        awaited_retries=int(retries or 0),
        senders=acceptable_senders(row.required) if row.required else (),
        without_sender_since_ms=int(row.since) or None,
    )
