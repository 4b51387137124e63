"""Tokens that were guessed, bent, borrowed or revoked, and tenants that look at each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from angarium.runtime.tokens import TokenStore, digest
from tests.kit.eventually import eventually
from tests.security.wire import PATIENCE_S, api, request, said
from tests.security.wire import status_of as status

TOKENS = [
    "read:reader-token", "admin:boss", "write@acme:acme-w", "read@acme:acme-r", "admin@acme:acme-a",
    "write@globex:globex-w",
]  # fmt: skip
PIPELINE = {"name": "p", "steps": [{"type": "s"}]}


class Api:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session, self.url = session, f"http://127.0.0.1:{port}"

    async def __call__(self, method: str, path: str, token: str, **named: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with self._session.request(
            method, self.url + path, headers=headers, timeout=timeout, **named
        ) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith(("{", "[")) else text


@asynccontextmanager
async def calling(redis_url: str) -> AsyncIterator[tuple[Api, int]]:
    async with (
        api(redis_url, http={"tokens": TOKENS}) as (_, port),
        aiohttp.ClientSession() as session,
    ):
        yield Api(session, port), port


NO_TOKENS = [
    {},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": "reader-token"},
    {"Authorization": "Basic cmVhZGVyLXRva2Vu"},
    {"Authorization": "Bearer reader-toke"},
    {"Authorization": "Bearer reader-tokenx"},
    {"Authorization": "Bearer READER-TOKEN"},
    {"Authorization": "Bearer reader-token, reader-token"},
    {"Authorization": f"Bearer {digest('reader-token')}"},
    {"Authorization": f"Bearer sha256={digest('reader-token')}"},
    {"Authorization": "Bearer read:reader-token"},
    {"Authorization": "Bearer " + "x" * 30_000},
    {"Authorization": "Bearer \xff\xfe"},
    {"Cookie": "authorization=Bearer reader-token"},
    {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-User": "admin", "Forwarded": "for=127.0.0.1"},
    {"X-HTTP-Method-Override": "GET", "X-Original-URL": "/healthz"},
]


async def test_what_is_no_token_opens_nothing(redis_url: str, no_settings: object) -> None:
    async with api(redis_url, http={"tokens": TOKENS}) as (_, port):
        query = "access_token=reader-token&token=reader-token"
        for headers in NO_TOKENS:
            for path in ("/v1/processes", "/metrics", f"/v1/processes?{query}"):
                answer = await said(port, request(f"GET {path}", headers))
                assert status(answer) in (400, 401), (path, headers)


async def test_a_path_that_is_spelled_oddly_leads_past_no_guard(
    redis_url: str, no_settings: object
) -> None:
    async with api(redis_url, http={"tokens": TOKENS}) as (_, port):
        for path in (
            "//v1/processes", "/v1//processes", "/v1/processes/", "/v1/./processes", "/V1/process",
            "/assets/../v1/processes", "/v1%2fprocesses", "/v1/processes%00", "/v1/processes;x=y",
            "http://127.0.0.1/v1/processes", "/healthz/../v1/processes", "*",
        ):  # fmt: skip
            answer = await said(port, request(f"GET {path}"))
            assert status(answer) in (307, 400, 401, 404), path
            assert b'"role"' not in answer


async def test_a_stream_ends_when_its_token_is_revoked(redis_url: str, no_settings: object) -> None:
    async with api(redis_url) as (runtime, port), aiohttp.ClientSession() as session:
        store = TokenStore(runtime)
        await store.create("other", "admin")
        token = await store.create("one", "read")
        call = Api(session, port)

        async def known() -> bool:
            return (await call("GET", "/v1/processes", token))[0] == 200

        await eventually(known, PATIENCE_S)
        headers = {"Authorization": f"Bearer {token}"}
        async with session.get(f"{call.url}/v1/live", headers=headers) as stream:
            assert await stream.content.readline()
            (listed,) = [each for each in await store.listed() if each.token.name == "one"]
            await store.revoke(listed.id)
            async with asyncio.timeout(PATIENCE_S):
                while await stream.content.readline():
                    pass
        assert (await call("GET", "/v1/processes", token))[0] == 401


async def test_a_tenants_token_reaches_no_operation_that_is_not_its_own(
    redis_url: str, no_settings: object
) -> None:
    """Every operation on the OpenAPI page, with ids of somebody else."""
    async with calling(redis_url) as (call, _port):
        await call("PUT", "/v1/pipelines/p", "boss", json=PIPELINE)
        start = {
            "pipeline": "p",
            "owner": "globex",
            "external_id": "order-1",
            "data": {"pin": 7},
        }
        _, foreign = await call("POST", "/v1/transactions", "globex-w", json=start)
        _, page = await call("GET", "/openapi.json", "boss")
        tried = 0
        for path, methods in page["paths"].items():
            for method, operation in methods.items():
                filled = _filled(path, foreign["id"])
                body: Any = start if path.startswith("/v1/transactions") else {}
                body = {"transactions": [start]} if path.endswith("/batch") else body
                code, told = await call(method.upper(), filled, "acme-a", json=body)
                assert code in (403, 404), (method, filled, code, told)
                assert '"pin"' not in json.dumps(told), operation["operationId"]
                tried += 1
        assert tried > 30
        code, seen = await call("GET", f"/v1/transactions/{foreign['id']}", "globex-w")
        assert (code, seen["status"]) == (200, "queued")


def _filled(path: str, id: str) -> str:
    names = {"{id}": id, "{txId}": id, "{externalId}": "order-1", "{type}": "p", "{subject}": id}
    for name, value in names.items():
        path = path.replace(name, value)
    head, _, rest = path.partition("{")
    while rest:
        _, _, behind = rest.partition("}")
        head, _, rest = (head + id + behind).partition("{")
    separator = "&" if "?" in head else "?"
    return f"{head}{separator}tenant=globex&owner=globex&status=queued&id={id}"


async def test_a_foreign_transaction_can_neither_be_waited_for_nor_followed(
    redis_url: str, no_settings: object
) -> None:
    async with calling(redis_url) as (call, _port):
        await call("PUT", "/v1/pipelines/p", "boss", json=PIPELINE)
        start = {"pipeline": "p", "owner": "globex"}
        _, foreign = await call("POST", "/v1/transactions", "globex-w", json=start)
        path = f"/v1/transactions/{foreign['id']}"
        never = "/v1/transactions/" + "0" * 32
        for tail in ("", "?wait_s=5", "/events"):
            one = await call("GET", path + tail, "acme-r")
            other = await call("GET", never + tail, "acme-r")
            # To the letter as if it were not there.
            assert one[0] == other[0] == 404
            assert json.dumps(one[1]).replace(foreign["id"], "") == json.dumps(other[1]).replace(
                "0" * 32, ""
            )


async def test_owners_do_not_meet_in_an_external_id(redis_url: str, no_settings: object) -> None:
    async with calling(redis_url) as (call, _port):
        await call("PUT", "/v1/pipelines/p", "boss", json=PIPELINE)
        found = {}
        # Pairs that would be the same if owner and id were merely joined.
        for token, owner, external in (
            ("acme-w", "acme", "order"), ("globex-w", "globex", "order"),
            ("boss", "acme", ":order"), ("boss", "acme:", "order"), ("boss", "a", "cme:order"),
            ("boss", "acme", "order\n"), ("boss", "acme", "{p0}order"),
        ):  # fmt: skip
            body = {"pipeline": "p", "owner": owner, "external_id": external}
            code, answer = await call("POST", "/v1/transactions", token, json=body)
            assert code in (201, 400), (owner, external, answer)
            if code == 201:
                found[owner, external] = answer["id"]
        assert len(set(found.values())) == len(found) > 3
        body = {"pipeline": "p", "owner": "acme", "external_id": "order"}
        code, again = await call("POST", "/v1/transactions", "acme-w", json=body)
        assert again == {"id": found["acme", "order"], "duplicate": True}


BODIES = [
    b'{"pipeline":"p","owner":"acme","owner":"globex"}',
    b'{"owner":"globex","pipeline":"p"}',
    b'{"pipeline":"p","\\u006fwner":"globex"}',
    b'{"pipeline":"p"}',
    b'{"pipeline":"p","owner":"ACME"}',
    b'{"pipeline":"p","owner":"acme "}',
    b'{"pipeline":"p","owner":["acme","globex"]}',
    b'{"pipeline":"p","owner":null}',
    b'\xef\xbb\xbf{"pipeline":"p","owner":"globex"}',
]


async def test_no_spelling_of_a_body_starts_anything_for_another_owner(
    redis_url: str, no_settings: object
) -> None:
    async with calling(redis_url) as (call, port):
        await call("PUT", "/v1/pipelines/p", "boss", json=PIPELINE)
        for body in BODIES:
            for path, sent in (
                ("/v1/transactions", body),
                ("/v1/transactions/batch", b'{"transactions":[' + body + b"]}"),
            ):
                code, _ = await call("POST", path, "acme-w", data=sent)
                assert code in (400, 403), sent
            # A host that makes another path of it.
            told = {"Host": "evil/batch?", "Authorization": "Bearer acme-w"}
            bent = request("POST /v1/transactions", told, body)
            assert status(await said(port, bent)) in (400, 403)
        listed = await call("GET", "/v1/transactions?status=queued", "boss")
        assert listed[1]["transactions"] == []
