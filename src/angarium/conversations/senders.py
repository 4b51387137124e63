"""Senders: functions of the application, HTTP callbacks, and what other modules offer.

A sender gets an `OutgoingReply` and returns the id under which the client will acknowledge it. It
returns None if no ACK will come: the reply is then delivered. A reply names its sender (`sender`,
or `http` by a `callbackUrl`). Otherwise the sender named like its origin sends it, or the one named
`default`. Other modules offer callables of the same shape; the server adds them by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from angarium.conversations.errors import Fatal, Recoverable
from angarium.conversations.model import (
    HTTP_SENDER,
    OutgoingReply,
    acceptable_senders,
    required_sender_of,
)
from angarium.runtime.application import Angarium, Caller, Handler
from angarium.runtime.outbound import Outbound, OutboundFailed, RequestRefused
from angarium.runtime.text import check_text
from angarium.runtime.trace import TRACEPARENT, current_trace, read_traceparent

ReplySender = Callable[[OutgoingReply], Awaitable[str | None]]

# Of the 4xx statuses, a later try can succeed only after these: too early, too many, too slow.
RECOVERABLE_STATUSES = frozenset({408, 421, 425, 429})


class CallbackBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The body of an HTTP callback."""

    conversation_id: str
    request_id: str
    response_id: str
    origin: str
    payload: Any
    attempt: int
    corr: str = ""


class CallbackResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The body a client may answer with: the id of the ACK that it will send."""

    async_response_id: str | None = None


_read_answer = msgspec.json.Decoder(CallbackResponse).decode


class CallbackSender:
    """POSTs a reply to its callback URL; the response id is the idempotency key."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound

    async def __call__(self, reply: OutgoingReply) -> str | None:
        url = reply.task_item.message_options.callback_url
        if not url:
            raise Fatal(f"reply {reply.response_id} has no callbackUrl")
        body = CallbackBody(
            reply.conversation_id,
            reply.request_id,
            reply.response_id,
            reply.origin,
            reply.payload,
            reply.awaited_retries + 1,
            reply.corr,
        )
        headers = {
            "content-type": "application/json",
            "idempotency-key": _as_header(reply.response_id),
        }
        trace = current_trace() or read_traceparent(reply.corr)
        if trace is not None:
            headers[TRACEPARENT] = trace.header
        try:
            answer = await self._outbound.send("POST", url, msgspec.json.encode(body), headers)
        except RequestRefused as error:
            raise Fatal(str(error)) from error
        except (OutboundFailed, ValueError) as error:
            raise Recoverable(str(error)) from error
        if answer.ok:
            return read_ack_id(answer.body)
        if answer.status >= 500 or answer.status in RECOVERABLE_STATUSES:
            raise Recoverable(f"the client answered {answer.status}")
        raise Fatal(f"the client answered {answer.status}")


def _as_header(response_id: str) -> str:
    """Percent-encoded only if a header can't carry the id as it is."""
    if response_id.isascii() and response_id.isprintable() and response_id == response_id.strip():
        return response_id
    return quote(response_id)


def read_ack_id(body: bytes) -> str | None:
    try:
        return _read_answer(body).async_response_id or None
    except (msgspec.MsgspecError, RecursionError):
        return None  # another format: the status alone says that the client took it


def sender_names(app: Angarium, joined: Mapping[str, ReplySender]) -> tuple[str, ...]:
    """All senders that a process with this application has."""
    names = {HTTP_SENDER, *joined, *app.handlers("reply_sender")}
    return tuple(sorted(check_text(name, f"the name of reply sender {name!r}") for name in names))


class ReplySenders:
    """The senders of one process, by name."""

    def __init__(
        self, app: Angarium, outbound: Outbound, threads_max: int, joined: Mapping[str, ReplySender]
    ) -> None:
        """A sender of the application replaces one of `joined` with the same name."""
        self._caller = Caller(threads_max)
        self._senders: dict[str, ReplySender] = {HTTP_SENDER: CallbackSender(outbound), **joined}
        for name, handler in app.handlers("reply_sender").items():
            self._senders[name] = self._sender(handler)

    async def send(self, reply: OutgoingReply) -> str | None:
        """The ACK's id or None. Raises what the sender raises; `Recoverable` if there is none."""
        required = required_sender_of(reply.task_item.message_options) or f"o:{reply.origin}"
        acceptable = acceptable_senders(required)
        name = next((name for name in acceptable if name in self._senders), acceptable[-1])
        sender = self._senders.get(name)
        if sender is None:
            # The stored requirement does not match the task; no other process could send it.
            raise Recoverable(f"this process has no reply sender {name!r}")
        answer = await sender(reply)
        if answer is not None and not isinstance(answer, str):
            raise Fatal(f"sender {name!r} answered {type(answer).__name__}, not an id or None")
        return answer

    def close(self) -> None:
        self._caller.close()

    def _sender(self, handler: Handler) -> ReplySender:
        async def send(reply: OutgoingReply) -> str | None:
            answer: str | None = await self._caller.call(handler, reply)
            return answer

        return send
