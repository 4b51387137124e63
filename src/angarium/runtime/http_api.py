"""What the modules' HTTP http_apis share: bodies in, JSON and problems out, and the OpenAPI page.

A module declares its operations as values; the route and the page come from the same declaration,
so neither can forget the other. Only files that offer `http_api` import this: it brings Starlette.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from angarium.runtime.errors import AngariumError, InputInvalid, LimitExceeded
from angarium.runtime.service import Service
from angarium.runtime.trace import TRACEPARENT, read_traceparent

Body = TypeVar("Body")
Handle = Callable[[Request], Awaitable[Response]]
JSON = "application/json"
PROBLEM = "application/problem+json"
# A parameter in a path as Starlette writes it; the page takes the name alone.
TEMPLATE = re.compile(r"{(\w+)(?::(\w+))?}")
CONVERTED: Mapping[str, Mapping[str, Any]] = {
    "int": {"type": "integer", "minimum": 0},
    "float": {"type": "number", "minimum": 0},
    "uuid": {"type": "string", "format": "uuid"},
}
# What was wrong may quote what came in, which may be long.
DETAIL_CHARS_MAX = 300


@dataclass(frozen=True)
class Parameter:
    """One parameter in the path, the query or a header; `schema` is JSON Schema."""

    name: str
    place: str = "query"
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    description: str = ""
    required: bool = False


# Beside what an operation declares: for those that bring a message in.
TRACE = Parameter(
    TRACEPARENT,
    "header",
    description="W3C Trace Context: the trace goes with the message through all modules.",
)


@dataclass(frozen=True)
class Operation:
    """One method on one path, its handler and everything the OpenAPI page says of it."""

    method: str
    path: str
    name: str
    summary: str
    handle: Handle
    body: Any = None
    answers: Mapping[int, Any] = field(default_factory=dict)
    parameters: Sequence[Parameter] = ()
    scope: str = "read"
    content: str = JSON


class Problem(msgspec.Struct, frozen=True):
    """RFC 9457, with the error's own code beside the standard members."""

    title: str
    status: int
    detail: str
    code: str
    type: str = "about:blank"


@dataclass(frozen=True)
class HttpApi:
    """What one module adds to the API role. `service` lives and dies with the role."""

    tag: str
    operations: Sequence[Operation] = ()
    service: Service | None = None
    routes: Sequence[BaseRoute] = ()  # what is no operation, such as a page


def reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type=JSON)


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    body = Problem(HTTPStatus(status).phrase, status, detail, code)
    return Response(msgspec.json.encode(body), status, headers, media_type=PROBLEM)


def problem_of(error: AngariumError) -> Response:
    return problem(error.http_status, error.code, str(error))


async def read_bytes(request: Request, bytes_max: int) -> bytes:
    """The body, given up as soon as it is longer than allowed: it may have no end."""
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > bytes_max:
                raise LimitExceeded("http_body_bytes_max", size, bytes_max)
            chunks.append(chunk)
    except ClientDisconnect:
        raise InputInvalid("the connection ended before the body did") from None
    return b"".join(chunks)


def traceparent_of(request: Request) -> str:
    """The trace that the caller is in (W3C Trace Context), or nothing: never a reason to refuse."""
    trace = read_traceparent(request.headers.get(TRACEPARENT))
    return "" if trace is None else trace.header


def decode(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        problem = str(error)[:DETAIL_CHARS_MAX]
        raise InputInvalid(f"the body can't be used: {problem}") from None


def routes(
    http_apis: Sequence[HttpApi], guarded: Callable[[Operation], Handle] = lambda each: each.handle
) -> list[BaseRoute]:
    """One route for each path, so that a refused method is told all that are allowed.

    `guarded` gives each operation's handler, which may refuse a caller first.
    """
    by_path: dict[str, dict[str, Handle]] = {}
    for http_api in http_apis:
        for each in http_api.operations:
            by_path.setdefault(each.path, {})[each.method] = guarded(each)
    return [
        *(
            Route(path, _by_method(handles), methods=[*handles])
            for path, handles in by_path.items()
        ),
        *(route for http_api in http_apis for route in http_api.routes),
    ]


def _by_method(handles: Mapping[str, Handle]) -> Handle:
    async def handle(request: Request) -> Response:
        # Starlette lets HEAD in wherever there is GET.
        chosen = handles.get(request.method) or handles["GET"]
        return await chosen(request)

    return handle


def openapi(http_apis: Sequence[HttpApi], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 page of all APIs; declarations that contradict one another are refused."""
    kinds: list[Any] = [Problem]
    for http_api in http_apis:
        for each in http_api.operations:
            kinds += [kind for kind in (each.body, *each.answers.values()) if kind is not None]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    by_kind = list(zip(kinds, schemas, strict=True))

    def schema(kind: Any) -> Mapping[str, Any]:
        return next(found for other, found in by_kind if other is kind or other == kind)

    paths: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for http_api in http_apis:
        for each in http_api.operations:
            path = paths.setdefault(TEMPLATE.sub(r"{\1}", each.path), {})
            method = each.method.lower()
            if method in path or each.name in names:
                raise ValueError(f"{each.method} {each.path} ({each.name}) is declared twice")
            path[method] = _described(each, http_api.tag, schema)
            names.add(each.name)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Angarium", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "security": [{}, {"bearer": []}],
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(
    operation: Operation, tag: str, schema: Callable[[Any], Mapping[str, Any]]
) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, kind in operation.answers.items():
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if kind is not None:
            content = PROBLEM if kind is Problem else operation.content
            answer["content"] = {content: {"schema": schema(kind)}}
        answers[str(status)] = answer
    answers["default"] = {
        "description": "Refused or failed; nothing was changed unless the code says otherwise",
        "content": {PROBLEM: {"schema": schema(Problem)}},
    }
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [tag],
        "responses": answers,
        "x-scope": operation.scope,
    }
    parameters = _parameters(operation)
    if parameters:
        described["parameters"] = [
            {
                "name": each.name,
                "in": each.place,
                "required": each.required or each.place == "path",
                "schema": each.schema,
                "description": each.description,
            }
            for each in parameters
        ]
    if operation.body is not None:
        body = {JSON: {"schema": schema(operation.body)}}
        described["requestBody"] = {"required": True, "content": body}
    return described


def _parameters(operation: Operation) -> list[Parameter]:
    """Those declared, and those of the path that need no more words than their name."""
    in_path = dict(TEMPLATE.findall(operation.path))
    declared = {each.name for each in operation.parameters if each.place == "path"}
    if not declared <= in_path.keys():
        raise ValueError(
            f"{operation.path} has no parameter {', '.join(declared - in_path.keys())}"
        )
    return [
        *operation.parameters,
        *(
            Parameter(name, "path", CONVERTED.get(converter, {"type": "string"}))
            for name, converter in in_path.items()
            if name not in declared
        ),
    ]
