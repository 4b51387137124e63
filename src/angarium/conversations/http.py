"""The module over HTTP: open a request, post a reply, acknowledge, look at a conversation.

The process that answers does not send: a reply it takes in is handed to the next process of the
role `conversations` that asks.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.conversations.errors import ReplyUnknown
from angarium.conversations.model import ConversationMessage, MessageOptions, TaskItem
from angarium.conversations.operations import MessageSyncManager
from angarium.conversations.store import ConversationStore
from angarium.conversations.views import ConversationView, view_conversation
from angarium.runtime.application import Angarium
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
from angarium.runtime.outbound import check_url
from angarium.runtime.runtime import Runtime

# Numbers are exact up to here in Redis' scripts and in JavaScript.
Timestamp = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class OpenRequestBody(msgspec.Struct, frozen=True, rename="camel"):
    conversation_id: str
    request_id: str
    origin: str
    corr: str = ""
    request_timestamp: Timestamp | None = None


class OpenedRequest(msgspec.Struct, frozen=True, rename="camel"):
    status: Literal["created", "duplicate"]
    request: ConversationMessage


class ReplyBody(msgspec.Struct, frozen=True, rename="camel"):
    """`callbackUrl` or `sender` say how it leaves; without them, its origin decides."""

    conversation_id: str
    request_id: str
    response_id: str
    payload: Any = None
    sender: str | None = None
    callback_url: str | None = None
    corr: str = ""
    response_timestamp: Timestamp | None = None


class AcceptedReply(msgspec.Struct, frozen=True, rename="camel"):
    status: Literal["accepted", "duplicate"]
    conversation_id: str
    request_id: str
    response_id: str


class AckBody(msgspec.Struct, frozen=True, rename="camel"):
    """With the conversation, one partition is asked; without it, all of them."""

    async_response_id: str
    conversation_id: str | None = None


class AcknowledgedReply(msgspec.Struct, frozen=True, rename="camel"):
    status: Literal["delivered", "cancelled"]


def http_api(runtime: Runtime, app: Angarium) -> HttpApi:
    return HttpApi("conversations", _Operations(runtime).all())


class _Operations:
    def __init__(self, runtime: Runtime) -> None:
        self._settings = runtime.settings
        self._store = ConversationStore(runtime)
        self._manager = MessageSyncManager(self._store, runtime.settings.conversations)

    def all(self) -> list[Operation]:
        conversation = Parameter("conversation_id", "path", description="Id of the conversation")
        return [
            Operation(
                "POST", "/v1/conversations/requests", "openRequest",
                "Open a request: what comes in and will be replied to", self.open_request,
                OpenRequestBody, {201: OpenedRequest, 200: OpenedRequest}, (TRACE,), scope="write",
            ),
            Operation(
                "POST", "/v1/conversations/replies", "postReply",
                "Post a reply to an open request; it leaves when it is its turn", self.post_reply,
                ReplyBody, {202: AcceptedReply, 200: AcceptedReply}, (TRACE,), scope="write",
            ),
            Operation(
                "POST", "/v1/conversations/acks", "acknowledgeReply",
                "Acknowledge a sent reply, so that the next may go", self.acknowledge_reply,
                AckBody, {200: AcknowledgedReply}, scope="write",
            ),
            Operation(
                "GET", "/v1/conversations/{conversation_id:path}", "showConversation",
                "Show who waits for whom, and why", self.show_conversation,
                None, {200: ConversationView}, (conversation,),
            ),
        ]  # fmt: skip

    async def open_request(self, request: Request) -> Response:
        body = await self._body(request, OpenRequestBody)
        corr = body.corr or traceparent_of(request)
        status, message = await self._manager.create_conversation_register(
            body.origin, body.conversation_id, body.request_id, corr, body.request_timestamp
        )
        opened = OpenedRequest("created" if status == "created" else "duplicate", message)
        return reply(opened, 201 if status == "created" else 200)

    async def post_reply(self, request: Request) -> Response:
        body = await self._body(request, ReplyBody)
        if body.callback_url is not None:
            check_url(body.callback_url, allow_private=self._settings.allow_private_addresses)
        options = MessageOptions(body.payload, body.sender, body.callback_url)
        corr = body.corr or traceparent_of(request)
        task = TaskItem(options, body.response_id, body.conversation_id, corr=corr)
        accepted = await self._manager.mark_pending_conversation_register(
            "", body.conversation_id, body.request_id, task, corr, body.response_id,
            response_timestamp=body.response_timestamp,
        )  # fmt: skip
        status: Literal["accepted", "duplicate"] = "accepted"
        if accepted.duplicate:
            status = "duplicate"
        answer = AcceptedReply(status, body.conversation_id, body.request_id, body.response_id)
        return reply(answer, 200 if accepted.duplicate else 202)

    async def acknowledge_reply(self, request: Request) -> Response:
        body = await self._body(request, AckBody)
        status = await self._manager.acknowledge(body.async_response_id, body.conversation_id)
        if status == "gone":
            raise ReplyUnknown("its time was over before the ACK came")
        return reply(AcknowledgedReply("delivered" if status == "delivered" else "cancelled"))

    async def show_conversation(self, request: Request) -> Response:
        return reply(await view_conversation(self._store, request.path_params["conversation_id"]))

    async def _body(self, request: Request, kind: Any) -> Any:
        return decode(await read_bytes(request, self._settings.limits.http_body_bytes_max), kind)
