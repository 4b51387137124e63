"""The module's HTTP API: `/v1/transactions…` and what belongs to it.

Bodies and answers are declared once, for the routes and the OpenAPI page alike. Handlers decode,
call `Transactions` and encode; they decide nothing. `/datp/1.0/…` is in `datp.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from angarium.runtime.application import Angarium
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
from angarium.runtime.trace import TRACEPARENT
from angarium.transactions import datp
from angarium.transactions.client import Elsewhere, Transactions
from angarium.transactions.model import (
    OWNER_DEFAULT,
    Start,
    Started,
    Status,
    Transaction,
    check_name,
)
from angarium.transactions.pipeline import Pipeline, pipeline_of
from angarium.transactions.statistics import Interval, Level
from angarium.transactions.store.reading import Watch
from angarium.transactions.watcher import Watcher

LIST_MAX, LIST_DEFAULT = 500, 50
ELDERS_MAX, ELDERS_DEFAULT = 200, 20

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.@:+-]{1,128}$")]
ID = Parameter("id", "path", {"type": "string", "minLength": 1, "maxLength": 200})
_NAME = {"type": "string", "minLength": 1, "maxLength": 128}


class StartBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`webhook` is told of the end, and of progress if `progress_reports`."""

    pipeline: Name
    data: Any = None
    owner: Name = OWNER_DEFAULT
    external_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    version: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    webhook: Annotated[str, msgspec.Meta(min_length=1, max_length=2000)] | None = None
    progress_reports: bool = False
    poll_cancels_webhook: bool = False

    def start(self, trace: str = "") -> Start:
        return Start(
            pipeline=self.pipeline,
            data=msgspec.json.encode({} if self.data is None else self.data),
            owner=self.owner,
            external_id=self.external_id,
            version=self.version,
            webhook=self.webhook,
            progress_reports=self.progress_reports,
            poll_cancels_webhook=self.poll_cancels_webhook,
            metadata=msgspec.json.encode({TRACEPARENT: trace}) if trace else b"",
        )


class StartedBody(msgspec.Struct, frozen=True):
    """`duplicate`: the externalId was taken, and this is its transaction."""

    id: str
    duplicate: bool


class BatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    transactions: Annotated[list[StartBody], msgspec.Meta(min_length=1)]


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Either the id, or why this one was refused."""

    id: str | None = None
    duplicate: bool = False
    problem: Problem | None = None


class BatchAnswer(msgspec.Struct, frozen=True):
    transactions: list[BatchItem]


class ListAnswer(msgspec.Struct, frozen=True):
    transactions: list[Transaction]


class ChangeAnswer(msgspec.Struct, frozen=True):
    status: str


class SwitchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: Annotated[str, msgspec.Meta(max_length=10_000)] = ""


class StoredAnswer(msgspec.Struct, frozen=True):
    name: str
    version: int


class PipelinesAnswer(msgspec.Struct, frozen=True):
    pipelines: list[Pipeline]


class StatisticsAnswer(msgspec.Struct, frozen=True):
    interval_s: int
    intervals: list[Interval]


def http_api(runtime: Runtime, app: Angarium, elsewhere: Elsewhere | None = None) -> HttpApi:
    transactions = Transactions(runtime, app, elsewhere)
    watcher = Watcher(runtime, transactions)
    handlers = Handlers(runtime, transactions, watcher)
    operations = [*handlers.operations(), *datp.operations(runtime, transactions, watcher)]
    return HttpApi("transactions", operations, watcher)


class Handlers:
    def __init__(self, runtime: Runtime, transactions: Transactions, watcher: Watcher) -> None:
        self._transactions = transactions
        self._watcher = watcher
        self._limits = runtime.settings.limits
        self._tracing = runtime.tracing
        self._wait_s_max = runtime.settings.transactions.longpoll_timeout_ms / 1000

    def operations(self) -> list[Operation]:
        wait = Parameter(
            "wait_s", schema={"type": "number", "minimum": 0},
            description="Wait this long for the end; the answer then counts as its notification",
        )  # fmt: skip
        count = Parameter("limit", schema={"type": "integer", "minimum": 1, "maximum": LIST_MAX})
        name = Parameter("name", "path", _NAME)
        root = "/v1/transactions"
        return [
            Operation("POST", root, "startTransaction", "Start a transaction", self.start,
                      StartBody, {201: StartedBody, 200: StartedBody}, [TRACE], scope="write"),
            Operation("POST", f"{root}/batch", "startTransactions", "Start many at once",
                      self.start_batch, BatchBody, {200: BatchAnswer}, [TRACE], scope="write"),
            Operation("GET", root, "listTransactions", "List transactions by status",
                      self.list, answers={200: ListAnswer}, parameters=[
                          Parameter("status", schema={"enum": [each.value for each in Status]},
                                    required=True),
                          Parameter("pipeline", schema=_NAME), Parameter("owner", schema=_NAME),
                          count]),
            Operation("GET", f"{root}/{{id}}", "getTransaction", "What is known of a transaction",
                      self.get, answers={200: Transaction}, parameters=[ID, wait]),
            Operation("POST", f"{root}/{{id}}/cancel", "cancelTransaction",
                      "Cancel; one that runs is stopped by its node", self.cancel,
                      answers={200: ChangeAnswer, 202: ChangeAnswer}, parameters=[ID],
                      scope="write"),
            Operation("PUT", f"{root}/{{id}}/switches/{{name}}", "setSwitch",
                      "Set a switch, which wakes a transaction that sleeps for it", self.switch,
                      SwitchBody, {200: ChangeAnswer}, [ID, name], scope="write"),
            Operation("GET", f"{root}/{{id}}/events", "followTransaction",
                      "What happens to a transaction, as server-sent events until its end",
                      self.events, answers={200: str}, parameters=[ID],
                      content="text/event-stream"),
            Operation("GET", "/v1/pipelines", "listPipelines", "The newest version of each",
                      self.pipelines, answers={200: PipelinesAnswer}),
            Operation("GET", "/v1/pipelines/{name}", "getPipeline", "All versions, newest first",
                      self.pipeline, answers={200: PipelinesAnswer}, parameters=[name]),
            Operation("PUT", "/v1/pipelines/{name}", "putPipeline",
                      "Store a definition; running transactions keep theirs", self.put_pipeline,
                      Pipeline, {200: StoredAnswer}, [name], scope="admin"),
            Operation("GET", "/v1/transaction-statistics", "transactionStatistics",
                      "Counters by interval, newest first", self.statistics,
                      answers={200: StatisticsAnswer}, parameters=[
                          Parameter("level", schema={"enum": [each.value for each in Level]}),
                          Parameter("intervals", schema={"type": "integer", "minimum": 1})]),
            Operation("GET", "/v1/transaction-watch", "watchTransactions",
                      "What needs an eye: elders, queues, awaited steps, silent nodes", self.watch,
                      answers={200: Watch}, parameters=[
                          Parameter("elders", schema={"type": "integer", "minimum": 1,
                                                      "maximum": ELDERS_MAX})]),
        ]  # fmt: skip

    async def start(self, request: Request) -> Response:
        body = await self._body(request, StartBody)
        started = await self._started(body.start(traceparent_of(request)))
        answer = StartedBody(started.transaction_id, started.duplicate)
        return reply(answer, 200 if started.duplicate else 201)

    async def start_batch(self, request: Request) -> Response:
        body = await self._body(request, BatchBody)
        count, count_max = len(body.transactions), self._limits.transaction_batch_items_max
        if count > count_max:
            raise LimitExceeded("transaction_batch_items_max", count, count_max)
        trace = traceparent_of(request)
        answers = await asyncio.gather(
            *(self._start_one(each.start(trace)) for each in body.transactions)
        )
        return reply(BatchAnswer(list(answers)))

    async def _started(self, start: Start) -> Started:
        began_ns = time.time_ns() if self._tracing is not None else 0
        started = await self._transactions.start(start)
        if self._tracing is not None and not start.metadata and not started.duplicate:
            # Without a caller's trace it begins its own, which its steps know by its id.
            values = {"angarium.pipeline": start.pipeline}
            self._tracing.started(started.transaction_id, "transactions start", began_ns, values)
        return started

    async def _start_one(self, start: Start) -> BatchItem:
        try:
            started = await self._started(start)
        except AngariumError as error:
            why = Problem(type(error).__name__, error.http_status, str(error), error.code)
            return BatchItem(problem=why)
        return BatchItem(started.transaction_id, started.duplicate)

    async def get(self, request: Request) -> Response:
        id, wait_s = request.path_params["id"], _number(request, "wait_s", 0.0)
        if not 0 <= wait_s < 1e9:
            raise InputInvalid("wait_s must be a number of seconds")
        if wait_s:
            polled = await self._watcher.wait(id, min(wait_s, self._wait_s_max))
            return self._watcher.answer(polled, polled.transaction)
        return reply(await self._transactions.get(id))

    async def list(self, request: Request) -> Response:
        asked = request.query_params
        status = _choice(Status, asked.get("status"), "status")
        names = {
            each: check_name(asked[each], each) for each in ("pipeline", "owner") if each in asked
        }
        count = _count(request, "limit", LIST_DEFAULT, LIST_MAX)
        return reply(ListAnswer(await self._transactions.listed(status, count, **names)))

    async def cancel(self, request: Request) -> Response:
        status = await self._transactions.cancel(request.path_params["id"])
        return reply(ChangeAnswer(status), 202 if status == "cancelling" else 200)

    async def switch(self, request: Request) -> Response:
        body = await self._body(request, SwitchBody)
        id, name = request.path_params["id"], request.path_params["name"]
        return reply(ChangeAnswer(await self._transactions.set_switch(id, name, body.value)))

    async def events(self, request: Request) -> Response:
        stream = self._watcher.follow(request.path_params["id"])
        first = await anext(stream)  # an unknown id is a problem, not a stream
        return StreamingResponse(_events(first, stream), media_type="text/event-stream")

    async def pipelines(self, _: Request) -> Response:
        return reply(PipelinesAnswer(list((await self._transactions.pipelines()).values())))

    async def pipeline(self, request: Request) -> Response:
        found = await self._transactions.versions(request.path_params["name"])
        return reply(PipelinesAnswer(found))

    async def put_pipeline(self, request: Request) -> Response:
        pipeline = pipeline_of(await self._body(request, Pipeline))
        if pipeline.name != request.path_params["name"]:
            raise InputInvalid("the definition has another name than the path")
        stored = await self._transactions.load([pipeline])
        return reply(StoredAnswer(pipeline.name, stored[pipeline.name]))

    async def statistics(self, request: Request) -> Response:
        level = _choice(Level, request.query_params.get("level", "fine"), "level")
        count = _count(request, "intervals", level.intervals_max, 2**31)
        found = await self._transactions.statistics(level, count)
        return reply(StatisticsAnswer(level.interval_s, found))

    async def watch(self, request: Request) -> Response:
        return reply(
            await self._transactions.watch(_count(request, "elders", ELDERS_DEFAULT, ELDERS_MAX))
        )

    async def _body(self, request: Request, kind: type[Any]) -> Any:
        return decode(await read_bytes(request, self._limits.http_body_bytes_max), kind)


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
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(transaction))


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


def _choice(kind: Any, value: str | None, name: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InputInvalid(f"{name} must be one of {', '.join(kind)}") from None
