"""Arguments and replies of the scripts, as values. Pure: converts bytes, does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from angarium.conversations.model import (
    MinMessageInfo,
    OutgoingReply,
    acceptable_senders,
    read_task,
)
from angarium.conversations.wait_reasons import OpenRequest, QueuedReply, SenderWait
from angarium.runtime.scripts import status_of

SPAN = 1 << 26  # as in the scripts: score = position × SPAN + number of the reply

# 'unasked': the sender expects no ACK.
FinishReason = Literal["acknowledged", "unasked", "deleted"]


@dataclass(frozen=True, slots=True)
class NewReply:
    """A reply to accept. `held`: the accepting process also sends it."""

    conversation_id: str
    request_id: str
    response_id: str
    response_timestamp: int
    task: bytes
    corr: str = ""
    held: bool = False
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


@dataclass(frozen=True, slots=True)
class CancelOptions:
    """Which replies of a group to cancel. `close`: the request accepts no more replies."""

    close: bool = True
    status: str = ""
    except_origin: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class ConversationSnapshot:
    now_ms: int
    requests_total: int
    replies_total: int
    requests: Sequence[OpenRequest]
    replies: Sequence[QueuedReply]


def read_sender_waits(reply: Sequence[Any]) -> tuple[int, list[SenderWait]]:
    rows = zip(reply[1::3], reply[2::3], reply[3::3], strict=True)
    waits = []
    for required, replies, since in rows:
        senders = acceptable_senders(required.decode(errors="backslashreplace"))
        waits.append(SenderWait(senders, replies, int(float(since))))
    return int(reply[0]), waits


def read_infos(members: Iterable[bytes]) -> list[MinMessageInfo]:
    found = []
    for member in members:
        try:
            found.append(MinMessageInfo.read(member))
        except (msgspec.MsgspecError, RecursionError):
            continue  # another program wrote into this key
    return found


def read_next(reply: Sequence[Any]) -> MinMessageInfo | None:
    return MinMessageInfo.read(reply[1]) if reply[1] else None


def read_take_result(info: MinMessageInfo, reply: Sequence[Any]) -> TakeResult:
    status = status_of(reply)
    if status in ("expired", "delivered"):
        return TakeResult(status, next=read_next(reply))
    if status != "taken":
        return TakeResult(status)
    try:
        return TakeResult(status, _read_taken(info, reply))
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, AttributeError):
        return TakeResult("unreadable")  # the other replies of the batch are still sent


def _read_taken(info: MinMessageInfo, reply: Sequence[Any]) -> TakenReply:
    _, score, retries, left_ms, text, origin, corr, requested, responded, attempts = reply
    outgoing = OutgoingReply(
        conversation_id=info.conversation_id,
        request_id=info.request_id,
        response_id=info.response_id,
        origin=origin.decode(),
        task_item=read_task(text),
        request_timestamp=int(requested),
        response_timestamp=int(responded),
        awaited_retries=int(retries),
        sent_attempts=int(attempts),
        corr=corr.decode(),
    )
    return TakenReply(info, int(score), int(left_ms), outgoing, len(text or b""))


def read_queued(
    info: MinMessageInfo, row: Sequence[bytes], stored: Sequence[bytes | None]
) -> QueuedReply:
    """`stored`: status and retries of the reply's hash, which may have expired already."""
    _, score, until_ms, state, holder, due, required, since_ms = row
    status, retries = stored
    status_by_state = b"SENT" if state == b"S" else b"PENDING"
    return QueuedReply(
        request_id=info.request_id,
        response_id=info.response_id,
        position=int(score) // SPAN,
        number=int(score) % SPAN,
        status=(status or status_by_state).decode(),
        holder=None if required or holder in (b"-", b"*") else holder.decode(),
        until_ms=int(until_ms),
        due_ms=round(float(due) * 1000),
        awaited_retries=int(retries or 0),
        senders=acceptable_senders(required.decode()) if required else (),
        without_sender_since_ms=int(float(since_ms)) or None,
    )
