"""`/datp/1.0/…`, as existing clients call it: start, status, status by externalId.

The reply is the one that webhooks carry. A long poll is asked for by `reply=longpoll` in the query,
or in the metadata of a start by `reply: "longpoll"` or `poll: "long"`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.runtime.errors import InputInvalid
from angarium.runtime.http_api import (
    TRACE,
    Operation,
    Parameter,
    decode,
    read_bytes,
    reply,
    traceparent_of,
)
from angarium.runtime.runtime import Runtime
from angarium.transactions.client import Transactions
from angarium.transactions.model import OWNER_DEFAULT, Start
from angarium.transactions.reply import Reply, reply_about
from angarium.transactions.watcher import Watcher

ROOT = "/datp/1.0/tx"
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]


class StartMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Fields that we do not know are ignored: clients of other versions send some."""

    owner: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.@:+-]{1,128}$")] = OWNER_DEFAULT
    external_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    reply: _Text | None = None
    poll: _Text | None = None
    webhook: _Text | None = None
    progress_reports: bool = False
    poll_reply_cancels_webhook: bool = False
    traceparent: Annotated[str, msgspec.Meta(max_length=512)] | None = None


class StartRequest(msgspec.Struct, frozen=True):
    metadata: StartMetadata = StartMetadata()
    data: Any = None


def operations(runtime: Runtime, transactions: Transactions, watcher: Watcher) -> list[Operation]:
    handlers = _Handlers(runtime, transactions, watcher)
    text = {"type": "string", "minLength": 1, "maxLength": 200}
    poll = Parameter("reply", schema={"enum": ["shortpoll", "longpoll"]})
    owner = Parameter("owner", schema=text)
    return [
        Operation("PUT", f"{ROOT}/start/{{type}}", "datpStart", "Start a transaction",
                  handlers.start, StartRequest, {200: Reply},
                  [Parameter("type", "path", text), TRACE], scope="write"),
        Operation("GET", f"{ROOT}/status/{{txId}}", "datpStatus", "Status of a transaction",
                  handlers.status, None, {200: Reply}, [Parameter("txId", "path", text), poll]),
        Operation("GET", f"{ROOT}/statusByExternalId/{{externalId}}", "datpStatusByExternalId",
                  "Status of the transaction that an owner started under this id",
                  handlers.status_by_external_id, None, {200: Reply},
                  [Parameter("externalId", "path", text), owner, poll]),
    ]  # fmt: skip


class _Handlers:
    def __init__(self, runtime: Runtime, transactions: Transactions, watcher: Watcher) -> None:
        self._transactions = transactions
        self._watcher = watcher
        self._bytes_max = runtime.settings.limits.http_body_bytes_max
        self._timeout_s = runtime.settings.transactions.longpoll_timeout_ms / 1000

    async def start(self, request: Request) -> Response:
        body = decode(await read_bytes(request, self._bytes_max), StartRequest)
        start, waits = _start_of(request.path_params["type"], body, traceparent_of(request))
        started = await self._transactions.start(start)
        return await self._answer(started.transaction_id, waits, fresh=not started.duplicate)

    async def status(self, request: Request) -> Response:
        return await self._answer(request.path_params["txId"], _long_poll(request))

    async def status_by_external_id(self, request: Request) -> Response:
        owner = request.query_params.get("owner", OWNER_DEFAULT)
        external_id = request.path_params["externalId"]
        found = await self._transactions.get_external(owner, external_id)
        if _long_poll(request):
            return await self._answer(found.id, waits=True)
        return reply(reply_about(found))

    async def _answer(self, transaction_id: str, waits: bool, *, fresh: bool = False) -> Response:
        if not waits:
            return reply(reply_about(await self._transactions.get(transaction_id)))
        polled = await self._watcher.wait(transaction_id, self._timeout_s, fresh=fresh)
        return self._watcher.answer(polled, reply_about(polled.transaction))


def _start_of(pipeline: str, body: StartRequest, trace: str) -> tuple[Start, bool]:
    """What to start, and whether the client waits for the end."""
    metadata, webhook = body.metadata, body.metadata.webhook
    if trace and metadata.traceparent is None:
        metadata = msgspec.structs.replace(metadata, traceparent=trace)
    waits = metadata.poll == "long" or metadata.reply == "longpoll"
    if metadata.poll not in (None, "short", "long"):
        raise InputInvalid("metadata.poll must be short or long")
    if metadata.reply not in (None, "shortpoll", "longpoll"):
        webhook = webhook or metadata.reply
    start = Start(
        pipeline=pipeline,
        data=msgspec.json.encode({} if body.data is None else body.data),
        owner=metadata.owner,
        external_id=metadata.external_id,
        webhook=webhook,
        progress_reports=metadata.progress_reports,
        poll_cancels_webhook=metadata.poll_reply_cancels_webhook,
        metadata=msgspec.json.encode(metadata) if metadata != StartMetadata() else b"",
    )
    return start, waits


def _long_poll(request: Request) -> bool:
    asked = request.query_params.get("reply", "shortpoll")
    if asked not in ("shortpoll", "longpoll"):
        raise InputInvalid("reply must be shortpoll or longpoll")
    return asked == "longpoll"
