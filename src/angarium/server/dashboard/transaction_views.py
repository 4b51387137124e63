"""Lists transactions by status, from Redis and then from the archive, and scheduled webhooks.

Each page returns the cursor of the next. Handlers only read.
"""

from __future__ import annotations

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from angarium.runtime.errors import InputInvalid
from angarium.runtime.http_api import Operation, Parameter, reply
from angarium.runtime.runtime import Runtime
from angarium.server.dashboard.views import AFTER, LIMIT, limit_of
from angarium.transactions.model import TransactionStatus, check_name
from angarium.transactions.pages import TransactionFilter, TransactionsPage, WebhooksPage
from angarium.transactions.service import TransactionsService

_NAME = {"type": "string", "minLength": 1, "maxLength": 128}


class TransactionViews:
    def __init__(self, runtime: Runtime) -> None:
        self._transactions = TransactionsService(runtime)

    def operations(self) -> list[Operation]:
        status = Parameter(
            "status", schema={"enum": [each.value for each in TransactionStatus]}, required=True
        )
        named = (Parameter("pipeline", schema=_NAME), Parameter("owner", schema=_NAME))
        return [
            Operation(
                "GET", "/v1/transaction-list", "page_transactions",
                "Summaries of the transactions of one status, in pages", self.rows,
                answers={200: TransactionsPage}, parameters=(status, *named, LIMIT, AFTER),
            ),
            Operation(
                "GET", "/v1/transaction-webhooks", "page_webhooks",
                "Scheduled webhooks with the time of their next attempt", self.webhooks,
                answers={200: WebhooksPage}, parameters=(LIMIT, AFTER),
            ),
        ]  # fmt: skip

    async def close(self) -> None:
        await self._transactions.close()

    async def rows(self, request: Request) -> Response:
        after = request.query_params.get("after")
        return reply(await self._transactions.page(_wanted(request), limit_of(request), after))

    async def webhooks(self, request: Request) -> Response:
        after = request.query_params.get("after")
        return reply(await self._transactions.page_webhooks(limit_of(request), after))


def _wanted(request: Request) -> TransactionFilter:
    asked = request.query_params
    try:
        status = TransactionStatus(cast("str", asked.get("status")))
    except ValueError:
        raise InputInvalid(f"status must be one of {', '.join(TransactionStatus)}") from None
    names = {each: check_name(asked[each], each) for each in ("pipeline", "owner") if each in asked}
    return TransactionFilter(status, **names)
