"""Requests for operations go through the table, all others to the fallback."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from angarium.runtime.errors import AngariumError, InputInvalid
from angarium.runtime.http_api import HttpApi, Operation, problem, problem_of, reply, routes
from angarium.server.fast_routes import FastRoutes


async def _echo(request: Request) -> Response:
    return reply({"path": request.url.path, **request.path_params})


async def _refused(_: Request) -> Response:
    raise InputInvalid("not this")


async def _gone(_: Request) -> Response:
    raise HTTPException(410, "gone")


async def _broken(_: Request) -> Response:
    raise ZeroDivisionError


def _operation(method: str, path: str, handle: Any = _echo) -> Operation:
    return Operation(method, path, f"{method} {path}", "", handle)


HTTP_API = HttpApi(
    "things",
    [
        _operation("GET", "/things"),
        _operation("POST", "/things/batch"),
        _operation("GET", "/things/{id}"),
        _operation("PUT", "/things/{id}/parts/{part}"),
        _operation("GET", "/numbers/{number:int}"),
        _operation("GET", "/refused", _refused),
        _operation("GET", "/gone", _gone),
        _operation("GET", "/broken", _broken),
    ],
)
ERRORS: dict[type[Exception], Any] = {
    AngariumError: lambda _, error: problem_of(error),
    HTTPException: lambda _, error: problem(error.status_code, "http", error.detail, error.headers),
    Exception: lambda _, error: problem(500, "internal", "something went wrong"),
}


class _Fallback:
    """The application as it would answer everything, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self._app = Starlette(routes=routes([HTTP_API]), exception_handlers={**ERRORS})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        await self._app(scope, receive, send)


async def _ask(app: Any, method: str, path: str) -> tuple[int, bytes, list[Any]]:
    """Status, body and headers."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": [],
        "query_string": b"", "root_path": "", "scheme": "http", "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    body = b"".join(each.get("body", b"") for each in sent)
    return sent[0]["status"], body, sent[0]["headers"]


DIRECT = [
    ("GET", "/things"), ("POST", "/things/batch"), ("GET", "/things/7"), ("GET", "/things/b c"),
    ("PUT", "/things/7/parts/x"), ("GET", "/refused"), ("GET", "/gone"),
]  # fmt: skip
# A name that only other methods know is still a value for a pattern of this one.
BEHIND = [
    ("GET", "/things/"), ("GET", "/things//"), ("GET", "/numbers/7"), ("GET", "/numbers/x"),
    ("HEAD", "/things"), ("DELETE", "/things"), ("PUT", "/things//parts/x"), ("GET", "/nothing"),
    ("GET", ""),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), [*DIRECT, ("GET", "/things/batch"), *BEHIND])
async def test_the_response_equals_that_of_the_framework(method: str, path: str) -> None:
    behind = _Fallback()
    direct = FastRoutes(behind, [HTTP_API], lambda each: each.handle, ERRORS)
    answer = await _ask(direct, method, path)
    assert behind.asked == ((method, path) in BEHIND)
    assert answer == await _ask(behind, method, path)


async def test_an_unexpected_error_is_answered_and_raised_for_the_log() -> None:
    direct = FastRoutes(_Fallback(), [HTTP_API], lambda each: each.handle, ERRORS)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(ZeroDivisionError):
        await direct(
            {"type": "http", "method": "GET", "path": "/broken", "headers": []}, _nothing, send
        )
    assert sent[0]["status"] == 500


async def _nothing() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}
