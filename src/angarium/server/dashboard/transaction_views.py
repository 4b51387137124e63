"""Lists transactions by status, from Redis and then from the archive, and scheduled webhooks.

Each page returns the cursor of the next. Handlers only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.runtime.errors import InputInvalid
from angarium.runtime.http_api import Operation, Parameter, reply
from angarium.runtime.runtime import Runtime
from angarium.server.dashboard.page_cursor import cursor_numbers, page_cursor
from angarium.server.dashboard.views import AFTER, LIMIT, limit_of
from angarium.transactions.model import (
    Transaction,
    TransactionStatus,
    check_name,
    check_transaction_id,
)
from angarium.transactions.settings import TransactionsSettings
from angarium.transactions.store import PipelineStore
from angarium.transactions.store.pages import (
    ScheduledWebhook,
    TransactionFilter,
    TransactionPages,
    TransactionSummary,
)

if TYPE_CHECKING:
    from angarium.transactions.archive import TransactionArchive

_NAME = {"type": "string", "minLength": 1, "maxLength": 128}
# Numbers are stored in 64 bits with a sign.
MOMENT_MAX = 2**63 - 1


class TransactionsPage(msgspec.Struct, frozen=True):
    """`next` is the parameter `after` for the next page; null on the last."""

    transactions: list[TransactionSummary]
    next: str | None


class WebhooksPage(msgspec.Struct, frozen=True):
    webhooks: list[ScheduledWebhook]
    next: str | None


class TransactionViews:
    def __init__(self, runtime: Runtime) -> None:
        self._settings = runtime.settings
        self._partitions = runtime.settings.partitions
        self._listing = TransactionPages(runtime)
        self._pipelines = runtime.store(PipelineStore)
        self._opened: TransactionArchive | None = None

    def operations(self) -> list[Operation]:
        status = Parameter(
            "status", schema={"enum": [each.value for each in TransactionStatus]}, required=True
        )
        named = (Parameter("pipeline", schema=_NAME), Parameter("owner", schema=_NAME))
        return [
            Operation(
                "GET", "/v1/transaction-list", "pageTransactions",
                "Summaries of the transactions of one status, in pages", self.rows,
                answers={200: TransactionsPage}, parameters=(status, *named, LIMIT, AFTER),
            ),
            Operation(
                "GET", "/v1/transaction-webhooks", "pageWebhooks",
                "Scheduled webhooks with the time of their next attempt", self.webhooks,
                answers={200: WebhooksPage}, parameters=(LIMIT, AFTER),
            ),
        ]  # fmt: skip

    @property
    def _archive(self) -> TransactionArchive:
        if self._opened is None:
            from angarium.transactions.archive import (
                TransactionArchive,  # SQLAlchemy: only when needed
            )

            self._opened = TransactionArchive(self._settings.database_url)
        return self._opened

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def rows(self, request: Request) -> Response:
        wanted, limit = _wanted(request), limit_of(request)
        after = request.query_params.get("after")
        if after is not None and after.startswith("archive:"):
            return reply(await self._archived(wanted, limit, [], _moment_of(after)))
        sources = self._listing.sources(wanted.status, await self._groups())
        place, first = cursor_numbers(after, 2)
        found: list[TransactionSummary] = []
        while place < len(sources) and len(found) < limit:
            left = limit - len(found)
            some, going_on = await self._listing.rows(sources[place], wanted, first, left)
            found += some
            if going_on is not None:
                # The scan limit was reached; the next page continues in this source.
                return reply(TransactionsPage(found, page_cursor(place, going_on)))
            place, first = place + 1, 0
        if place < len(sources):
            return reply(TransactionsPage(found, page_cursor(place, first)))
        if not wanted.status.final:
            return reply(TransactionsPage(found, None))
        return reply(await self._archived(wanted, limit, found, None))

    async def _archived(
        self,
        wanted: TransactionFilter,
        limit: int,
        found: Sequence[TransactionSummary],
        before: tuple[int, str] | None,
    ) -> TransactionsPage:
        left = limit - len(found)
        if left <= 0:
            return TransactionsPage(list(found), f"archive:{MOMENT_MAX}:~")
        some = await self._archive.page(
            wanted.status, left, pipeline=wanted.pipeline, owner=wanted.owner, before=before
        )
        known = {each.id for each in found}
        rows = [*found, *(_row(each) for each in some if each.id not in known)]
        if len(some) < left:
            return TransactionsPage(rows, None)
        last = some[-1]
        return TransactionsPage(rows, f"archive:{last.completed_ms or last.updated_ms}:{last.id}")

    async def webhooks(self, request: Request) -> Response:
        limit = limit_of(request)
        partition, first = cursor_numbers(request.query_params.get("after"), 2)
        found: list[ScheduledWebhook] = []
        while partition < self._partitions and len(found) < limit:
            some, going_on = await self._listing.webhooks(partition, first, limit - len(found))
            found += some
            partition, first = (partition + 1, 0) if going_on is None else (partition, going_on)
        following = page_cursor(partition, first) if partition < self._partitions else None
        return reply(WebhooksPage(found, following))

    async def _groups(self) -> list[str]:
        known = {each.node_group for each in (await self._pipelines.all())[0].values()}
        return sorted(known | set(self._settings.group(TransactionsSettings).node_groups))


def _wanted(request: Request) -> TransactionFilter:
    asked = request.query_params
    try:
        status = TransactionStatus(cast("str", asked.get("status")))
    except ValueError:
        raise InputInvalid(f"status must be one of {', '.join(TransactionStatus)}") from None
    names = {each: check_name(asked[each], each) for each in ("pipeline", "owner") if each in asked}
    return TransactionFilter(status, **names)


def _moment_of(after: str) -> tuple[int, str]:
    _, _, rest = after.partition(":")
    moment, _, id = rest.partition(":")
    (number,) = cursor_numbers(moment, 1)
    if number > MOMENT_MAX:
        raise InputInvalid(f"{after[:100]!r} is not a page cursor; use `next` of the page before")
    return number, id if id == "~" else check_transaction_id(id)


def _row(transaction: Transaction) -> TransactionSummary:
    return msgspec.convert(transaction, TransactionSummary, from_attributes=True)
