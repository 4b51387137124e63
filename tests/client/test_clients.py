"""The asynchronous and the synchronous client, in a role's functions and in other processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from angarium import Angarium
from angarium.client import Client, SyncClient
from angarium.client.client import NotOpened
from angarium.dispatch.keys import MESSAGES_PROCESSED
from angarium.runtime.errors import InputInvalid, LimitExceeded
from angarium.runtime.trace import CURRENT_WORK, CurrentWork
from angarium.server.app import compose
from angarium.settings import Settings
from tests.client.app import app as functions
from tests.kit.eventually import eventually
from tests.kit.sample import sample_settings
from tests.transactions.harness import harness
from tests.transactions.test_dead_letters import die

PATIENCE_S = 60.0
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PIPELINE = {"name": "p", "steps": [{"type": "plain"}]}


def settings_for(redis_url: str) -> Settings:
    ports: dict[str, Any] = {"ack_port": 0, "worker_port": 0}
    return sample_settings(redis_url, dispatch=ports)


async def results(client: Client, count: int) -> list[dict[str, str]]:
    """What the worker's function returned, from the stream."""
    keyspace = client.runtime.keyspace
    found = []
    for partition in range(keyspace.partitions):
        name = keyspace.name(MESSAGES_PROCESSED, partition)
        for _, fields in await client.runtime.redis.call("XRANGE", name, "-", "+", key=name):
            texts = [each.decode() for each in fields]
            found.append(dict(zip(texts[::2], texts[1::2], strict=True)))
    return found if len(found) >= count else []


async def test_a_worker_starts_a_transaction_whose_synchronous_step_replies_in_one_trace(
    any_redis_url: str, no_settings: object
) -> None:
    settings = settings_for(any_redis_url)
    async with compose(["dispatcher", "worker", "node"], settings, functions) as services:
        for service in services:
            await service.start()
        try:
            async with Client(settings) as client:
                await client.transactions.load(PIPELINE)
                await client.dispatch.enqueue({"n": 1, "twice": True, "traceparent": TRACE})

                async def done() -> list[dict[str, str]]:
                    return await results(client, 1)

                (result,) = await eventually(done, PATIENCE_S)
                assert result["again"] == "InputInvalid"  # the second under the same id
                ended = await client.transactions.wait(result["transaction"], PATIENCE_S)
                found = await client.transactions.by_external_id(result["message_id"])
                assert found.id == ended.id
                assert (ended.output["status"], ended.output["repeat"]) == ("accepted", "duplicate")
                assert ended.output["trace"].startswith(TRACE[:35])
                shown = await client.conversations.show("anna")
                assert shown.replies_total == 1
        finally:
            for service in reversed(services):
                await service.stop(5)


async def test_a_message_that_is_handled_twice_starts_one_transaction(
    redis_url: str, no_settings: object
) -> None:
    message_id = b"11111111-1111-4111-8111-111111110000"
    async with Client(settings_for(redis_url)) as client:
        await client.transactions.load(PIPELINE)
        ids = set()
        for _ in range(2):
            CURRENT_WORK.set(CurrentWork(message_id, {}, is_message=True))
            ids.add((await client.transactions.start("p", {})).transaction_id)
        assert len(ids) == 1
        (id,) = ids
        # The trace follows from the message's id.
        found = await client.transactions.status(id)
        assert message_id.decode().replace("-", "") in found.metadata["traceparent"]


async def test_dead_transactions_are_listed_rerun_and_dropped(
    redis_url: str, no_settings: object
) -> None:
    async with harness(redis_url) as here:
        settings = here.runtime.settings
        assert isinstance(settings, Settings)
        async with Client(settings) as client:
            one, two = await die(here, "ValueError", "ValueError", owner="ann")
            await die(here, "KeyError")
            page = await client.transactions.dead_letters(1, reason="alue", owner="ann")
            rest = await client.transactions.dead_letters(9, page.next, reason="alue", owner="ann")
            assert [each.id for each in (*page.letters, *rest.letters)] == [two, one]
            assert (
                await client.transactions.dead_letters(reason="alue", owner="bob")
            ).letters == []
            assert await client.transactions.rerun(one, {"n": 2}) == "queued"
            assert await client.transactions.drop(two) == "dropped"
            (left,) = (await client.transactions.dead_letters()).letters
            assert (left.reason, left.step, left.owner) == ("KeyError", 1, "default")


def test_a_script_without_a_loop_uses_every_module(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, no_settings: object
) -> None:
    monkeypatch.setenv("ANGARIUM_REDIS_URL", redis_url)
    monkeypatch.setenv("ANGARIUM_PREFIX", f"sync{id(monkeypatch)}:")
    app = Angarium()
    with pytest.raises(NotOpened):
        app.sync_client.publish({})
    with app.sync_client as client:
        assert client.publish({"n": 1}) == 0
        assert client.dispatch.enqueue({"n": 1}, idempotency_key="k").duplicate is False
        client.transactions.load(PIPELINE)
        started = client.transactions.start("p", {"n": 1}, external_id="e")
        assert client.transactions.status(started.transaction_id).external_id == "e"
        assert client.transactions.start("p", {"n": 1}, external_id="e").duplicate
        assert client.transactions.switch(started.transaction_id, "s", "x") == "set"
        assert client.transactions.cancel(started.transaction_id) == "cancelled"
        assert client.conversations.request("anna", "q") == "created"
        first = client.pickup.add("anna", {"n": 1}, key="k")
        assert client.pickup.add("anna", {"n": 1}, key="k") == first
        assert client.pickup.show("anna").pending == 1
        assert client.routing.send("key", b"{}") == "kept"
        with pytest.raises(AttributeError):
            client.routing.nothing()
    with pytest.raises(NotOpened):
        app.sync_client.publish({})


async def test_the_client_of_another_process_is_opened_and_closed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, no_settings: object
) -> None:
    monkeypatch.setenv("ANGARIUM_REDIS_URL", redis_url)
    monkeypatch.setenv("ANGARIUM_PREFIX", f"open{id(monkeypatch)}:")
    app = Angarium()
    with pytest.raises(NotOpened):
        await app.client.publish({})
    async with app.client as client:
        assert await client.publish({"n": 1}, traceparent=TRACE) == 0
        with pytest.raises(TypeError):
            await client.publish([1], traceparent=TRACE)
        with pytest.raises(InputInvalid):
            await client.publish(object())
        with pytest.raises(LimitExceeded):
            await client.publish("x" * 2**21)
    with pytest.raises(NotOpened):
        await client.dispatch.status()


async def test_a_sync_client_refuses_to_block_the_loop_it_would_wait_for(
    redis_url: str,
) -> None:
    async with Client(settings_for(redis_url)) as client:
        blocking = SyncClient(client, asyncio.get_running_loop())
        with pytest.raises(RuntimeError, match="await"):
            blocking.publish({})
