"""The way from a request to its operation, without what a framework puts around each.

Operations are found by method and path in a table and called at once; an error becomes the same
answer as everywhere. Whatever is not in the table (pages, unknown paths, other methods) goes to the
application behind it, which answers as it always did. On a long poll that is a sixth of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from angarium.runtime.http_api import TEMPLATE, Handle, HttpApi, Operation

Answer = Callable[[Request, Any], Response]


class Direct:
    """`errors` has an answer for each kind of error, `Exception` included."""

    def __init__(
        self,
        behind: ASGIApp,
        http_apis: Sequence[HttpApi],
        guarded: Callable[[Operation], Handle],
        errors: Mapping[type[Exception], Answer],
    ) -> None:
        self._behind = behind
        self._errors = errors
        # By method and the path's parts, with what no part can be in the place of a parameter; and
        # where the parameters of paths of so many parts are, fewest first: a name before a pattern.
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
            return  # what it takes for a value is for the application behind to say
        key = [part if place not in found else "/" for place, part in enumerate(parts)]
        self._known[operation.method, *key] = handle, [match[1] for match in found.values()]
        places = self._places.setdefault(len(parts), [])
        if (mine := tuple(found)) not in places:
            places.append(mine)
            places.sort(key=len)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._find(scope) if scope["type"] == "http" else None
        if handle is None:
            return await self._behind(scope, receive, send)
        request = Request(scope, receive)
        try:
            response = await handle(request)
        except Exception as error:
            answer = self._answer(type(error))
            await answer(request, error)(scope, receive, send)
            if answer is self._errors[Exception]:
                raise  # nobody foresaw it: the server logs it
            return None
        return await response(scope, receive, send)

    def _answer(self, kind: type[Exception]) -> Answer:
        """Of the nearest kind that has one."""
        known = (each for each in kind.__mro__ if issubclass(each, Exception))
        return next(self._errors[each] for each in known if each in self._errors)

    def _find(self, scope: Scope) -> Handle | None:
        """Its operation, with the parameters of the path put where handlers look for them."""
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
