"""What the modules' HTTP APIs share: request bodies, JSON responses, problems, the OpenAPI page.

A module declares its operations as values. Routes and the OpenAPI page are made from the same
declarations. Only files with a function `http_api` import this file, because it imports Starlette.
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
from angarium.runtime.tenants import TenantRule, all_tenants
from angarium.runtime.trace import TRACEPARENT, read_traceparent

Body = TypeVar("Body")
Handle = Callable[[Request], Awaitable[Response]]
JSON = "application/json"
PROBLEM = "application/problem+json"
# A path parameter in Starlette's syntax; the OpenAPI page contains only its name.
TEMPLATE = re.compile(r"{(\w+)(?::(\w+))?}")
CONVERTED: Mapping[str, Mapping[str, Any]] = {
    "int": {"type": "integer", "minimum": 0},
    "float": {"type": "number", "minimum": 0},
    "uuid": {"type": "string", "format": "uuid"},
}
# An error may quote the input, which may be long.
DETAIL_CHARS_MAX = 300


@dataclass(frozen=True)
class Parameter:
    """One parameter in the path, the query or a header; `schema` is JSON Schema."""

    name: str
    place: str = "query"
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    description: str = ""
    required: bool = False


# The header parameter of operations that accept a message.
TRACE = Parameter(
    TRACEPARENT,
    "header",
    description="W3C Trace Context: the trace goes with the message through all modules.",
)


@dataclass(frozen=True)
class Operation:
    """One method on one path: its handler, and its description for the OpenAPI page."""

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
    tenant: TenantRule = all_tenants


class Problem(msgspec.Struct, frozen=True):
    """A problem of RFC 9457; `code` is the error's own code."""

    title: str
    status: int
    detail: str
    code: str
    type: str = "about:blank"


@dataclass(frozen=True)
class HttpApi:
    """What one module adds to the API role, which starts and stops `service`."""

    tag: str
    operations: Sequence[Operation] = ()
    service: Service | None = None
    routes: Sequence[BaseRoute] = ()  # routes that are not operations, such as pages


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
    """The body. A body that is too long is refused before it has ended."""
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
    """The caller's trace (W3C Trace Context); empty if the header is missing or invalid."""
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
    """One route for each path, so that the response to a wrong method lists all allowed ones.

    `guarded` returns the handler of an operation; it may wrap it in an access check.
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
        # Starlette also accepts HEAD on routes with GET.
        chosen = handles.get(request.method) or handles["GET"]
        return await chosen(request)

    return handle


def openapi(http_apis: Sequence[HttpApi], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 page of all APIs. Raises ValueError if two declarations conflict."""
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
    """The declared parameters, and the path parameters without a declaration."""

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
