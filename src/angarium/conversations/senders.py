"""How a reply leaves: by a function of the user's, by an HTTP callback, or by another module.

A sender gets an `OutgoingReply` and answers with the id the client will acknowledge it by, or
None when no ACK is to come: then it is delivered. Which one a reply goes to is told by the reply
itself (`sender`, or a `callbackUrl`), else by its origin, else it is the one named `default`.
Other modules offer callables of the same shape, which the server joins by name.
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

# The client's fault, and the same at every try, except for these: too early, too many, too slow.
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
    """What a client may answer: the id of the ACK that it will send."""

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
            return _ack_id(answer.body)
        if answer.status >= 500 or answer.status in RECOVERABLE_STATUSES:
            raise Recoverable(f"the client answered {answer.status}")
        raise Fatal(f"the client answered {answer.status}")


def _as_header(response_id: str) -> str:
    """As it is where a header can carry it, else percent-encoded."""
    if response_id.isascii() and response_id.isprintable() and response_id == response_id.strip():
        return response_id
    return quote(response_id)


def _ack_id(body: bytes) -> str | None:
    try:
        return _read_answer(body).async_response_id or None
    except (msgspec.MsgspecError, RecursionError):
        return None  # no answer of ours: the status says that it was taken


def sender_names(app: Angarium, joined: Mapping[str, ReplySender]) -> tuple[str, ...]:
    """Of all senders that a process with this application has."""
    names = {HTTP_SENDER, *joined, *app.handlers("reply_sender")}
    return tuple(sorted(check_text(name, f"the name of reply sender {name!r}") for name in names))


class ReplySenders:
    """All ways of one process, by name."""

    def __init__(
        self, app: Angarium, outbound: Outbound, threads_max: int, joined: Mapping[str, ReplySender]
    ) -> None:
        """What the application registers goes before what other modules offer under that name."""
        self._caller = Caller(threads_max)
        self._senders: dict[str, ReplySender] = {HTTP_SENDER: CallbackSender(outbound), **joined}
        for name, handler in app.handlers("reply_sender").items():
            self._senders[name] = self._sender(handler)

    @property
    def names(self) -> Mapping[str, ReplySender]:
        return self._senders

    async def send(self, reply: OutgoingReply) -> str | None:
        """The ACK's id or None. Raises what the sender raises; `Recoverable` if there is none."""
        wanted = acceptable_senders(
            required_sender_of(reply.task_item.message_options) or f"o:{reply.origin}"
        )
        name = next((name for name in wanted if name in self._senders), wanted[-1])
        sender = self._senders.get(name)
        if sender is None:
            # Only a reply with a need that does not fit its task: nobody else can do better.
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
