"""Why a reply waits, told from one look at its conversation; and when to try again. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Literal

import msgspec


class OpenRequest(msgspec.Struct, frozen=True, rename="camel"):
    """A request in a conversation's list."""

    request_id: str
    position: int
    until_ms: int
    answered: bool


class QueuedReply(msgspec.Struct, frozen=True, rename="camel"):
    """A reply in a conversation's order, as it is stored."""

    request_id: str
    response_id: str
    position: int
    number: int
    status: str
    holder: str | None
    until_ms: int
    due_ms: int
    awaited_retries: int = 0
    senders: tuple[str, ...] = ()
    """It waits for a process with one of these."""
    without_sender_since_ms: int | None = None


WaitCode = Literal[
    "send", "sent", "awaited", "not_held", "wait_request", "wait_response", "no_sender", "expired"
]


class WaitReason(msgspec.Struct, frozen=True, rename="camel"):
    """Why a reply does not leave at this moment, and until when that can last."""

    why: WaitCode
    text: str
    behind: str | None = None
    until_ms: int | None = None


class SenderWait(msgspec.Struct, frozen=True, rename="camel"):
    """Replies that wait for a process with one of these senders, and since when the first does."""

    senders: tuple[str, ...]
    replies: int
    since_ms: int


def unmet(needs: Iterable[SenderWait], live: Container[str]) -> list[SenderWait]:
    """Those for which no process runs, each once; `live` are the senders that processes have."""
    found: dict[tuple[str, ...], SenderWait] = {}
    for need in needs:
        if any(name in live for name in need.senders):
            continue
        known = found.get(need.senders, SenderWait(need.senders, 0, need.since_ms))
        found[need.senders] = SenderWait(
            need.senders, known.replies + need.replies, min(known.since_ms, need.since_ms)
        )
    return sorted(found.values(), key=lambda need: need.since_ms)


def wanted(senders: Sequence[str]) -> str:
    return "a process with sender " + " or ".join(f"'{name}'" for name in senders)


def explain(
    requests: Sequence[OpenRequest],
    replies: Sequence[QueuedReply],
    now_ms: int,
    live: Mapping[str, int] | None = None,
) -> list[WaitReason]:
    """One reason for each reply, in the order given, which is the order of leaving.

    `live`: how many processes have each sender.
    """
    reasons: list[WaitReason] = []
    ahead: QueuedReply | None = None
    for reply in replies:
        reasons.append(_reason(reply, ahead, requests, now_ms) or _held_by(reply, now_ms, live))
        if ahead is None and reply.until_ms > now_ms:
            ahead = reply
    return reasons


def _reason(
    reply: QueuedReply,
    ahead: QueuedReply | None,
    requests: Sequence[OpenRequest],
    now_ms: int,
) -> WaitReason | None:
    """What stands before it; None if nothing does."""
    if reply.until_ms <= now_ms:
        return WaitReason("expired", "its time is over; removed at the next look")
    if reply.status == "SENT":
        return WaitReason("sent", "sent, its ACK is waited for", None, reply.until_ms)
    if ahead is not None:
        text = f"waits for reply {ahead.response_id} ({ahead.status}) before it"
        return WaitReason("wait_response", text, ahead.response_id, ahead.until_ms)
    for request in requests:
        if request.position >= reply.position:
            break
        if not request.answered and request.until_ms > now_ms:
            text = f"waits for request {request.request_id}, which has no reply yet"
            return WaitReason("wait_request", text, request.request_id, request.until_ms)
    return None


def _held_by(reply: QueuedReply, now_ms: int, live: Mapping[str, int] | None) -> WaitReason:
    if reply.senders:
        process = wanted(reply.senders)
        if live and any(name in live for name in reply.senders):
            return WaitReason("not_held", f"{process} takes it next", None, reply.due_ms)
        since_ms = reply.without_sender_since_ms or now_ms
        text = f"waiting for {process}, for {max(0, now_ms - since_ms) // 1000} s so far"
        return WaitReason("no_sender", text, None, reply.until_ms)
    if reply.status == "AWAITED":
        text = f"could not be sent; tried again after retry {reply.awaited_retries}"
        return WaitReason("awaited", text, None, reply.due_ms)
    if reply.status == "WAITING":
        return WaitReason("not_held", "no process has taken it yet", None, reply.due_ms)
    return WaitReason("send", f"may leave now; held by {reply.holder}", None, reply.due_ms)


def group_backoff_ms(max_pending_ttl_ms: int, factor: float) -> int:
    """Added for each retry so far: the back-off is retries × pending time × factor."""
    return round(max_pending_ttl_ms * factor)
