"""What the modules' HTTP APIs share: bodies that are too long or make no sense, and the page."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from angarium.runtime.errors import InputInvalid, LimitExceeded, NotFound, Overloaded
from angarium.runtime.http_api import (
    DETAIL_CHARS_MAX,
    PROBLEM,
    HttpApi,
    Operation,
    Parameter,
    Problem,
    decode,
    openapi,
    problem,
    problem_of,
    read_bytes,
    reply,
    routes,
)
from angarium.server.http import Api
from tests.kit.sample import sample_runtime

PATIENCE_S = 30.0
BODY_BYTES_MAX = 100_000


class Colour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    parts: list[float] = []
    mixed_from: list[Colour] = []


class Colours(msgspec.Struct, frozen=True):
    colours: list[Colour]


# Bodies


def request_of(*chunks: bytes | None) -> Request:
    """A request whose body comes in these chunks; None is a client that goes away."""
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        chunk = left.pop(0)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


@pytest.mark.parametrize(
    "chunks", [(b"",), (b"12345",), (b"1", b"", b"2345"), (b"123", b"45", b"")]
)
async def test_a_body_of_at_most_the_limit_is_read_whole(chunks: tuple[bytes, ...]) -> None:
    assert await read_bytes(request_of(*chunks), 5) == b"".join(chunks)


@pytest.mark.parametrize("chunks", [(b"123456",), (b"123", b"456"), (b"12345", b"6", b"7")])
async def test_a_longer_body_is_refused(chunks: tuple[bytes, ...]) -> None:
    with pytest.raises(LimitExceeded, match="http_body_bytes_max: 6 is more than the 5 allowed"):
        await read_bytes(request_of(*chunks), 5)


async def test_a_client_that_disconnects_in_its_body_gets_input_invalid() -> None:
    with pytest.raises(InputInvalid, match="the connection ended before the body did"):
        await read_bytes(request_of(b"12", None), 5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"name":7}',
        b'{"name":"x","unknown":1}',
        b'{"name":"x","parts":["y"]}',
        b'{"name":"\xff"}',
        b'{"name":"\\ud800"}',
        b'{"name":"x","parts":[NaN]}',
        b'{"name":"x"} {"name":"y"}',
        b'{"name":"x","mixed_from":[' * 100_000,
        "name: ü".encode("utf-16"),
    ],
)
def test_a_body_that_can_not_be_used_is_the_senders_fault(body: bytes) -> None:
    with pytest.raises(InputInvalid, match="the body can't be used: ") as caught:
        decode(body, Colour)
    assert problem_of(caught.value).status_code == 400


def test_an_error_does_not_quote_a_long_body() -> None:
    body = b'{"name":"x","%s":1}' % (b"long" * 100_000)
    with pytest.raises(InputInvalid) as caught:
        decode(body, Colour)
    assert len(str(caught.value)) < DETAIL_CHARS_MAX + 100


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "parts", "mixed_from", "x"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_body_is_either_used_or_refused(body: bytes) -> None:
    try:
        assert isinstance(decode(body, Colour), Colour)
    except InputInvalid as error:
        msgspec.json.decode(problem_of(error).body, type=Problem)


# Answers


def test_answers_are_json_and_refusals_are_problems() -> None:
    answer = reply(Colour("red"), 201, {"location": "/v1/colours/red"})
    assert (answer.status_code, answer.media_type) == (201, "application/json")
    assert answer.headers["location"] == "/v1/colours/red"
    assert json.loads(bytes(answer.body))["name"] == "red"
    refusal = problem(429, "too_many", "wait a little", {"retry-after": "3"})
    assert refusal.headers["content-type"] == PROBLEM
    assert refusal.headers["retry-after"] == "3"
    assert json.loads(bytes(refusal.body)) == {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "wait a little",
        "code": "too_many",
    }


def test_an_error_becomes_a_problem_with_its_own_status_and_code() -> None:
    found = msgspec.json.decode(problem_of(Overloaded("queue_items_max", 7)).body, type=Problem)
    assert (found.status, found.code) == (503, "overloaded")
    assert found.detail.startswith("queue_items_max is full at 7")


# The page


async def list_colours(request: Request) -> Response:
    return reply(Colours([Colour(request.query_params.get("like", "red"))]))


async def mix_colour(request: Request) -> Response:
    colour = decode(await read_bytes(request, BODY_BYTES_MAX), Colour)
    return reply(colour, 201)


async def show_colour(request: Request) -> Response:
    if request.path_params["name"] != "red":
        raise NotFound("there is no such colour")
    return reply(Colour("red"))


async def forget_colour(_: Request) -> Response:
    return Response(status_code=204)


async def show_share(request: Request) -> Response:
    return Response(json.dumps(request.path_params), media_type="application/vnd.share+json")


LIKE = Parameter("like", description="A name to look for.")
FACE = HttpApi(
    "colours",
    [
        Operation(
            "GET",
            "/v1/colours",
            "list_colours",
            "All colours",
            list_colours,
            answers={200: Colours},
            parameters=[LIKE],
        ),
        Operation(
            "POST",
            "/v1/colours",
            "mix_colour",
            "Mix a colour",
            mix_colour,
            body=Colour,
            answers={201: Colour},
        ),
        Operation(
            "GET",
            "/v1/colours/{name}",
            "show_colour",
            "One colour",
            show_colour,
            answers={200: Colour},
            parameters=[Parameter("name", "path", description="Its name.")],
        ),
        Operation(
            "DELETE",
            "/v1/colours/{name}",
            "forget_colour",
            "Forget one",
            forget_colour,
            answers={204: None},
        ),
        Operation(
            "GET",
            "/v1/shares/{part:int}/{rest:path}",
            "show_share",
            "A share",
            show_share,
            answers={200: dict[str, int | str], 404: Problem, 410: list[Colour]},
            content="application/vnd.share+json",
        ),
    ],
)


def references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in references(value)]
    if isinstance(node, list):
        return [found for value in node for found in references(value)]
    return []


def page_of(*http_apis: HttpApi) -> dict[str, Any]:
    """As it goes over the wire."""
    page: dict[str, Any] = json.loads(msgspec.json.encode(openapi(http_apis, "1.2.3")))
    return page


def check_page(page: dict[str, Any]) -> None:
    """What OpenAPI 3.1 demands of every page, read from the page alone."""
    assert page["openapi"].startswith("3.1.")
    assert page["info"]["title"]
    assert page["info"]["version"]
    ids = []
    for path, operations in page["paths"].items():
        assert path.startswith("/")
        for method, operation in operations.items():
            assert method in ("get", "put", "post", "delete", "patch")
            assert re.fullmatch(r"[a-z][a-z0-9_]*", operation["operationId"]), operation
            ids.append(operation["operationId"])
            in_path = {
                each["name"] for each in operation.get("parameters", []) if each["in"] == "path"
            }
            assert {f"{{{name}}}" for name in in_path} == {
                part for part in path.split("/") if part.startswith("{")
            }
            for each in operation.get("parameters", []):
                assert each["in"] in ("path", "query", "header", "cookie")
                assert each["required"] or each["in"] != "path"
                assert "schema" in each
            assert operation["responses"]
            for status, answer in operation["responses"].items():
                assert status == "default" or 100 <= int(status) <= 599
                assert answer["description"]
    assert len(ids) == len(set(ids))
    for reference in references(page):
        assert reference.startswith("#/components/schemas/")
        assert reference.rpartition("/")[2] in page["components"]["schemas"]


def test_the_page_is_valid_and_holds_every_operation_with_its_shapes() -> None:
    page = page_of(FACE)
    check_page(page)
    assert {(path, method) for path, each in page["paths"].items() for method in each} == {
        ("/v1/colours", "get"),
        ("/v1/colours", "post"),
        ("/v1/colours/{name}", "get"),
        ("/v1/colours/{name}", "delete"),
        ("/v1/shares/{part}/{rest}", "get"),
    }
    posting = page["paths"]["/v1/colours"]["post"]
    assert posting["tags"] == ["colours"]
    body = posting["requestBody"]
    assert body["required"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Colour"}
    refusal = posting["responses"]["default"]["content"][PROBLEM]["schema"]
    assert refusal == {"$ref": "#/components/schemas/Problem"}
    deleting = page["paths"]["/v1/colours/{name}"]["delete"]
    assert "content" not in deleting["responses"]["204"]
    sharing = page["paths"]["/v1/shares/{part}/{rest}"]["get"]
    assert [(each["name"], each["schema"]["type"]) for each in sharing["parameters"]] == [
        ("part", "integer"),
        ("rest", "string"),
    ]
    assert list(sharing["responses"]["200"]["content"]) == ["application/vnd.share+json"]
    assert list(sharing["responses"]["404"]["content"]) == [PROBLEM]


def test_the_page_without_apis_is_valid() -> None:
    page = page_of()
    check_page(page)
    assert page["paths"] == {}


def test_schemathesis_reads_the_page_and_finds_every_operation() -> None:
    found = operations_of(page_of(FACE))
    assert {each.label for each in found} == {
        "GET /v1/colours",
        "POST /v1/colours",
        "GET /v1/colours/{name}",
        "DELETE /v1/colours/{name}",
        "GET /v1/shares/{part}/{rest}",
    }


def operations_of(page: dict[str, Any]) -> list[Any]:
    schema = schemathesis.openapi.from_dict(page)
    schema.validate()
    found: Any = schema.get_all_operations()
    return [each.ok() for each in found]


def test_routes_and_page_hold_the_same_operations() -> None:
    more = Route("/page", list_colours)
    found = routes([FACE, HttpApi("pages", routes=[more])])
    assert found.pop() is more
    page = page_of(FACE)
    from_routes = {
        (route.path.replace(":int", "").replace(":path", ""), method.lower())
        for route in found
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert from_routes == {(path, m) for path, each in page["paths"].items() for m in each}


def with_operation(method: str, path: str, name: str, *parameters: Parameter) -> HttpApi:
    return HttpApi("odd", [Operation(method, path, name, "", list_colours, parameters=parameters)])


@pytest.mark.parametrize(
    "second",
    [
        with_operation("GET", "/v1/colours", "other"),
        with_operation("GET", "/v1/colours/{name:path}", "other"),
        with_operation("GET", "/v1/other", "list_colours"),
    ],
)
def test_an_operation_or_a_name_that_is_there_twice_is_refused(second: HttpApi) -> None:
    with pytest.raises(ValueError, match="is declared twice"):
        openapi([FACE, second], "1")


def test_a_parameter_that_its_path_does_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="has no parameter no"):
        openapi([with_operation("GET", "/v1/x/{id}", "x", Parameter("no", "path"))], "1")


# On the wire


@asynccontextmanager
async def serving(redis_url: str) -> AsyncIterator[int]:
    async with sample_runtime(redis_url, http={"port": 0}) as runtime:
        api = Api(runtime, [FACE])
        await api.start()
        try:
            yield api.ports["http"]
        finally:
            await api.stop(PATIENCE_S)
            assert api.stopped


@asynccontextmanager
async def connected(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield reader, writer
    finally:
        writer.close()


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


async def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, str, bytes]:
    async with connected(port) as (reader, writer):
        length = f"content-length: {len(body)}"
        writer.write(head(method, path, length, "connection: close") + body)
        answer = await reader.read()
    top, _, rest = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), top.decode().lower(), rest


async def test_operations_answer_and_their_errors_are_problems(redis_url: str) -> None:
    async with serving(redis_url) as port:
        status, top, rest = await ask(port, "GET", "/v1/colours?like=blue")
        assert (status, json.loads(rest)["colours"][0]["name"]) == (200, "blue")
        status, top, rest = await ask(port, "POST", "/v1/colours", b'{"name":"green"}')
        assert (status, json.loads(rest)["name"]) == (201, "green")
        status, top, rest = await ask(port, "GET", "/v1/colours/none")
        assert (status, json.loads(rest)["code"]) == (404, "not_found")
        assert PROBLEM in top
        status, top, rest = await ask(port, "POST", "/v1/colours", b"\xff\xfe")
        assert (status, json.loads(rest)["code"]) == (400, "input_invalid")
        status, top, rest = await ask(port, "GET", "/v1/shares/7/a/b")
        assert json.loads(rest) == {"part": 7, "rest": "a/b"}


async def test_a_wrong_method_gets_the_list_of_allowed_methods(redis_url: str) -> None:
    async with serving(redis_url) as port:
        status, top, _ = await ask(port, "PUT", "/v1/colours")
        (allow,) = [line for line in top.splitlines() if line.startswith("allow:")]
        assert status == 405
        assert {each.strip() for each in allow[6:].split(",")} == {"get", "head", "post"}
        status, top, rest = await ask(port, "HEAD", "/v1/colours")
        assert (status, rest) == (200, b"")


async def test_a_long_body_is_refused_and_the_same_connection_goes_on(redis_url: str) -> None:
    async with serving(redis_url) as port, connected(port) as (reader, writer):
        size = BODY_BYTES_MAX + 1
        writer.write(head("POST", "/v1/colours", f"content-length: {size}") + b" " * size)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413")
        await reader.readuntil(b"}")
        writer.write(head("GET", "/healthz"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("chunk", [b"x" * 65_536, b""], ids=["endless", "claimed"])
async def test_a_body_without_an_end_is_refused_while_it_still_comes(
    redis_url: str, chunk: bytes
) -> None:
    """Endless in chunks, or of a length that nobody will ever send."""
    async with serving(redis_url) as port, connected(port) as (reader, writer):
        if chunk:
            writer.write(head("POST", "/v1/colours", "transfer-encoding: chunked"))
            pouring = asyncio.ensure_future(pour(writer, b"%x\r\n%b\r\n" % (len(chunk), chunk)))
        else:
            writer.write(head("POST", "/v1/colours", f"content-length: {10**15}"))
            pouring = asyncio.ensure_future(pour(writer, b" " * 65_536))
        try:
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
            assert (await ask(port, "GET", "/healthz"))[0] == 200
        finally:
            pouring.cancel()
            await asyncio.wait({pouring})


async def pour(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    while True:
        writer.write(chunk)
        await writer.drain()


async def test_a_client_that_breaks_off_in_its_body_leaves_no_error_behind(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(redis_url) as port:
        async with connected(port) as (_, writer):
            writer.write(head("POST", "/v1/colours", "content-length: 10") + b"12345")
            await writer.drain()
        for _ in range(3):
            assert (await ask(port, "GET", "/healthz"))[0] == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_answers_fit_the_page(redis_url: str) -> None:
    """Schemathesis makes the requests the page allows, and some it does not."""
    async with serving(redis_url) as port:
        url = f"http://127.0.0.1:{port}"
        for operation in operations_of(page_of(FACE)):
            await asyncio.to_thread(call_often, operation.as_strategy(), url)


def call_often(cases: st.SearchStrategy[Any], url: str) -> None:
    @settings(max_examples=20)
    @given(cases)
    def call(case: Any) -> None:
        case.call_and_validate(base_url=url)

    call()
