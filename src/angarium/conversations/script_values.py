"""What goes to the scripts and what they answer, as values. Pure: reads bytes, touches nothing."""

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

SPAN = 1 << 26  # as in the scripts: a score is position × SPAN + number of the reply

FinishReason = Literal["acknowledged", "unasked", "deleted"]


@dataclass(frozen=True, slots=True)
class NewReply:
    """A reply on its way in. `held`: the process that accepts it will send it, too."""

    conversation_id: str
    request_id: str
    response_id: str
    response_timestamp: int
    task: bytes
    corr: str = ""
    held: bool = False
    origin: str = ""  # '': that of its request
    need: str = ""  # of a sender, see `model.need_of`; '': that of its origin


@dataclass(frozen=True, slots=True)
class AcceptResult:
    """A reply that was taken in, now or (`duplicate`) before."""

    info: MinMessageInfo
    score: int
    held: bool
    origin: str = ""
    request_timestamp: int = 0
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class TakenReply:
    """A reply that is now in this process's hands."""

    info: MinMessageInfo
    score: int
    left_ms: int
    reply: OutgoingReply
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TakeResult:
    """What came of a claim; `next` is a reply of ours that may now be able to go."""

    status: str
    taken: TakenReply | None = None
    next: MinMessageInfo | None = None


@dataclass(frozen=True, slots=True)
class CancelOptions:
    """What of a group is to go. `close`: the request takes no more replies."""

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
    return int(reply[0]), [
        SenderWait(
            acceptable_senders(need.decode(errors="backslashreplace")), replies, int(float(since))
        )
        for need, replies, since in rows
    ]


def read_infos(members: Iterable[bytes]) -> list[MinMessageInfo]:
    found = []
    for member in members:
        try:
            found.append(MinMessageInfo.read(member))
        except (msgspec.MsgspecError, RecursionError):
            continue  # not ours: another program wrote into this key
    return found


def read_next(reply: Sequence[Any]) -> MinMessageInfo | None:
    return MinMessageInfo.read(reply[1]) if reply[1] else None


def read_outcome(info: MinMessageInfo, reply: Sequence[Any]) -> TakeResult:
    status = status_of(reply)
    if status in ("expired", "delivered"):
        return TakeResult(status, next=read_next(reply))
    if status != "taken":
        return TakeResult(status)
    try:
        return TakeResult(status, _read_taken(info, reply))
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, AttributeError):
        return TakeResult("unreadable")  # it must not keep those it was taken with from leaving


def _read_taken(info: MinMessageInfo, reply: Sequence[Any]) -> TakenReply:
    _, score, retries, left_ms, text, origin, corr, requested, responded, attempts = reply
    taken = OutgoingReply(
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
    return TakenReply(info, int(score), int(left_ms), taken, len(text or b""))


def read_queued(
    info: MinMessageInfo, row: Sequence[bytes], stored: Sequence[bytes | None]
) -> QueuedReply:
    """`stored`: status and retries of its hash, which may have ended already."""
    _, score, until_ms, state, holder, due, need, since_ms = row
    status, retries = stored
    placed = b"SENT" if state == b"S" else b"PENDING"
    return QueuedReply(
        request_id=info.request_id,
        response_id=info.response_id,
        position=int(score) // SPAN,
        number=int(score) % SPAN,
        status=(status or placed).decode(),
        holder=None if need or holder in (b"-", b"*") else holder.decode(),
        until_ms=int(until_ms),
        due_ms=round(float(due) * 1000),
        awaited_retries=int(retries or 0),
        senders=acceptable_senders(need.decode()) if need else (),
        without_sender_since_ms=int(float(since_ms)) or None,
    )
