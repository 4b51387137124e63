"""The module over HTTP: the durable intake, what waits and who leads, the dead letters.

A message that is answered with 202 is in Redis, at the durability that is set, and reaches a
worker even when no dispatcher runs now. Its payload is kept byte by byte as it stood in the body;
only the header `traceparent` is added to an object that has no such member.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.dispatch.letters import DeadLetters, ShownLetter, mark_of, shown
from angarium.dispatch.store import DispatchStore, PartitionStatus
from angarium.dispatch.watch import DispatchWatch
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
# A list shows enough of each payload to recognise it; all of it is in the letter itself.
SHOWN_BYTES_MAX = 2_000

Key = Annotated[str, msgspec.Meta(min_length=1)]


class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` is any JSON value; a repeated `idempotency_key` brings in nothing."""

    payload: msgspec.Raw
    idempotency_key: Key | None = None


class EnqueuedMessage(msgspec.Struct, frozen=True):
    """`duplicate`: the key was used before, and this is the message it brought in."""

    message_id: str
    duplicate: bool


class DispatchStatus(msgspec.Struct, frozen=True):
    """`consumers` are those that registered; a dispatcher may have others in its settings."""

    partitions: list[PartitionStatus]
    consumers: list[str]
    dispatchers: list[str]


class LettersPage(msgspec.Struct, frozen=True):
    """`next` is the parameter `after` of the page behind this one; null on the last."""

    letters: list[ShownLetter]
    next: str | None


class RetriedLetter(msgspec.Struct, frozen=True):
    message_id: str
    status: Literal["retried"]


def http_api(runtime: Runtime, app: Angarium) -> HttpApi:
    store = DispatchStore(runtime)
    return HttpApi("dispatch", _Operations(runtime, store).all(), DispatchWatch(runtime, store))


class _Operations:
    def __init__(self, runtime: Runtime, store: DispatchStore) -> None:
        self._limits = runtime.settings.limits
        self._store = store
        self._letters = DeadLetters(store)

    def all(self) -> list[Operation]:
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
                "Show who leads each partition, what waits there, and who is there to work",
                self.status, answers={200: DispatchStatus},
            ),
            Operation(
                "GET", dead, "listDeadLetters", "List dead letters, oldest first", self.list_dead,
                answers={200: LettersPage}, parameters=[
                    Parameter("limit", schema={
                        "type": "integer", "minimum": 1, "maximum": LIST_MAX,
                        "default": LIST_DEFAULT,
                    }),
                    Parameter("after", description="`next` of the page before"),
                ],
            ),
            Operation(
                "GET", f"{dead}/{{message_id}}", "getDeadLetter",
                "Show one dead letter with all of its payload", self.get_dead,
                answers={200: ShownLetter}, parameters=[message],
            ),
            Operation(
                "POST", f"{dead}/{{message_id}}/retry", "retryDeadLetter",
                "Make a dead message pending again, as if it had just come in", self.retry_dead,
                answers={200: RetriedLetter}, parameters=[message], scope="admin",
            ),
            Operation(
                "DELETE", f"{dead}/{{message_id}}", "dropDeadLetter",
                "Give up a dead message for good", self.drop_dead,
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
        answers = [EnqueuedMessage(each.message_id, each.duplicate) for each in enqueued]
        return reply(answers if isinstance(body, list) else answers[0], 202)

    async def _messages(self, request: Request) -> MessageBody | list[MessageBody]:
        data = await read_bytes(request, self._limits.http_body_bytes_max)
        try:
            # A payload is passed on unread, so what is no text would only fail at a worker.
            data.decode()
        except UnicodeDecodeError as error:
            raise InputInvalid(f"the body is no UTF-8: {error.reason}") from None
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
        letters: list[ShownLetter] = []
        mark = None
        async for letter in self._letters.walk(request.query_params.get("after")):
            if len(letters) == limit:
                return reply(LettersPage(letters, mark))
            letters.append(shown(letter, SHOWN_BYTES_MAX))
            mark = mark_of(letter)
        return reply(LettersPage(letters, None))

    async def get_dead(self, request: Request) -> Response:
        return reply(shown(await self._letters.find(request.path_params["message_id"])))

    async def retry_dead(self, request: Request) -> Response:
        message_id: str = request.path_params["message_id"]
        await self._letters.retry(message_id)
        return reply(RetriedLetter(message_id.lower(), "retried"))

    async def drop_dead(self, request: Request) -> Response:
        await self._letters.drop(request.path_params["message_id"])
        return Response(status_code=204)


def _with_key(body: MessageBody | list[MessageBody], key: str) -> MessageBody:
    if isinstance(body, list):
        raise InputInvalid(f"{KEY_HEADER} is for one message; in a list, give each its own key")
    if not key:
        raise InputInvalid(f"{KEY_HEADER} is empty")
    if body.idempotency_key not in (None, key):
        raise InputInvalid(f"{KEY_HEADER} and idempotency_key differ")
    return MessageBody(body.payload, key)


def _traced(payload: bytes, trace: str) -> bytes:
    """An object that carries no trace yet gets the caller's as its first member."""
    if not trace or payload[:1] != b"{" or f'"{TRACEPARENT}"'.encode() in payload:
        return payload
    rest = payload[1:].lstrip()
    comma = b"" if rest.startswith(b"}") else b","
    return b'{"%b":"%b"%b%b' % (TRACEPARENT.encode(), trace.encode(), comma, rest)


def _limit(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= LIST_MAX:
        return int(text)
    raise InputInvalid(f"limit must be a number from 1 to {LIST_MAX}")
