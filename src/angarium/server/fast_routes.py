"""Routes requests to operations through a table, without the framework's middleware.

The table is keyed by method and path. Errors get the same responses as in the fallback application.
That application answers all other requests: pages, unknown paths, other methods. A long poll
through the table costs a sixth less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from angarium.runtime.http_api import TEMPLATE, Handle, HttpApi, Operation

ErrorResponse = Callable[[Request, Any], Response]


class FastRoutes:
    """`errors` maps classes of errors to responses; `Exception` must be among them."""

    def __init__(
        self,
        fallback: ASGIApp,
        http_apis: Sequence[HttpApi],
        guarded: Callable[[Operation], Handle],
        errors: Mapping[type[Exception], ErrorResponse],
    ) -> None:
        self._fallback = fallback
        self._errors = errors
        # By method and path segments, with "/" in place of a parameter: no segment contains one.
        # `_places` has the parameters' positions by number of segments, fewest first, so that a
        # literal segment wins over a parameter.
        self._known: dict[tuple[str, ...], tuple[Handle, Sequence[str]]] = {}
        self._places: dict[int, list[tuple[int, ...]]] = {}
        for http_api in http_apis:
            for each in http_api.operations:
                self._add(each, guarded(each))

    def _add(self, operation: Operation, handle: Handle) -> None:
        parts = operation.path.split("/")
        named = {place: TEMPLATE.fullmatch(part) for place, part in enumerate(parts)}
        found = {place: match for place, match in named.items() if match is not None}
        if any(match[2] for match in found.values()):
            return  # the fallback converts typed parameters
        key = [part if place not in found else "/" for place, part in enumerate(parts)]
        self._known[operation.method, *key] = handle, [match[1] for match in found.values()]
        places = self._places.setdefault(len(parts), [])
        if (positions := tuple(found)) not in places:
            places.append(positions)
            places.sort(key=len)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._find(scope) if scope["type"] == "http" else None
        if handle is None:
            return await self._fallback(scope, receive, send)
        request = Request(scope, receive)
        try:
            response = await handle(request)
        except Exception as error:
            answer = self._error_response(type(error))
            await answer(request, error)(scope, receive, send)
            if answer is self._errors[Exception]:
                raise  # the server logs an unexpected error
            return None
        return await response(scope, receive, send)

    def _error_response(self, kind: type[Exception]) -> ErrorResponse:
        """The response of the nearest class in the error's hierarchy."""
        known = (each for each in kind.__mro__ if issubclass(each, Exception))
        return next(self._errors[each] for each in known if each in self._errors)

    def _find(self, scope: Scope) -> Handle | None:
        """Returns the operation's handler, and stores the path's parameters in the scope."""
        parts = scope["path"].split("/")
        for places in self._places.get(len(parts), ()):
            key = parts.copy()
            for place in places:
                key[place] = "/"
            found = self._known.get((scope["method"], *key))
            if found is not None and all(parts[place] for place in places):
                handle, names = found
                values = (parts[place] for place in places)
                scope["path_params"] = dict(zip(names, values, strict=True))
                return handle
        return None
