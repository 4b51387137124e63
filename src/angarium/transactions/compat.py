"""The names of the known system: `/datp/1.0/…` and its reply, mapped to this module's own.

Existing clients call start, status and status by externalId, and ask for a long poll with
`reply=longpoll` in the query, or with `reply: "longpoll"` or `poll: "long"` in the metadata of a
start. Webhooks carry the same reply. The key names of the known system are those of
`runtime/keys/transactions.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
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
from angarium.runtime.tenants import by_body, by_query
from angarium.transactions.long_polls import LongPolls
from angarium.transactions.model import (
    NULL,
    OWNER_DEFAULT,
    Transaction,
    TransactionStart,
    TransactionStatus,
)
from angarium.transactions.service import TransactionsService
from angarium.transactions.settings import TransactionsSettings

ROOT = "/datp/1.0/tx"
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]


class DatpStartMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Unknown fields are ignored, because clients of other versions send some."""

    owner: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.@:+-]{1,128}$")] = OWNER_DEFAULT
    external_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    reply: _Text | None = None
    poll: _Text | None = None
    webhook: _Text | None = None
    progress_reports: bool = False
    poll_reply_cancels_webhook: bool = False
    traceparent: Annotated[str, msgspec.Meta(max_length=512)] | None = None


class DatpStartRequest(msgspec.Struct, frozen=True):
    metadata: DatpStartMetadata = DatpStartMetadata()
    data: Any = None


def operations(
    runtime: Runtime, transactions: TransactionsService, long_polls: LongPolls
) -> list[Operation]:
    handlers = DatpHttpApi(runtime, transactions, long_polls)
    text = {"type": "string", "minLength": 1, "maxLength": 200}
    poll = Parameter("reply", schema={"enum": ["shortpoll", "longpoll"]})
    owner = Parameter("owner", schema=text)
    return [
        Operation("PUT", f"{ROOT}/start/{{type}}", "datp_start", "Start a transaction",
                  handlers.start, DatpStartRequest, {200: DatpReply},
                  [Parameter("type", "path", text), TRACE], scope="write",
                  tenant=by_body(handlers.read, _owners_of)),
        Operation("GET", f"{ROOT}/status/{{txId}}", "datp_status", "Status of a transaction",
                  handlers.status, None, {200: DatpReply}, [Parameter("txId", "path", text), poll],
                  tenant=handlers.check_owner),
        Operation("GET", f"{ROOT}/statusByExternalId/{{externalId}}", "datp_status_by_external_id",
                  "Status of the transaction that an owner started under this id",
                  handlers.status_by_external_id, None, {200: DatpReply},
                  [Parameter("externalId", "path", text), owner, poll],
                  tenant=by_query("owner")),
    ]  # fmt: skip


class DatpHttpApi:
    def __init__(
        self, runtime: Runtime, transactions: TransactionsService, long_polls: LongPolls
    ) -> None:
        self._transactions = transactions
        self._long_polls = long_polls
        self._bytes_max = runtime.settings.limits.http_body_bytes_max
        self._timeout_s = runtime.settings.group(TransactionsSettings).longpoll_timeout_ms / 1000

    async def read(self, request: Request) -> bytes:
        return await read_bytes(request, self._bytes_max)

    async def check_owner(self, request: Request, tenant: str) -> None:
        await self._transactions.check_owner(request.path_params["txId"], tenant)

    async def start(self, request: Request) -> Response:
        body = decode(await self.read(request), DatpStartRequest)
        start, waits = _start_of(request.path_params["type"], body, traceparent_of(request))
        started = await self._transactions.start(start)
        return await self._answer(started.transaction_id, waits, just_started=not started.duplicate)

    async def status(self, request: Request) -> Response:
        return await self._answer(request.path_params["txId"], _long_poll(request))

    async def status_by_external_id(self, request: Request) -> Response:
        owner = request.query_params.get("owner", OWNER_DEFAULT)
        external_id = request.path_params["externalId"]
        found = await self._transactions.get_by_external_id(owner, external_id)
        if _long_poll(request):
            return await self._answer(found.id, waits=True)
        return reply(datp_reply(found))

    async def _answer(
        self, transaction_id: str, waits: bool, *, just_started: bool = False
    ) -> Response:
        if not waits:
            return reply(datp_reply(await self._transactions.get(transaction_id)))
        polled = await self._long_polls.wait(
            transaction_id, self._timeout_s, just_started=just_started, progress=True
        )
        return self._long_polls.response(polled, datp_reply(polled.transaction))


def _owners_of(body: bytes) -> set[str]:
    return {decode(body, DatpStartRequest).metadata.owner}


def _start_of(pipeline: str, body: DatpStartRequest, trace: str) -> tuple[TransactionStart, bool]:
    """The start that a client asks for, and whether the client waits for the end."""
    metadata, webhook = body.metadata, body.metadata.webhook
    if trace and metadata.traceparent is None:
        metadata = msgspec.structs.replace(metadata, traceparent=trace)
    waits = metadata.poll == "long" or metadata.reply == "longpoll"
    if metadata.poll not in (None, "short", "long"):
        raise InputInvalid("metadata.poll must be short or long")
    if metadata.reply not in (None, "shortpoll", "longpoll"):
        webhook = webhook or metadata.reply
    start = TransactionStart(
        pipeline=pipeline,
        data=msgspec.json.encode({} if body.data is None else body.data),
        owner=metadata.owner,
        external_id=metadata.external_id,
        webhook=webhook,
        progress_reports=metadata.progress_reports,
        poll_cancels_webhook=metadata.poll_reply_cancels_webhook,
        metadata=msgspec.json.encode(metadata) if metadata != DatpStartMetadata() else b"",
    )
    return start, waits


def _long_poll(request: Request) -> bool:
    asked = request.query_params.get("reply", "shortpoll")
    if asked not in ("shortpoll", "longpoll"):
        raise InputInvalid("reply must be shortpoll or longpoll")
    return asked == "longpoll"


# The reply


class DatpReplyMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    owner: str
    tx_id: str
    transaction_type: str
    status: str
    external_id: str | None = None
    note: str | None = None
    completion_time: str | None = None
    last_updated: str | None = None
    notified_time: str | None = None


class DatpReply(msgspec.Struct, frozen=True, rename="camel"):
    """`data` is the output of an ended transaction, and null before the end."""

    metadata: DatpReplyMetadata
    progress_report: msgspec.Raw
    data: msgspec.Raw


def datp_reply(transaction: Transaction) -> DatpReply:
    ended = transaction.status.final
    # The known system has no status `queued`: its transactions run from their start.
    status = (
        TransactionStatus.RUNNING
        if transaction.status is TransactionStatus.QUEUED
        else transaction.status
    )
    return DatpReply(
        DatpReplyMetadata(
            owner=transaction.owner,
            tx_id=transaction.id,
            transaction_type=transaction.pipeline,
            status=status.value,
            external_id=transaction.external_id,
            note=transaction.note,
            completion_time=_time(transaction.completed_ms),
            last_updated=_time(transaction.updated_ms),
            notified_time=_time(transaction.notified_ms),
        ),
        progress_report=transaction.progress,
        data=transaction.output if ended else NULL,
    )


class WebhookBody(DatpReply, frozen=True, kw_only=True):
    """`id` is the name of `txId` in `/v1`."""

    id: str


def webhook_body(transaction: Transaction) -> DatpReply:
    """The reply. With `id` for those that were not started by `/datp/1.0`."""
    found = datp_reply(transaction)
    # A start by /datp/1.0 names its webhook in the metadata.
    metadata = msgspec.json.decode(transaction.metadata)
    if isinstance(metadata, dict) and {"webhook", "reply"} & metadata.keys():
        return found
    return WebhookBody(found.metadata, found.progress_report, found.data, id=transaction.id)


def _time(ms: int | None) -> str | None:
    return None if ms is None else f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(maxsize=1_000)
def _second(seconds: int) -> str:
    """Cached, because formatting a date is slow and all replies of one second share it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
