"""The module's HTTP API: open a request, post a reply, acknowledge, show a conversation.

The process that serves the API sends no replies: processes of the role `conversations` take them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.conversations.dead_replies import DeadReply
from angarium.conversations.errors import ReplyUnknown
from angarium.conversations.model import MessageOptions
from angarium.conversations.service import ConversationService
from angarium.conversations.views import ConversationView, RequestView
from angarium.runtime.application import Application
from angarium.runtime.dead_letters_http import DeadLetterOperations
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

# Lua and JavaScript numbers are exact up to here.
Timestamp = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class OpenRequestBody(msgspec.Struct, frozen=True):
    conversation_id: str
    request_id: str
    origin: str
    corr: str = ""
    request_timestamp: Timestamp | None = None


class OpenedRequest(msgspec.Struct, frozen=True):
    status: Literal["created", "duplicate"]
    request: RequestView


class ReplyBody(msgspec.Struct, frozen=True):
    """`sender` or `callback_url` choose the sender; without them, the origin decides."""

    conversation_id: str
    request_id: str
    response_id: str
    payload: Any = None
    sender: str | None = None
    callback_url: str | None = None
    address: Any = None
    corr: str = ""
    response_timestamp: Timestamp | None = None


class AcceptedReply(msgspec.Struct, frozen=True):
    status: Literal["accepted", "duplicate"]
    conversation_id: str
    request_id: str
    response_id: str


class AckBody(msgspec.Struct, frozen=True):
    """Without the conversation id, every partition is asked."""

    async_response_id: str
    conversation_id: str | None = None


class AcknowledgedReply(msgspec.Struct, frozen=True):
    status: Literal["delivered", "cancelled"]


def http_api(runtime: Runtime, app: Application) -> HttpApi:
    return HttpApi("conversations", ConversationsHttpApi(runtime).operations())


class ConversationsHttpApi:
    def __init__(self, runtime: Runtime) -> None:
        self._settings = runtime.settings
        self._service = ConversationService(runtime)

    def operations(self) -> list[Operation]:
        conversation = Parameter("conversation_id", "path", description="Id of the conversation")
        return [
            Operation(
                "POST", "/v1/conversations/requests", "open_request",
                "Open a request: a message that replies will answer", self.open_request,
                OpenRequestBody, {201: OpenedRequest, 200: OpenedRequest}, (TRACE,), scope="write",
            ),
            Operation(
                "POST", "/v1/conversations/replies", "post_reply",
                "Post a reply to an open request; it is sent when it is its turn", self.post_reply,
                ReplyBody, {202: AcceptedReply, 200: AcceptedReply}, (TRACE,), scope="write",
            ),
            Operation(
                "POST", "/v1/conversations/acks", "acknowledge_reply",
                "Acknowledge a sent reply, so that the next can be sent", self.acknowledge_reply,
                AckBody, {200: AcknowledgedReply}, scope="write",
            ),
            # Before the path of a conversation, which takes every rest.
            *DeadLetterOperations(
                "/v1/conversations/replies/dead", "dead_reply", "dead_replies",
                "replies that were cancelled after a failure, the oldest first", DeadReply,
                lambda _: self._service.dead,
            ).operations(),
            Operation(
                "GET", "/v1/conversations/{conversation_id:path}", "show_conversation",
                "Show a conversation's queue, and why each reply waits", self.show_conversation,
                None, {200: ConversationView}, (conversation,),
            ),
        ]  # fmt: skip

    async def open_request(self, request: Request) -> Response:
        body = await self._body(request, OpenRequestBody)
        corr = body.corr or traceparent_of(request)
        status, message = await self._service.request(
            body.conversation_id, body.request_id, body.origin, corr=corr,
            request_timestamp=body.request_timestamp,
        )  # fmt: skip
        created = status == "created"
        opened = OpenedRequest("created" if created else "duplicate", RequestView.of(message))
        return reply(opened, 201 if created else 200)

    async def post_reply(self, request: Request) -> Response:
        body = await self._body(request, ReplyBody)
        options = MessageOptions(body.payload, body.sender, body.callback_url, body.address)
        status = await self._service.post_reply(
            body.conversation_id, body.request_id, body.response_id, options,
            corr=body.corr or traceparent_of(request), response_timestamp=body.response_timestamp,
        )  # fmt: skip
        accepted = status == "accepted"
        answer = AcceptedReply(
            "accepted" if accepted else "duplicate",
            body.conversation_id,
            body.request_id,
            body.response_id,
        )
        return reply(answer, 202 if accepted else 200)

    async def acknowledge_reply(self, request: Request) -> Response:
        body = await self._body(request, AckBody)
        status = await self._service.acknowledge(body.async_response_id, body.conversation_id)
        if status == "gone":
            raise ReplyUnknown("the reply expired before its ACK came")
        return reply(AcknowledgedReply("delivered" if status == "delivered" else "cancelled"))

    async def show_conversation(self, request: Request) -> Response:
        return reply(await self._service.show(request.path_params["conversation_id"]))

    async def _body(self, request: Request, kind: Any) -> Any:
        return decode(await read_bytes(request, self._settings.limits.http_body_bytes_max), kind)
