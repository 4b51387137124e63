"""The lists and samples behind the dashboard, on both shapes of Redis, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from angarium.conversations.compat import MessageSyncManager
from angarium.conversations.model import MessageOptions, TaskItem
from angarium.pickup.store import PickupStore
from angarium.routing.role_settings import routing_store
from angarium.runtime.application import Application
from angarium.runtime.runtime import Runtime
from angarium.server.http import build
from angarium.transactions.archive import TransactionArchive
from angarium.transactions.model import TransactionStart, TransactionStatus
from angarium.transactions.pipeline import pipeline_of
from angarium.transactions.pipeline_store import PipelineStore
from angarium.transactions.store import TransactionStore
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime

Ask = Any


@asynccontextmanager
async def asked(redis_url: str, folder: Path) -> AsyncIterator[tuple[Runtime, Ask]]:
    database = f"sqlite:///{folder}/angarium.db"
    async with sample_runtime(redis_url, http={"port": 0}, database_url=database) as runtime:
        api = build(runtime, Application())
        await api.start()
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{api.ports['http']}") as session:

                async def ask(path: str, **parameters: Any) -> tuple[int, Any]:
                    async with session.get(path, params=parameters) as answer:
                        return answer.status, await answer.json(content_type=None)

                yield runtime, ask
        finally:
            await api.stop(30)


async def walk(ask: Ask, path: str, member: str, **parameters: Any) -> list[Any]:
    """Every row of a list, through all its pages."""
    found: list[Any] = []
    for _ in range(1_000):
        status, page = await ask(path, **parameters)
        assert status == 200, page
        found += page[member]
        if page["next"] is None:
            return found
        parameters["after"] = page["next"]
    raise AssertionError("the list has no end")


async def test_all_keys_are_listed_with_their_owners(any_redis_url: str, tmp_path: Path) -> None:
    async with asked(any_redis_url, tmp_path) as (runtime, ask):
        store = runtime.store(routing_store)
        await store.touch("one")
        names = {f"key {number}" for number in range(60)}
        for name in names:
            await store.process_payload_recip_key(name, b"x")
        found = await walk(ask, "/v1/routing/keys", "keys", limit=7)
        assert {row["recip_key"] for row in found} == names
        assert {(row["uid"], row["pending"]) for row in found} == {("one", 1)}


async def test_all_waiting_conversations_are_listed(any_redis_url: str, tmp_path: Path) -> None:
    async with asked(any_redis_url, tmp_path) as (runtime, ask):
        manager = MessageSyncManager(runtime)
        for number in range(20):
            id = f"c{number}"
            await manager.create_conversation_register("chat", id, f"{id}-open")
            if number % 2:
                await manager.create_conversation_register("chat", id, f"{id}-r")
                task = TaskItem(MessageOptions({}))
                await manager.mark_pending_conversation_register(
                    "chat", id, f"{id}-r", task, "", f"{id}-a"
                )
        replies = await walk(ask, "/v1/conversations", "conversations", limit=3)
        assert sorted(row["conversation_id"] for row in replies) == sorted(
            f"c{number}" for number in range(1, 20, 2)
        )
        requests = await walk(ask, "/v1/conversations", "conversations", limit=3, kind="requests")
        assert {row["conversation_id"] for row in requests} == {f"c{n}" for n in range(20)}


async def test_all_queues_and_sessions_are_listed(any_redis_url: str, tmp_path: Path) -> None:
    async with asked(any_redis_url, tmp_path) as (runtime, ask):
        store = PickupStore(runtime)
        for partition in store.partitions:
            await store.sessions.renew_gateway(partition)
        for number in range(15):
            await store.add(f"default:away{number}", f"m{number}", "did:example:anna", b"{}")
            await store.sessions.open(f"shop:system{number}", "s", "k")
        queues = await walk(ask, "/v1/pickup/queues", "queues", limit=4)
        assert {row["connection_id"] for row in queues} == {f"away{n}" for n in range(15)}
        assert {(row["pending"], row["live"]) for row in queues} == {(1, False)}
        sessions = await walk(ask, "/v1/pickup/sessions", "queues", limit=4)
        assert {(row["tenant"], row["live"]) for row in sessions} == {("shop", True)}
        assert len({row["connection_id"] for row in sessions}) == 15


async def test_queues_in_the_database_are_listed_after_the_others(
    redis_url: str, tmp_path: Path
) -> None:
    async with asked(redis_url, tmp_path) as (runtime, ask):
        settings = runtime.settings
        env = {
            "ANGARIUM_REDIS_URL": redis_url,
            "ANGARIUM_PREFIX": settings.prefix,
            "ANGARIUM_DATABASE_URL": settings.database_url,
            "ANGARIUM_PICKUP__PORT": "0",
            "ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP": "1",
        }
        names = {f"away{number}" for number in range(9)}
        async with RoleProcess(["serve", "gateway"], env, deadline_s=60):
            store = PickupStore(runtime)
            for name in names:
                await store.add(f"default:{name}", f"m-{name}", "did:example:anna", b"{}")

            async def moved() -> bool:
                found = await walk(ask, "/v1/pickup/queues", "queues", limit=2)
                rows = {(row["connection_id"], row["pending"], row["archived"]) for row in found}
                return rows == {(name, 1, 1) for name in names} and len(found) == len(names)

            await eventually(moved, 60)


async def test_all_transactions_are_listed_from_redis_and_then_from_the_archive(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with asked(any_redis_url, tmp_path) as (runtime, ask):
        store = TransactionStore(runtime)
        await PipelineStore(runtime).put(pipeline_of({"name": "one", "steps": [{"type": "x"}]}))
        await PipelineStore(runtime).put(pipeline_of({"name": "two", "steps": [{"type": "x"}]}))
        started = [
            (
                await store.start(TransactionStart("two" if n % 3 else "one", owner="ann"))
            ).transaction_id
            for n in range(30)
        ]
        path = "/v1/transaction-list"
        queued = await walk(ask, path, "transactions", status="queued", limit=4)
        assert {row["id"] for row in queued} == set(started)
        ones = await walk(ask, path, "transactions", status="queued", limit=4, pipeline="one")
        assert {row["id"] for row in ones} == set(started[::3])
        for id in started:
            await store.cancel(id)
        archive = TransactionArchive(runtime.settings.database_url)
        old = [await store.find(id) for id in started[:9]]
        renamed = [_renamed(each, f"old-{n}") for n, each in enumerate(old) if each is not None]
        await archive.store(renamed)
        await archive.close()
        found = await walk(ask, path, "transactions", status="cancelled", limit=4)
        assert sorted(row["id"] for row in found) == sorted(
            [*started, *(each.id for each in renamed)]
        )
        assert await walk(ask, path, "transactions", status="success", limit=4) == []


def _renamed(transaction: Any, id: str) -> Any:
    import msgspec

    return msgspec.structs.replace(
        transaction, id=id, completed_ms=1_000, status=TransactionStatus.CANCELLED
    )


async def test_a_scheduled_webhook_is_listed_with_its_next_attempt(
    any_redis_url: str, tmp_path: Path
) -> None:
    async with asked(any_redis_url, tmp_path) as (runtime, ask):
        store = TransactionStore(runtime)
        await PipelineStore(runtime).put(pipeline_of({"name": "one", "steps": [{"type": "x"}]}))
        for _ in range(7):
            start = TransactionStart("one", webhook="https://example.org/hook")
            await store.cancel((await store.start(start)).transaction_id)
        found = await walk(ask, "/v1/transaction-webhooks", "webhooks", limit=2)
        assert len({row["transaction_id"] for row in found}) == 7
        assert {(row["url"], row["tries"]) for row in found} == {("https://example.org/hook", 0)}
        assert all(row["next_ms"] > 1_700_000_000_000 for row in found)


async def test_an_invalid_cursor_or_limit_is_refused(redis_url: str, tmp_path: Path) -> None:
    lists = ("/v1/routing/keys", "/v1/conversations", "/v1/pickup/queues", "/v1/pickup/sessions",
             "/v1/transaction-webhooks")  # fmt: skip
    async with asked(redis_url, tmp_path) as (_, ask):
        for path in lists:
            for wrong in ({"after": "x"}, {"after": "1:2:3:4"}, {"limit": "0"}, {"limit": "x"}):
                status, problem = await ask(path, **wrong)
                assert (status, problem["code"]) == (400, "input_invalid"), path
        for wrong in ({}, {"status": "gone"}, {"status": "failed", "after": "archive:x:y"},
                      {"status": "failed", "after": "archive:1:a b"},
                      {"status": "failed", "pipeline": "a b"}):  # fmt: skip
            status, problem = await ask("/v1/transaction-list", **wrong)
            assert status == 400, problem
        assert (await ask("/v1/conversations", kind="both"))[0] == 400


async def test_a_sample_has_every_module_and_its_history(redis_url: str, tmp_path: Path) -> None:
    async with asked(redis_url, tmp_path) as (_, ask):
        status, sample = await ask("/v1/dashboard")
        assert status == 200
        assert [module["name"] for module in sample["modules"]] == [
            "dispatch", "routing", "pickup", "conversations", "transactions",
        ]  # fmt: skip
        assert sample["notices"] == []
        _, history = await ask("/v1/dashboard/history")
        assert set(history["rates"]) == set(sample["rates"])
        assert all(len(values) == len(history["at_ms"]) for values in history["waiting"].values())


# The page itself


async def test_a_browser_gets_the_page_and_a_program_the_links(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        sample_runtime(redis_url, http={"port": 0}) as runtime,
        aiohttp.ClientSession() as session,
    ):
        api = build(runtime, Application())
        await api.start()
        url = f"http://127.0.0.1:{api.ports['http']}"
        async with session.get(f"{url}/", headers={"accept": "text/html"}) as answer:
            assert answer.content_type == "text/html"
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
            tag = answer.headers["etag"]
        known = {"accept": "text/html", "if-none-match": tag}
        async with session.get(f"{url}/", headers=known) as answer:
            assert answer.status == 304
        async with session.get(f"{url}/") as answer:
            assert (await answer.json())["name"] == "angarium"
        async with session.get(f"{url}/assets/app.js") as answer:
            assert answer.content_type == "text/javascript"
        for name in ("nothing.js", "../page.py", "%2e%2e/page.py", "..%2fpage.py", "pages"):
            async with session.get(f"{url}/assets/{name}") as answer:
                assert answer.status == 404, name
        await api.stop(30)


def test_the_page_loads_and_runs_only_its_own_files() -> None:
    from angarium.server.dashboard.page import MEDIA, STATIC

    for path in STATIC.rglob("*"):
        if path.is_dir():
            continue
        assert path.suffix in MEDIA, path
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"):
            assert word not in text, f"{path.name} uses {word}"
        foreign = text.replace("http://www.w3.org/2000/svg", "").count("://")
        assert foreign == 0, f"{path.name} names another place"
