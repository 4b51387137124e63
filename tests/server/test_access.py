"""Access to the API: no token, an unknown one, a wrong scope, a foreign tenant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.requests import Request

from angarium.client.application import Angarium
from angarium.runtime import keys
from angarium.runtime.errors import InputInvalid, NotFound, SettingInvalid
from angarium.runtime.tokens import (
    REMEMBER_TOKENS,
    SCOPES,
    Token,
    TokensSeen,
    TokenStore,
    TokenSurface,
    digest,
    file_path,
    from_settings,
)
from angarium.server.access import Access, Unauthorized
from angarium.server.http import check
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime, sample_settings
from tests.server.harness import running_api

PATIENCE_S = 30.0
TOKENS = ["read:reader", "write:writer", "admin:boss", "write@acme:acme-writer", "read@acme:acme"]
PIPELINE = {"name": "p", "steps": [{"type": "s"}]}


async def test_everything_is_open_on_loopback_without_tokens(
    redis_url: str, no_settings: object
) -> None:
    async with running_api(redis_url) as (_, call):
        assert (await call("GET", "/v1/processes"))[0] == 200
        assert (await call("GET", "/metrics"))[0] == 200


async def test_only_probes_and_pages_are_open_on_other_addresses(
    redis_url: str, no_settings: object
) -> None:
    async with running_api(redis_url, host="0.0.0.0") as (_, call):
        for path in ("/v1/processes", "/metrics", "/v1/dispatch", "/v1/live", "/v1/search?id=x"):
            status, problem = await call("GET", path)
            assert (status, problem["code"]) == (401, "unauthorized"), path
            assert call.headers["www-authenticate"] == "Bearer"
            assert call.headers["content-type"] == "application/problem+json"
        for path in ("/healthz", "/readyz", "/openapi.json", "/"):
            assert (await call("GET", path))[0] == 200, path


async def test_a_token_allows_the_operations_of_its_scope(
    redis_url: str, no_settings: object
) -> None:
    async with running_api(redis_url, tokens=TOKENS) as (_, call):
        assert (await call("GET", "/v1/processes"))[0] == 401
        assert (await call("GET", "/v1/processes", "guess"))[0] == 401
        assert (await call("GET", "/v1/processes", "reader"))[0] == 200
        message = {"json": {"payload": {"n": 1}}}
        status, problem = await call("POST", "/v1/messages", "reader", **message)
        assert (status, problem["code"]) == (403, "forbidden")
        assert "'write'" in problem["detail"]
        assert (await call("POST", "/v1/messages", "writer", **message))[0] == 202
        assert (await call("PUT", "/v1/pipelines/p", "writer", json=PIPELINE))[0] == 403
        assert (await call("PUT", "/v1/pipelines/p", "boss", json=PIPELINE))[0] == 200


async def test_a_token_of_a_tenant_reaches_that_tenant_only(
    redis_url: str, no_settings: object
) -> None:
    async with running_api(redis_url, tokens=TOKENS) as (_, call):
        await call("PUT", "/v1/pipelines/p", "boss", json=PIPELINE)
        start = {"pipeline": "p"}
        _, other = await call("POST", "/v1/transactions", "boss", json=start)
        status, problem = await call("POST", "/v1/transactions", "acme-writer", json=start)
        assert (status, problem["code"]) == (403, "tenant_foreign")
        own = {**start, "owner": "acme"}
        status, mine = await call("POST", "/v1/transactions", "acme-writer", json=own)
        assert status == 201
        batch = {"transactions": [own, start]}
        status, _ = await call("POST", "/v1/transactions/batch", "acme-writer", json=batch)
        assert status == 403
        assert (await call("GET", f"/v1/transactions/{mine['id']}", "acme"))[0] == 200
        # A foreign one is as unknown as one that never was.
        status, problem = await call("GET", f"/v1/transactions/{other['id']}", "acme")
        assert (status, problem["code"]) == (404, "transaction_unknown")
        cancel = f"/v1/transactions/{other['id']}/cancel"
        assert (await call("POST", cancel, "acme-writer"))[0] == 404
        listed = "/v1/transactions?status=queued"
        assert (await call("GET", listed, "acme"))[0] == 403
        status, found = await call("GET", f"{listed}&owner=acme", "acme")
        assert [each["id"] for each in found["transactions"]] == [mine["id"]]
        queue = "/v1/pickup/connections/anna"
        assert (await call("GET", f"{queue}?tenant=other", "acme"))[0] == 403
        assert (await call("GET", f"{queue}?tenant=acme", "acme"))[0] == 404
        assert (await call("GET", "/v1/processes", "acme"))[0] == 403


async def test_a_created_token_is_accepted_and_a_revoked_one_refused(
    any_redis_url: str, no_settings: object
) -> None:
    async with running_api(any_redis_url) as (runtime, call):
        store = TokenStore(runtime)
        token = await store.create("somebody", "read")
        (listed,) = await store.listed()
        assert token not in str(listed)

        async def answers(status: int, shown: str | None) -> bool:
            return (await call("GET", "/v1/processes", shown))[0] == status

        await eventually(lambda: answers(401, None), PATIENCE_S)
        assert await answers(200, token)
        await store.revoke(listed.id)
        await eventually(lambda: answers(401, token), PATIENCE_S)
        # With the last one gone, loopback stays closed.
        assert await answers(401, None)
        with pytest.raises(NotFound):
            await store.revoke(listed.id)


async def test_the_first_token_is_remembered_once_by_each_script(any_redis_url: str) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        name = runtime.keyspace.name(keys.TOKENS_SEEN, 0)

        async def remembered(surface: str) -> str:
            return str(await runtime.call(REMEMBER_TOKENS, 0, TokenSurface(surface)))

        assert [await remembered("gateway") for _ in range(2)] == ["remembered", "known"]
        await TokenStore(runtime).create("a", "read")
        assert await remembered("api") == "known"
        found = await runtime.redis.call("HKEYS", name, key=name)
        assert sorted(found) == [b"api", b"gateway"]


async def test_the_api_stays_closed_if_the_home_folder_can_not_be_written(
    redis_url: str, no_settings: Path
) -> None:
    (no_settings / "file").write_text("")
    prefix = "t-home:"
    async with sample_runtime(redis_url, prefix=prefix, home=no_settings / "file" / "x") as runtime:
        assert not await TokensSeen(runtime, "api").look(has_tokens=False)
        assert await TokensSeen(runtime, "api").look(has_tokens=True)
    async with sample_runtime(redis_url, prefix=prefix, home=no_settings / "home") as runtime:
        # Another process on the same Redis knows of it, and writes its own file.
        assert await TokensSeen(runtime, "api").look(has_tokens=False)
        assert not await TokensSeen(runtime, "gateway").look(has_tokens=False)
        assert file_path(runtime.settings.home, prefix, "api").exists()
        # Other prefixes have other tokens.
        assert not file_path(runtime.settings.home, "another:", "api").exists()


async def test_redis_stores_only_the_hash_of_a_token(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        store = TokenStore(runtime)
        token = await store.create("a", "admin", "acme")
        assert await store.all() == {
            digest(token): Token("a", "admin", "acme", (await store.listed())[0].token.created_ms)
        }


@pytest.mark.parametrize(
    ("name", "scope", "tenant"),
    [("", "read", None), ("a", "root", None), ("a", "read", "a b"), ("a\n", "read", None)],
)
async def test_an_invalid_token_is_not_created(
    redis_url: str, name: str, scope: str, tenant: str | None
) -> None:
    async with sample_runtime(redis_url) as runtime:
        with pytest.raises(InputInvalid):
            await TokenStore(runtime).create(name, scope, tenant)


def test_a_token_in_the_settings_may_be_hashed() -> None:
    hashed = digest("secret")
    found = from_settings([f"write@acme:sha256={hashed}", "read:other"])
    assert found[hashed].tenant == "acme"
    assert found[digest("other")].scope == "read"


@pytest.mark.parametrize("entry", ["root:secret", "read:", "read@a b:secret", "secret"])
def test_an_invalid_token_in_the_settings_is_refused_without_being_shown(
    entry: str, no_settings: object
) -> None:
    settings = sample_settings("redis://127.0.0.1:1", http={"port": 0, "tokens": [entry]})
    with pytest.raises(SettingInvalid) as raised:
        check(settings, Angarium())
    assert "secret" not in str(raised.value)
    assert "ANGARIUM_HTTP__TOKENS" in str(raised.value)


def test_each_scope_includes_those_below_it() -> None:
    for number, scope in enumerate(SCOPES):
        allowed = [each for each in SCOPES if Token("t", scope).allows(each)]
        assert allowed == list(SCOPES[: number + 1])


async def test_a_token_stored_between_the_two_reads_is_accepted(
    redis_url: str, no_settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sample_runtime(redis_url) as runtime:
        look = TokensSeen.look

        async def look_late(self: TokensSeen, *, has_tokens: bool) -> bool:
            await TokenStore(runtime).create("somebody", "read")
            return await look(self, has_tokens=has_tokens)

        access = Access(runtime)
        read_all = TokenStore.all
        open_at_each_read: list[bool] = []

        async def read_and_note(self: TokenStore) -> Mapping[str, Token]:
            open_at_each_read.append(access.open)
            return await read_all(self)

        monkeypatch.setattr(TokensSeen, "look", look_late)
        monkeypatch.setattr(TokenStore, "all", read_and_note)
        assert await access.run_once() == 1
        # Closed before the second read, the API would refuse the token for as long as that takes.
        assert (open_at_each_read, access.open) == ([True, True], False)


async def test_a_revoked_token_is_refused_even_if_redis_can_not_remember_that_tokens_existed(
    redis_url: str, no_settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: TokensSeen, *, has_tokens: bool) -> bool:
        raise NotFound("Redis has no room")

    async with sample_runtime(redis_url) as runtime:
        store = TokenStore(runtime)
        await store.create("somebody", "read")
        access = Access(runtime)
        assert await access.run_once() == 1
        (listed,) = await store.listed()
        await store.revoke(listed.id)
        monkeypatch.setattr(TokensSeen, "look", full)
        with pytest.raises(NotFound):
            await access.run_once()
        with pytest.raises(Unauthorized, match="none exists"):
            access.check(Request({"type": "http", "headers": []}), "read")
