"""The HTTP operations on the dead letters of a module.

    GET    PATH                list, by pages and by reason
    POST   PATH/retry          retry all, or all of a reason
    DELETE PATH                drop all, or all of a reason
    GET    PATH/{id}           show one with its content
    POST   PATH/{id}/retry     retry one
    DELETE PATH/{id}           drop one

Retrying needs the scope `write`, dropping `admin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.runtime.dead_letters import (
    PAGE_DEFAULT,
    PAGE_MAX,
    DeadLetter,
    DeadLetterPage,
    DeadLetters,
    unknown,
)
from angarium.runtime.errors import InputInvalid
from angarium.runtime.http_api import Operation, Parameter, read_bytes, reply
from angarium.runtime.tenants import TenantRule, all_tenants

LIMIT = Parameter(
    "limit", schema={"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT}
)
AFTER = Parameter("after", description="`next` of the page before.")
BODY_BYTES_MAX = 10_000
REASON = Parameter("reason", description="Text that the last reason contains.")


class RetriedDeadLetter(msgspec.Struct, frozen=True):
    id: str
    status: Literal["retried"]


class RetriedDeadLetters(msgspec.Struct, frozen=True):
    """`unusable`: their content is gone or can't be read, so they can only be dropped."""

    retried: int
    unusable: int


class DroppedDeadLetters(msgspec.Struct, frozen=True):
    dropped: int


class DeadLetterOperations:
    """`letters` gives the dead letters that a request is about; `filters` are the parameters by
    which it chooses. `one` and `many` name them in operation ids, such as `dead_reply`."""

    def __init__(
        self,
        path: str,
        one: str,
        many: str,
        what: str,
        kind: type[DeadLetter],
        letters: Callable[[Request], DeadLetters[Any]],
        *,
        filters: Sequence[Parameter] = (),
        tenant_of_list: TenantRule = all_tenants,
        tenant_of_one: TenantRule = all_tenants,
    ) -> None:
        self._path, self._one, self._many, self._what, self._kind = path, one, many, what, kind
        self._letters = letters
        self._filters = filters
        self._tenant_of_list, self._tenant_of_one = tenant_of_list, tenant_of_one

    def operations(self) -> list[Operation]:
        return [*self._of_list(), *self._of_one()]

    def _of_list(self) -> list[Operation]:
        path, many, what, tenant = self._path, self._many, self._what, self._tenant_of_list
        page: Any = DeadLetterPage[self._kind]  # type: ignore[name-defined]
        chosen = [REASON, *self._filters]
        return [
            Operation("GET", path, f"list_{many}", f"List {what}", self.page,
                      answers={200: page}, parameters=[LIMIT, AFTER, *chosen], tenant=tenant),
            Operation("POST", f"{path}/retry", f"retry_{many}",
                      f"Retry {what}: all of them, or all of a reason", self.retry_all,
                      answers={200: RetriedDeadLetters}, parameters=chosen, scope="write",
                      tenant=tenant),
            Operation("DELETE", path, f"drop_{many}",
                      f"Drop {what} for good: all of them, or all of a reason", self.drop_all,
                      answers={200: DroppedDeadLetters}, parameters=chosen, scope="admin",
                      tenant=tenant),
        ]  # fmt: skip

    def _of_one(self) -> list[Operation]:
        # Ids of replies are the users' own, and may have slashes.
        path, one, what = f"{self._path}/{{id:path}}", self._one, self._what
        tenant = self._tenant_of_one
        id = Parameter("id", "path", {"type": "string", "minLength": 1}, "From the list.")
        return [
            Operation("GET", path, f"show_{one}", f"Show one of {what} with its content",
                      self.show, answers={200: self._kind}, parameters=[id], tenant=tenant),
            Operation("POST", f"{path}/retry", f"retry_{one}", f"Retry one of {what}", self.retry,
                      answers={200: RetriedDeadLetter}, parameters=[id], scope="write",
                      tenant=tenant),
            Operation("DELETE", path, f"drop_{one}", f"Drop one of {what} for good", self.drop,
                      answers={204: None}, parameters=[id], scope="admin", tenant=tenant),
        ]  # fmt: skip

    async def page(self, request: Request) -> Response:
        limit = _limit(request.query_params.get("limit", str(PAGE_DEFAULT)))
        letters, after = self._letters(request), request.query_params.get("after")
        return reply(await letters.page(limit, after, _reason(request)))

    async def retry_all(self, request: Request) -> Response:
        if (await read_bytes(request, BODY_BYTES_MAX)).strip() not in (b"", b"{}"):
            # A reason that is not read would retry all.
            raise InputInvalid("this takes no body: give the reason in the query, ?reason=…")
        found = await self._letters(request).retry_all(_chosen_reason(request))
        return reply(RetriedDeadLetters(found.get("retried", 0), found.get("unusable", 0)))

    async def drop_all(self, request: Request) -> Response:
        reason = _chosen_reason(request)
        return reply(DroppedDeadLetters(await self._letters(request).drop_all(reason)))

    async def show(self, request: Request) -> Response:
        return reply(await self._letters(request).find(_id(request)))

    async def retry(self, request: Request) -> Response:
        id = _id(request)
        await self._letters(request).retry(id)
        return reply(RetriedDeadLetter(id, "retried"))

    async def drop(self, request: Request) -> Response:
        await self._letters(request).drop(_id(request))
        return Response(status_code=204)


def _id(request: Request) -> str:
    """A path that ends with a slash names none of them."""
    id: str = request.path_params["id"]
    if not id:
        raise unknown(id)
    return id


def _reason(request: Request) -> str:
    return str(request.query_params.get("reason", ""))


def _chosen_reason(request: Request) -> str:
    """An empty reason, such as that of an unset variable, must not mean all."""
    reason = _reason(request)
    if not reason and "reason" in request.query_params:
        raise InputInvalid("the reason is empty; leave it out to choose all")
    return reason


def _limit(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= PAGE_MAX:
        return int(text)
    raise InputInvalid(f"limit must be a number from 1 to {PAGE_MAX}")
