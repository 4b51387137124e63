"""Why each reply of a conversation waits, found from one snapshot of it. Pure."""

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
    """The reply waits for a process that has one of these senders."""
    without_sender_since_ms: int | None = None


WaitCode = Literal[
    "send", "sent", "awaited", "not_held", "wait_request", "wait_response", "no_sender", "expired"
]


class WaitReason(msgspec.Struct, frozen=True, rename="camel"):
    """Why a reply is not sent at this moment, and the latest time at which that ends."""

    why: WaitCode
    text: str
    behind: str | None = None
    until_ms: int | None = None


class SenderWait(msgspec.Struct, frozen=True, rename="camel"):
    """Replies that wait for a process with one of these senders; `since_ms` is of the first."""

    senders: tuple[str, ...]
    replies: int
    since_ms: int


def without_process(waits: Iterable[SenderWait], running: Container[str]) -> list[SenderWait]:
    """The waits for which no process runs, summed by senders; `running` has sender names."""
    found: dict[tuple[str, ...], SenderWait] = {}
    for wait in waits:
        if any(name in running for name in wait.senders):
            continue
        known = found.get(wait.senders, SenderWait(wait.senders, 0, wait.since_ms))
        found[wait.senders] = SenderWait(
            wait.senders, known.replies + wait.replies, min(known.since_ms, wait.since_ms)
        )
    return sorted(found.values(), key=lambda wait: wait.since_ms)


def process_with_sender(senders: Sequence[str]) -> str:
    return "a process with sender " + " or ".join(f"'{name}'" for name in senders)


def explain(
    requests: Sequence[OpenRequest],
    replies: Sequence[QueuedReply],
    now_ms: int,
    running: Mapping[str, int] | None = None,
) -> list[WaitReason]:
    """One reason for each reply. `replies` are in sending order.

    `running`: number of processes that have each sender.
    """
    reasons: list[WaitReason] = []
    ahead: QueuedReply | None = None
    for reply in replies:
        reason = _blocked(reply, ahead, requests, now_ms) or _unblocked(reply, now_ms, running)
        reasons.append(reason)
        if ahead is None and reply.until_ms > now_ms:
            ahead = reply
    return reasons


def _blocked(
    reply: QueuedReply,
    ahead: QueuedReply | None,
    requests: Sequence[OpenRequest],
    now_ms: int,
) -> WaitReason | None:
    """None if nothing is ahead of the reply."""
    if reply.until_ms <= now_ms:
        return WaitReason("expired", "expired; removed at the next check")
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


def _unblocked(reply: QueuedReply, now_ms: int, running: Mapping[str, int] | None) -> WaitReason:
    if reply.senders:
        process = process_with_sender(reply.senders)
        if running and any(name in running for name in reply.senders):
            return WaitReason("not_held", f"{process} takes it next", None, reply.due_ms)
        since_ms = reply.without_sender_since_ms or now_ms
        text = f"waiting for {process}, for {max(0, now_ms - since_ms) // 1000} s so far"
        return WaitReason("no_sender", text, None, reply.until_ms)
    if reply.status == "AWAITED":
        text = f"could not be sent; tried again after retry {reply.awaited_retries}"
        return WaitReason("awaited", text, None, reply.due_ms)
    if reply.status == "WAITING":
        return WaitReason("not_held", "no process has taken it yet", None, reply.due_ms)
    return WaitReason("send", f"can be sent now; held by {reply.holder}", None, reply.due_ms)
