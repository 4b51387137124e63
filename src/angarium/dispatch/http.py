"""HTTP operations of dispatch: durable intake, status, dead letters.

After the reply 202 a message is in Redis, at the configured durability, and reaches a worker even
if no dispatcher runs now. The payload keeps the bytes of the request body. Only the request's
`traceparent` is added, to a JSON object without that member.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.dispatch.dead_letters import DeadDispatchMessage
from angarium.dispatch.gauges import DispatchGauges
from angarium.dispatch.message_state import MessagePayload, MessageState
from angarium.dispatch.service import DispatchService, DispatchStatus
from angarium.runtime.application import Application
from angarium.runtime.dead_letters_http import DeadLetterOperations
from angarium.runtime.errors import InputInvalid
from angarium.runtime.http_api import (
    TRACE,
    HttpApi,
    Operation,
    Parameter,
    decode,
    read_bytes,
    reply,
    traceparent_of,
)
from angarium.runtime.runtime import Runtime
from angarium.runtime.trace import TRACEPARENT

KEY_HEADER = "Idempotency-Key"
LIST_MAX, LIST_DEFAULT = 500, 50
# A request that waits longer may be cut by a proxy; the caller asks again.
WAIT_S_MAX = 60.0
_NUMBER = re.compile(r"\d{1,9}(\.\d{0,9})?", re.ASCII)

Key = Annotated[str, msgspec.Meta(min_length=1)]
Queue = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$")]


class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` is any JSON value. A repeated `idempotency_key` adds no message. A message with a
    `queue` is for the workers of that name."""

    payload: msgspec.Raw
    idempotency_key: Key | None = None
    queue: Queue = ""


class EnqueuedMessage(msgspec.Struct, frozen=True):
    """`duplicate`: the key was used before; `message_id` is the message of the first use."""

    message_id: str
    duplicate: bool


class NewestResults(msgspec.Struct, frozen=True):
    results: list[MessageState]


def http_api(runtime: Runtime, app: Application) -> HttpApi:
    gauges = DispatchGauges(runtime)
    return HttpApi("dispatch", DispatchHttpApi(runtime).operations(), gauges)


class DispatchHttpApi:
    def __init__(self, runtime: Runtime) -> None:
        self._body_bytes_max = runtime.settings.limits.http_body_bytes_max
        self._service = DispatchService(runtime)

    def operations(self) -> list[Operation]:
        message = Parameter("message_id", "path", {"type": "string", "format": "uuid"})
        return [
            Operation(
                "POST", "/v1/messages", "enqueue_messages",
                "Put one message, or a list of them, into the durable intake", self.enqueue,
                MessageBody | list[MessageBody], {202: EnqueuedMessage | list[EnqueuedMessage]},
                [Parameter(KEY_HEADER, "header", {"type": "string", "minLength": 1},
                           "The idempotency_key of a single message"), TRACE], scope="write",
            ),
            Operation(
                "GET", "/v1/messages/{message_id}", "get_message",
                "Show what became of a message: its state, failures and result", self.get_message,
                answers={200: MessageState}, parameters=[
                    message,
                    Parameter("wait_s", schema={
                        "type": "number", "minimum": 0, "maximum": WAIT_S_MAX, "default": 0,
                    }, description="Seconds to wait for its end"),
                ],
            ),
            Operation(
                "GET", "/v1/messages/{message_id}/payload", "get_message_payload",
                "Show the payload of a message that is unfinished or dead", self.get_payload,
                answers={200: MessagePayload}, parameters=[message], scope="write",
            ),
            Operation(
                "GET", "/v1/dispatch", "show_dispatch",
                "Show leader and lengths of each partition, workers, dispatchers and named queues",
                self.status, answers={200: DispatchStatus},
            ),
            Operation(
                "GET", "/v1/dispatch/results", "list_results",
                "List the newest results, newest first, with long fields cut", self.list_results,
                answers={200: NewestResults}, parameters=[
                    Parameter("limit", schema={
                        "type": "integer", "minimum": 1, "maximum": LIST_MAX,
                        "default": LIST_DEFAULT,
                    }),
                ],
            ),
            *DeadLetterOperations(
                "/v1/dispatch/dead", "dead_letter", "dead_letters",
                "messages that failed all their deliveries, the oldest first", DeadDispatchMessage,
                lambda _: self._service.dead_letters,
            ).operations(),
        ]  # fmt: skip

    async def enqueue(self, request: Request) -> Response:
        body = await self._messages(request)
        messages = body if isinstance(body, list) else [body]
        header = request.headers.get(KEY_HEADER)
        if header is not None:
            messages = [_with_key(body, header)]
        trace = traceparent_of(request)
        enqueued = await self._service.enqueue(
            [(_traced(bytes(each.payload), trace), each.idempotency_key) for each in messages],
            [each.queue for each in messages],
        )
        bodies = [EnqueuedMessage(each.message_id, each.duplicate) for each in enqueued]
        return reply(bodies if isinstance(body, list) else bodies[0], 202)

    async def _messages(self, request: Request) -> MessageBody | list[MessageBody]:
        data = await read_bytes(request, self._body_bytes_max)
        try:
            # Nobody parses the payload before the worker, so invalid text would fail only there.
            data.decode()
        except UnicodeDecodeError as error:
            raise InputInvalid(f"the body is not UTF-8: {error.reason}") from None
        kind: Any = MessageBody | list[MessageBody]
        found: MessageBody | list[MessageBody] = decode(data, kind)
        return found

    async def get_message(self, request: Request) -> Response:
        wait_s = _seconds(request.query_params.get("wait_s", "0"))
        message_id = request.path_params["message_id"]
        return reply(await self._service.messages.wait(message_id, wait_s))

    async def get_payload(self, request: Request) -> Response:
        return reply(await self._service.messages.payload(request.path_params["message_id"]))

    async def status(self, _: Request) -> Response:
        return reply(await self._service.status())

    async def list_results(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", str(LIST_DEFAULT)))
        return reply(NewestResults(await self._service.messages.newest_results(limit)))


def _with_key(body: MessageBody | list[MessageBody], key: str) -> MessageBody:
    if isinstance(body, list):
        raise InputInvalid(
            f"{KEY_HEADER} applies to one message; in a list, give each message its own key"
        )
    if not key:
        raise InputInvalid(f"{KEY_HEADER} is empty")
    if body.idempotency_key not in (None, key):
        raise InputInvalid(f"{KEY_HEADER} and idempotency_key differ")
    return MessageBody(body.payload, key, body.queue)


def _traced(payload: bytes, trace: str) -> bytes:
    """Add the caller's trace as the first member of an object that has none."""
    if not trace or payload[:1] != b"{" or f'"{TRACEPARENT}"'.encode() in payload:
        return payload
    rest = payload[1:].lstrip()
    comma = b"" if rest.startswith(b"}") else b","
    return b'{"%b":"%b"%b%b' % (TRACEPARENT.encode(), trace.encode(), comma, rest)


def _limit(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= LIST_MAX:
        return int(text)
    raise InputInvalid(f"limit must be a number from 1 to {LIST_MAX}")


def _seconds(text: str) -> float:
    if _NUMBER.fullmatch(text) and float(text) <= WAIT_S_MAX:
        return float(text)
    raise InputInvalid(f"wait_s must be a number from 0 to {WAIT_S_MAX:g}")
