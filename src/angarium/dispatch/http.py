"""HTTP operations of dispatch: durable intake, status, dead letters.

After the reply 202 a message is in Redis, at the configured durability, and reaches a worker even
if no dispatcher runs now. The payload keeps the bytes of the request body. Only the request's
`traceparent` is added, to a JSON object without that member.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.dispatch.dead_letters import (
    DeadLetterView,
    DispatchDeadLetters,
    dead_letter_view,
    page_cursor,
)
from angarium.dispatch.gauges import DispatchGauges
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.store import DispatchStore, PartitionStatus
from angarium.runtime.application import Angarium
from angarium.runtime.errors import InputInvalid, LimitExceeded
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
# Enough of a payload to recognise it in a list; a single dead letter shows the whole payload.
SHOWN_BYTES_MAX = 2_000

Key = Annotated[str, msgspec.Meta(min_length=1)]


class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` is any JSON value. A repeated `idempotency_key` adds no message."""

    payload: msgspec.Raw
    idempotency_key: Key | None = None


class EnqueuedMessage(msgspec.Struct, frozen=True):
    """`duplicate`: the key was used before; `message_id` is the message of the first use."""

    message_id: str
    duplicate: bool


class DispatchStatus(msgspec.Struct, frozen=True):
    """`consumers` are the registered ones; a dispatcher may have others in its settings."""

    partitions: list[PartitionStatus]
    consumers: list[str]
    dispatchers: list[str]


class DeadLetterPage(msgspec.Struct, frozen=True):
    """`next` is the parameter `after` of the next page; null on the last page."""

    letters: list[DeadLetterView]
    next: str | None


class RetriedDeadLetter(msgspec.Struct, frozen=True):
    message_id: str
    status: Literal["retried"]


def http_api(runtime: Runtime, app: Angarium) -> HttpApi:
    store = runtime.store(DispatchStore)
    return HttpApi(
        "dispatch", DispatchHttpApi(runtime, store).operations(), DispatchGauges(runtime, store)
    )


class DispatchHttpApi:
    def __init__(self, runtime: Runtime, store: DispatchStore) -> None:
        self._limits = runtime.settings.limits_of(DispatchLimits)
        self._store = store
        self._dead_letters = DispatchDeadLetters(store)

    def operations(self) -> list[Operation]:
        message = Parameter("message_id", "path", {"type": "string", "format": "uuid"})
        dead = "/v1/dispatch/dead"
        return [
            Operation(
                "POST", "/v1/messages", "enqueueMessages",
                "Put one message, or a list of them, into the durable intake", self.enqueue,
                MessageBody | list[MessageBody], {202: EnqueuedMessage | list[EnqueuedMessage]},
                [Parameter(KEY_HEADER, "header", {"type": "string", "minLength": 1},
                           "The idempotency_key of a single message"), TRACE], scope="write",
            ),
            Operation(
                "GET", "/v1/dispatch", "showDispatch",
                "Show leader and queue lengths of each partition, workers and dispatchers",
                self.status, answers={200: DispatchStatus},
            ),
            Operation(
                "GET", dead, "listDeadLetters", "List dead letters, oldest first", self.list_dead,
                answers={200: DeadLetterPage}, parameters=[
                    Parameter("limit", schema={
                        "type": "integer", "minimum": 1, "maximum": LIST_MAX,
                        "default": LIST_DEFAULT,
                    }),
                    Parameter("after", description="`next` of the previous page"),
                ],
            ),
            Operation(
                "GET", f"{dead}/{{message_id}}", "getDeadLetter",
                "Show one dead letter with all of its payload", self.get_dead,
                answers={200: DeadLetterView}, parameters=[message],
            ),
            Operation(
                "POST", f"{dead}/{{message_id}}/retry", "retryDeadLetter",
                "Make a dead message pending again, with no delivery counted", self.retry_dead,
                answers={200: RetriedDeadLetter}, parameters=[message], scope="admin",
            ),
            Operation(
                "DELETE", f"{dead}/{{message_id}}", "dropDeadLetter",
                "Delete a dead letter and its message", self.drop_dead,
                answers={204: None}, parameters=[message], scope="admin",
            ),
        ]  # fmt: skip

    async def enqueue(self, request: Request) -> Response:
        body = await self._messages(request)
        messages = body if isinstance(body, list) else [body]
        count_max = self._limits.intake_messages_max
        if len(messages) > count_max:
            raise LimitExceeded("intake_messages_max", len(messages), count_max)
        header = request.headers.get(KEY_HEADER)
        if header is not None:
            messages = [_with_key(body, header)]
        trace = traceparent_of(request)
        enqueued = await self._store.enqueue_all(
            [(_traced(bytes(each.payload), trace), each.idempotency_key) for each in messages]
        )
        bodies = [EnqueuedMessage(each.message_id, each.duplicate) for each in enqueued]
        return reply(bodies if isinstance(body, list) else bodies[0], 202)

    async def _messages(self, request: Request) -> MessageBody | list[MessageBody]:
        data = await read_bytes(request, self._limits.http_body_bytes_max)
        try:
            # Nobody parses the payload before the worker, so invalid text would fail only there.
            data.decode()
        except UnicodeDecodeError as error:
            raise InputInvalid(f"the body is not UTF-8: {error.reason}") from None
        kind: Any = MessageBody | list[MessageBody]
        found: MessageBody | list[MessageBody] = decode(data, kind)
        return found

    async def status(self, _: Request) -> Response:
        store = self._store
        return reply(
            DispatchStatus(
                [await store.status(partition) for partition in range(store.partitions)],
                await store.consumers(),
                await store.dispatchers(),
            )
        )

    async def list_dead(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", str(LIST_DEFAULT)))
        page: list[DeadLetterView] = []
        cursor = None
        async for dead_letter in self._dead_letters.walk(request.query_params.get("after")):
            if len(page) == limit:
                return reply(DeadLetterPage(page, cursor))
            page.append(dead_letter_view(dead_letter, SHOWN_BYTES_MAX))
            cursor = page_cursor(dead_letter)
        return reply(DeadLetterPage(page, None))

    async def get_dead(self, request: Request) -> Response:
        dead_letter = await self._dead_letters.find(request.path_params["message_id"])
        return reply(dead_letter_view(dead_letter))

    async def retry_dead(self, request: Request) -> Response:
        message_id: str = request.path_params["message_id"]
        await self._dead_letters.retry(message_id)
        return reply(RetriedDeadLetter(message_id.lower(), "retried"))

    async def drop_dead(self, request: Request) -> Response:
        await self._dead_letters.drop(request.path_params["message_id"])
        return Response(status_code=204)


def _with_key(body: MessageBody | list[MessageBody], key: str) -> MessageBody:
    if isinstance(body, list):
        raise InputInvalid(
            f"{KEY_HEADER} applies to one message; in a list, give each message its own key"
        )
    if not key:
        raise InputInvalid(f"{KEY_HEADER} is empty")
    if body.idempotency_key not in (None, key):
        raise InputInvalid(f"{KEY_HEADER} and idempotency_key differ")
    return MessageBody(body.payload, key)


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
