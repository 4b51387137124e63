"""Senders: functions of the application, HTTP callbacks, and what other modules offer.

A sender gets an `OutgoingReply` and returns the id under which the client will acknowledge it. It
returns None if no ACK will come: the reply is then delivered. A reply names its sender (`sender`,
or `http` by a `callbackUrl`). Otherwise the sender named like its origin sends it, or the one named
`default`. Other modules offer callables of the same shape; the server adds them by name.
"""

from __future__ import annotations

import asyncio
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
from angarium.runtime.application import Application, Caller, Handler
from angarium.runtime.outbound import Outbound, OutboundFailed, RequestRefused
from angarium.runtime.retry_policy import DEFAULT_POLICY, RetryPolicy
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


def sender_names(app: Application, joined: Mapping[str, ReplySender]) -> tuple[str, ...]:
    """All senders that a process with this application has."""
    names = {HTTP_SENDER, *joined, *app.handlers("reply_sender")}
    return tuple(sorted(check_text(name, f"the name of reply sender {name!r}") for name in names))


class ReplySenders:
    """The senders of one process, by name."""

    def __init__(
        self,
        app: Application,
        outbound: Outbound,
        threads_max: int,
        joined: Mapping[str, ReplySender],
        timeout_s: float,
    ) -> None:
        """A sender of the application replaces one of `joined` with the same name."""
        self._caller = Caller(threads_max)
        self._timeout_s = timeout_s
        self._policies: dict[str, RetryPolicy] = {}
        given: dict[str, ReplySender] = {HTTP_SENDER: CallbackSender(outbound), **joined}
        self._senders = {name: self._limited(each, timeout_s) for name, each in given.items()}
        for name, handler in app.handlers("reply_sender").items():
            self._senders[name] = self._sender(handler)
            self._policies[name] = handler.retry

    async def send(self, reply: OutgoingReply) -> str | None:
        """The ACK's id or None. Raises what the sender raises; `Recoverable` if there is none."""
        name = self._name_of(reply)
        sender = self._senders.get(name)
        if sender is None:
            # The stored requirement does not match the task; no other process could send it.
            raise Recoverable(f"this process has no reply sender {name!r}")
        answer = await sender(reply)
        if answer is not None and not isinstance(answer, str):
            raise Fatal(f"sender {name!r} answered {type(answer).__name__}, not an id or None")
        return answer

    def retry_in_ms(self, reply: OutgoingReply, error: Exception, retry_ms: int) -> int | None:
        """The back-off after this error; None if the reply is not tried again.

        By the sender's policy if it declares one, else `retry_ms` for each retry so far.
        """
        policy = self._policies.get(self._name_of(reply), DEFAULT_POLICY)
        if isinstance(error, Fatal):
            return None
        if not isinstance(error, Recoverable) and not policy.retries_error(error):
            return None
        if policy.retries is not None and reply.awaited_retries >= policy.retries:
            return None
        if policy == DEFAULT_POLICY:
            return retry_ms * reply.awaited_retries
        return round(policy.next_delay_s(reply.awaited_retries + 1) * 1000)

    def close(self) -> None:
        self._caller.close()

    def _name_of(self, reply: OutgoingReply) -> str:
        required = required_sender_of(reply.task_item.message_options) or f"o:{reply.origin}"
        acceptable = acceptable_senders(required)
        return next((name for name in acceptable if name in self._senders), acceptable[-1])

    def _sender(self, handler: Handler) -> ReplySender:
        async def send(reply: OutgoingReply) -> str | None:
            answer: str | None = await self._caller.call(handler, reply)
            return answer

        # A thread can't be interrupted: its reply stays held until the function returns.
        if not handler.is_async:
            return send
        return self._limited(send, handler.retry.timeout_s or self._timeout_s)

    def _limited(self, sender: ReplySender, timeout_s: float) -> ReplySender:
        async def send(reply: OutgoingReply) -> str | None:
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    return await sender(reply)
            except TimeoutError:
                if not limit.expired():
                    raise  # the function's own
                raise Recoverable(f"the sender did not end within {timeout_s:g} s") from None

        return send
