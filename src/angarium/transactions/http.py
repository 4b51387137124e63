"""The HTTP API of this module: `/v1/transactions…`, `/v1/pipelines…`, statistics and health.

Bodies and answers are in `http_bodies.py`. Handlers decode, call
`Transactions` and encode. They make no decisions. `/datp/1.0/…` is in `compat.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from angarium.runtime.application import Application
from angarium.runtime.dead_letters_http import DeadLetterOperations
from angarium.runtime.errors import AngariumError, InputInvalid, LimitExceeded
from angarium.runtime.http_api import (
    TRACE,
    HttpApi,
    Operation,
    Parameter,
    Problem,
    decode,
    read_bytes,
    reply,
    traceparent_of,
)
from angarium.runtime.runtime import Runtime
from angarium.runtime.tenants import by_body, by_query
from angarium.transactions import compat
from angarium.transactions.dead_letters import DeadTransaction, TransactionDeadLetters
from angarium.transactions.http_bodies import (
    OwnedBatch,
    OwnedStart,
    PipelinesAnswer,
    PipelineStoredAnswer,
    RerunBody,
    SwitchBody,
    TransactionBatchAnswer,
    TransactionBatchBody,
    TransactionBatchItem,
    TransactionChangeAnswer,
    TransactionStartBody,
    TransactionStartedBody,
    TransactionStatisticsAnswer,
)
from angarium.transactions.limits import TransactionsLimits
from angarium.transactions.long_polls import LongPolls
from angarium.transactions.model import (
    OWNER_DEFAULT,
    Transaction,
    TransactionStart,
    TransactionStarted,
    TransactionStatus,
    check_name,
)
from angarium.transactions.pages import TransactionFilter, WholeTransactionsPage
from angarium.transactions.pipeline import PipelineDefinition, pipeline_of
from angarium.transactions.queries import TransactionHealthReport
from angarium.transactions.service import StateLookup, TransactionsService
from angarium.transactions.settings import TransactionsSettings
from angarium.transactions.statistics import StatisticsLevel

LIST_MAX, LIST_DEFAULT = 500, 50
LONGEST_RUNNING_MAX, LONGEST_RUNNING_DEFAULT = 200, 20

ID = Parameter("id", "path", {"type": "string", "minLength": 1, "maxLength": 200})
_NAME = {"type": "string", "minLength": 1, "maxLength": 128}
NAME = Parameter("name", "path", _NAME)
COUNT = Parameter("limit", schema={"type": "integer", "minimum": 1, "maximum": LIST_MAX})
AFTER = Parameter("after", description="`next` of the page before.")
ROOT = "/v1/transactions"


def http_api(runtime: Runtime, app: Application, lake_lookup: StateLookup | None = None) -> HttpApi:
    transactions = TransactionsService(runtime, app, lake_lookup)
    long_polls = LongPolls(runtime, transactions)
    handlers = TransactionsHttpApi(runtime, transactions, long_polls)
    operations = [*handlers.operations(), *compat.operations(runtime, transactions, long_polls)]
    return HttpApi("transactions", operations, long_polls)


class TransactionsHttpApi:
    def __init__(
        self, runtime: Runtime, transactions: TransactionsService, long_polls: LongPolls
    ) -> None:
        self._transactions = transactions
        self._long_polls = long_polls
        self._limits = runtime.settings.limits_of(TransactionsLimits)
        self._tracing = runtime.tracing
        self._wait_s_max = runtime.settings.group(TransactionsSettings).longpoll_timeout_ms / 1000

    def operations(self) -> list[Operation]:
        return [
            # First, so that "dead" is not taken for an id.
            *self._dead_letters(),
            *self._starts(),
            *self._queries(),
            *self._changes(),
            *self._pipelines(),
            *self._reports(),
        ]

    def _starts(self) -> list[Operation]:
        starts_own = by_body(self._read, lambda body: {decode(body, OwnedStart).owner})
        batch_own = by_body(
            self._read, lambda body: {each.owner for each in decode(body, OwnedBatch).transactions}
        )
        return [
            Operation("POST", ROOT, "start_transaction", "Start a transaction", self.start,
                      TransactionStartBody, dict.fromkeys((201, 200), TransactionStartedBody),
                      [TRACE], scope="write", tenant=starts_own),
            Operation("POST", f"{ROOT}/batch", "start_transactions", "Start many at once",
                      self.start_batch, TransactionBatchBody, {200: TransactionBatchAnswer},
                      [TRACE], scope="write", tenant=batch_own),
        ]  # fmt: skip

    def _queries(self) -> list[Operation]:
        wait = Parameter(
            "wait_s", schema={"type": "number", "minimum": 0},
            description="Wait this long for the end. An answer with the end counts as notification",
        )  # fmt: skip
        return [
            Operation("GET", ROOT, "list_transactions", "List transactions by status",
                      self.list, answers={200: WholeTransactionsPage}, parameters=[
                          Parameter("status", schema=_enum(TransactionStatus), required=True),
                          Parameter("pipeline", schema=_NAME), Parameter("owner", schema=_NAME),
                          COUNT, AFTER],
                      tenant=by_query("owner")),
            Operation("GET", f"{ROOT}/by-external-id/{{external_id}}",
                      "get_transaction_by_external_id",
                      "Get the newest transaction that an owner started under this id",
                      self.get_by_external_id, answers={200: Transaction}, parameters=[
                          Parameter("external_id", "path", {"type": "string", "minLength": 1,
                                                            "maxLength": 256}),
                          Parameter("owner", schema=_NAME)], tenant=by_query("owner")),
            Operation("GET", f"{ROOT}/{{id}}", "get_transaction", "Get the state of a transaction",
                      self.get, answers={200: Transaction}, parameters=[ID, wait],
                      tenant=self._check_owner),
            Operation("GET", f"{ROOT}/{{id}}/events", "follow_transaction",
                      "Stream the events of a transaction until its end (server-sent events)",
                      self.events, answers={200: str}, parameters=[ID],
                      content="text/event-stream", tenant=self._check_owner),
        ]  # fmt: skip

    def _changes(self) -> list[Operation]:
        return [
            Operation("POST", f"{ROOT}/{{id}}/cancel", "cancel_transaction",
                      "Cancel; a running transaction is stopped by its node", self.cancel,
                      answers=dict.fromkeys((200, 202), TransactionChangeAnswer),
                      parameters=[ID], scope="write", tenant=self._check_owner),
            Operation("PUT", f"{ROOT}/{{id}}/switches/{{name}}", "set_switch",
                      "Set a switch; wakes a transaction that sleeps until it is set", self.switch,
                      SwitchBody, {200: TransactionChangeAnswer}, [ID, NAME], scope="write",
                      tenant=self._check_owner),
            Operation("POST", f"{ROOT}/{{id}}/rerun", "rerun_transaction",
                      "Queue a dead letter again at the step that failed", self.rerun,
                      RerunBody, {200: TransactionChangeAnswer}, [ID], scope="write",
                      tenant=self._check_owner),
        ]  # fmt: skip

    def _dead_letters(self) -> list[Operation]:
        names = [Parameter("pipeline", schema=_NAME), Parameter("owner", schema=_NAME)]
        return DeadLetterOperations(
            f"{ROOT}/dead", "dead_transaction", "dead_transactions",
            "transactions that ended because a step failed too often, the last one first",
            DeadTransaction, self._dead_letters_of, filters=names,
            tenant_of_list=by_query("owner"), tenant_of_one=self._check_owner,
        ).operations()  # fmt: skip

    def _pipelines(self) -> list[Operation]:
        return [
            Operation("GET", "/v1/pipelines", "list_pipelines",
                      "List the newest version of each pipeline",
                      self.pipelines, answers={200: PipelinesAnswer}),
            Operation("GET", "/v1/pipelines/{name}", "get_pipeline",
                      "List all versions of a pipeline, newest first",
                      self.pipeline, answers={200: PipelinesAnswer}, parameters=[NAME]),
            Operation("PUT", "/v1/pipelines/{name}", "put_pipeline",
                      "Store a definition; transactions keep the version they started with",
                      self.put_pipeline,
                      PipelineDefinition, {200: PipelineStoredAnswer}, [NAME], scope="admin"),
        ]  # fmt: skip

    def _reports(self) -> list[Operation]:
        return [
            Operation("GET", "/v1/transaction-statistics", "transaction_statistics",
                      "Counters by interval, newest first", self.statistics,
                      answers={200: TransactionStatisticsAnswer}, parameters=[
                          Parameter("level", schema=_enum(StatisticsLevel)),
                          Parameter("intervals", schema={"type": "integer", "minimum": 1})]),
            Operation("GET", "/v1/transaction-watch", "watch_transactions",
                      "Longest running transactions, queues, awaited steps, silent nodes",
                      self.health_report,
                      answers={200: TransactionHealthReport}, parameters=[
                          Parameter("elders", schema={"type": "integer", "minimum": 1,
                                                      "maximum": LONGEST_RUNNING_MAX})]),
        ]  # fmt: skip

    def _dead_letters_of(self, request: Request) -> TransactionDeadLetters:
        return self._transactions.dead_letters(**_names(request))

    async def _check_owner(self, request: Request, tenant: str) -> None:
        id = request.path_params["id"]
        await self._transactions.check_owner(id, tenant)

    async def start(self, request: Request) -> Response:
        body = await self._body(request, TransactionStartBody)
        started = await self._started(body.start(traceparent_of(request)))
        answer = TransactionStartedBody(started.transaction_id, started.duplicate)
        return reply(answer, 200 if started.duplicate else 201)

    async def start_batch(self, request: Request) -> Response:
        body = await self._body(request, TransactionBatchBody)
        count, count_max = len(body.transactions), self._limits.transaction_batch_items_max
        if count > count_max:
            raise LimitExceeded("transaction_batch_items_max", count, count_max)
        trace = traceparent_of(request)
        answers = await asyncio.gather(
            *(self._start_one(each.start(trace)) for each in body.transactions)
        )
        return reply(TransactionBatchAnswer(list(answers)))

    async def _started(self, start: TransactionStart) -> TransactionStarted:
        began_ns = time.time_ns() if self._tracing is not None else 0
        started = await self._transactions.start(start)
        if self._tracing is not None and not start.metadata and not started.duplicate:
            # Without a caller's trace, the transaction has its own. Steps derive it from the id.
            values = {"angarium.pipeline": start.pipeline}
            self._tracing.started(started.transaction_id, "transactions start", began_ns, values)
        return started

    async def _start_one(self, start: TransactionStart) -> TransactionBatchItem:
        try:
            started = await self._started(start)
        except AngariumError as error:
            why = Problem(type(error).__name__, error.http_status, str(error), error.code)
            return TransactionBatchItem(problem=why)
        return TransactionBatchItem(started.transaction_id, started.duplicate)

    async def get(self, request: Request) -> Response:
        id, wait_s = request.path_params["id"], _number(request, "wait_s", 0.0)
        if not 0 <= wait_s < 1e9:
            raise InputInvalid("wait_s must be a number of seconds")
        if wait_s:
            polled = await self._long_polls.wait(id, min(wait_s, self._wait_s_max))
            return self._long_polls.response(polled, polled.transaction.without_secrets())
        return reply((await self._transactions.get(id)).without_secrets())

    async def get_by_external_id(self, request: Request) -> Response:
        owner = request.query_params.get("owner", OWNER_DEFAULT)
        external_id = request.path_params["external_id"]
        found = await self._transactions.get_by_external_id(owner, external_id)
        return reply(found.without_secrets())

    async def list(self, request: Request) -> Response:
        asked = request.query_params
        status = _choice(TransactionStatus, asked.get("status"), "status")
        count = _count(request, "limit", LIST_DEFAULT, LIST_MAX)
        wanted = TransactionFilter(status, **_names(request))
        page = await self._transactions.page_whole(wanted, count, asked.get("after"))
        shown = [each.without_secrets() for each in page.transactions]
        return reply(msgspec.structs.replace(page, transactions=shown))

    async def cancel(self, request: Request) -> Response:
        status = await self._transactions.cancel(request.path_params["id"])
        return reply(TransactionChangeAnswer(status), 202 if status == "cancelling" else 200)

    async def rerun(self, request: Request) -> Response:
        body = await self._body(request, RerunBody)
        data = b"" if body.data is msgspec.UNSET else msgspec.json.encode(body.data)
        status = await self._transactions.rerun(request.path_params["id"], data)
        return reply(TransactionChangeAnswer(status))

    async def switch(self, request: Request) -> Response:
        body = await self._body(request, SwitchBody)
        id, name = request.path_params["id"], request.path_params["name"]
        return reply(
            TransactionChangeAnswer(await self._transactions.set_switch(id, name, body.value))
        )

    async def events(self, request: Request) -> Response:
        stream = self._long_polls.follow(request.path_params["id"])
        first = await anext(stream)  # an unknown id is answered with a problem, not with a stream
        return StreamingResponse(_events(first, stream), media_type="text/event-stream")

    async def pipelines(self, _: Request) -> Response:
        return reply(PipelinesAnswer(list((await self._transactions.pipelines()).values())))

    async def pipeline(self, request: Request) -> Response:
        found = await self._transactions.versions(request.path_params["name"])
        return reply(PipelinesAnswer(found))

    async def put_pipeline(self, request: Request) -> Response:
        pipeline = pipeline_of(await self._body(request, PipelineDefinition))
        if pipeline.name != request.path_params["name"]:
            raise InputInvalid("the name in the definition must be the name in the path")
        stored = await self._transactions.load([pipeline])
        return reply(PipelineStoredAnswer(pipeline.name, stored[pipeline.name]))

    async def statistics(self, request: Request) -> Response:
        level = _choice(StatisticsLevel, request.query_params.get("level", "fine"), "level")
        count = _count(request, "intervals", level.intervals_max, 2**31)
        found = await self._transactions.statistics(level, count)
        return reply(TransactionStatisticsAnswer(level.interval_s, found))

    async def health_report(self, request: Request) -> Response:
        count = _count(request, "elders", LONGEST_RUNNING_DEFAULT, LONGEST_RUNNING_MAX)
        return reply(await self._transactions.health_report(count))

    async def _body(self, request: Request, kind: type[Any]) -> Any:
        return decode(await self._read(request), kind)

    async def _read(self, request: Request) -> bytes:
        return await read_bytes(request, self._limits.http_body_bytes_max)


async def _events(
    first: tuple[str, Transaction | None],
    rest: AsyncIterator[tuple[str, Transaction | None]],
) -> AsyncIterator[bytes]:
    yield _event(*first)
    async for event, transaction in rest:
        yield _event(event, transaction)


def _event(event: str, transaction: Transaction | None) -> bytes:
    if transaction is None:
        return b": alive\n\n"
    shown = msgspec.json.encode(transaction.without_secrets())
    return b"event: %b\ndata: %b\n\n" % (event.encode(), shown)


def _names(request: Request) -> dict[str, str]:
    """The filters that are given. An empty name is refused: it would choose all."""
    asked = request.query_params
    return {each: check_name(asked[each], each) for each in ("pipeline", "owner") if each in asked}


def _number(request: Request, name: str, default: float) -> float:
    try:
        return float(request.query_params.get(name, default))
    except ValueError:
        raise InputInvalid(f"{name} must be a number") from None


def _count(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= most:
        raise InputInvalid(f"{name} must be a whole number from 1 to {most}")
    return int(text)


def _enum(kind: type[StrEnum]) -> dict[str, Any]:
    return {"enum": [each.value for each in kind]}


def _choice(kind: Any, value: str | None, name: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InputInvalid(f"{name} must be one of {', '.join(kind)}") from None
