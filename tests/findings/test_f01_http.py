"""F1 over HTTP: what is no valid text, wherever a user can put it, changes nobody else's answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yarl

from tests.findings.file_steps import ENDED_DEADLINE_S, file_steps
from tests.kit.server import ServerProcess

CALLS = 120
# As an escape for half of a pair, and as a byte of Latin-1.
BAD = {"escaped": rb"caf\udce9", "raw": b"caf\xe9"}
# Latin-1, and half of a pair as it would be in UTF-8.
BAD_PATHS = ("caf%E9", "caf%ED%B3%A9")

Bad = tuple[str, str, bytes | None, dict[str, str]]


def bad_requests(id: str) -> dict[str, Bad]:
    """Method, path, body and headers of everything that is refused or means nothing."""
    found: dict[str, Bad] = {}
    for form, text in BAD.items():
        bodies = {
            "pipeline name": b'{"pipeline":"%b"}' % text,
            "webhook": b'{"pipeline":"open","webhook":"https://example.com/%b"}' % text,
            "owner": b'{"pipeline":"open","owner":"%b"}' % text,
            "external id": b'{"pipeline":"open","external_id":"%b"}' % text,
            "data": b'{"pipeline":"open","data":{"name":"%b","odd":true}}' % text,
            "a name in data": b'{"pipeline":"open","data":{"%b":1,"name":1,"odd":true}}' % text,
        }
        for what, body in bodies.items():
            found[f"{what}, {form}"] = ("POST", "transactions", body, {})
        value = b'{"value":"%b"}' % text
        found[f"switch value, {form}"] = ("PUT", f"transactions/{id}/switches/go", value, {})
        definition = b'{"name":"%b","steps":[{"type":"open-file"}]}' % text
        found[f"definition, {form}"] = ("PUT", "pipelines/caf", definition, {})
    for path in BAD_PATHS:
        found[f"id {path}"] = ("GET", f"transactions/{path}", None, {})
        found[f"pipeline {path}"] = ("GET", f"pipelines/{path}", None, {})
        found[f"switch {path}"] = (
            "PUT",
            f"transactions/{id}/switches/{path}",
            b'{"value":"a"}',
            {},
        )
        found[f"list {path}"] = ("GET", f"transactions?owner={path}", None, {})
    body = b'{"pipeline":"open","data":{"name":"headers","odd":false}}'
    for name in ("traceparent", "x-request-id", "user-agent", "idempotency-key"):
        found[f"header {name}"] = ("POST", "transactions", body, {name: "caf\udce9"})
    return found


async def test_bad_text_in_any_place_is_one_callers_error(
    redis_server: ServerProcess, tmp_path: Path
) -> None:
    async with file_steps(redis_server.url, tmp_path) as steps:
        own = steps.gets_its_own_output
        first = await steps.run("first")
        answers: dict[str, int] = {}

        async def bad(what: str, request: Bad) -> None:
            answers[what] = await send(steps.port, request)

        requests = bad_requests(first["id"])
        assert all(
            await asyncio.gather(
                *(own(f"before-{number}") for number in range(CALLS)),
                *(_true(bad(what, request)) for what, request in requests.items()),
                *(own(f"beside-{number}") for number in range(CALLS)),
            )
        )
        assert all(await asyncio.gather(*(own(f"after-{number}") for number in range(CALLS))))
        assert {what: status for what, status in answers.items() if status >= 500} == {}
        taken = {what for what, status in answers.items() if status < 400}
        assert {what for what in taken if not what.startswith(("header", "list"))} == set()


async def _true(work: Any) -> bool:
    await work
    return True


async def send(port: int, request: Bad) -> int:
    """The status. Written out by hand: no HTTP client would send these bytes."""
    method, path, body, headers = request
    target = yarl.URL(f"/v1/{path}", encoded=True).raw_path_qs
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body or b'')}", "", ""]
    head = "\r\n".join(lines).encode("utf-8", "surrogateescape")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head + (body or b""))
        answer = await asyncio.wait_for(reader.read(), ENDED_DEADLINE_S)
    finally:
        writer.close()
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer.split(b" ", 2)[1])
