"""A user's program sends a message and reads its result: over Redis and HTTP, with and without
async."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from angarium.client import Client, HttpClient, SyncClient
from angarium.client.http import ApiError
from angarium.dispatch.errors import MessageUnknown
from angarium.dispatch.message_state import MessageState
from angarium.runtime.errors import InputInvalid
from angarium.settings import Settings
from tests.dispatch.harness import dispatch_services
from tests.kit.ports import free_port
from tests.server.harness import running_api

NOBODY = "00000000-0000-4000-8000-000000000000"


async def greet(message: dict[str, Any]) -> dict[str, Any]:
    return {"text": f"hello, {message['name']}"}


@asynccontextmanager
async def installation(redis_url: str) -> AsyncIterator[tuple[Settings, str]]:
    async with (
        dispatch_services(redis_url) as ours,
        running_api(redis_url, prefix=ours.settings.prefix) as (runtime, caller),
    ):
        await ours.add_dispatcher()
        await ours.add_worker(greet)
        yield cast(Settings, runtime.settings), caller.url


def check(state: MessageState) -> None:
    assert (state.state, state.result) == ("completed", {"text": "hello, Xerxes"})


def use_synchronously(client: SyncClient) -> None:
    with client:
        sent = client.enqueue({"name": "Xerxes"}, idempotency_key="sync")
        check(client.result(sent.message_id, wait_s=60))
        assert client.enqueue({"name": "Xerxes"}, idempotency_key="sync").duplicate


async def test_each_client_reads_the_result_of_its_message(redis_url: str) -> None:
    async with installation(redis_url) as (settings, url):
        async with Client(settings) as client:
            sent = await client.enqueue({"name": "Xerxes"})
            check(await client.result(sent.message_id, wait_s=60))
            with pytest.raises(MessageUnknown):
                await client.result(NOBODY)
        async with HttpClient(url) as http:
            sent = await http.enqueue({"name": "Xerxes"})
            check(await http.result(sent.message_id, wait_s=60))
            with pytest.raises(ApiError) as refused:
                await http.result(NOBODY)
            assert (refused.value.code, refused.value.http_status) == ("message_unknown", 404)
        await asyncio.to_thread(use_synchronously, SyncClient(Client(settings)))
        await asyncio.to_thread(use_synchronously, SyncClient(HttpClient(f"{url}/")))


async def test_the_payload_needs_a_token_that_may_write(redis_url: str) -> None:
    tokens = ["read:" + "r" * 40, "write:" + "w" * 40]
    async with running_api(redis_url, tokens=tokens) as (_, ask):
        reader, writer = "r" * 40, "w" * 40
        _, sent = await ask("POST", "/v1/messages", writer, data=b'{"payload": {"card": 1}}')
        path = f"/v1/messages/{sent['message_id']}"
        status, state = await ask("GET", path, reader)
        assert (status, state["state"]) == (200, "queued")
        assert "card" not in str(state)
        status, problem = await ask("GET", f"{path}/payload", reader)
        assert (status, problem["code"]) == (403, "forbidden")
        status, found = await ask("GET", f"{path}/payload", writer)
        assert (status, found["payload"]) == (200, '{"card": 1}')
        status, problem = await ask("GET", f"{path}?wait_s=61", reader)
        assert (status, problem["code"]) == (400, "input_invalid")


async def test_an_api_that_is_not_there_is_named() -> None:
    port = free_port()
    async with HttpClient(f"http://127.0.0.1:{port}") as http:
        with pytest.raises(ApiError, match=rf"127\.0\.0\.1:{port} can't be reached"):
            await http.enqueue(1)
    client = SyncClient(HttpClient("http://127.0.0.1"))
    with client, pytest.raises(InputInvalid, match="use enqueue"):
        client.publish(1)
