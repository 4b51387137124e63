"""The module's HTTP API: error codes, and conformance to its OpenAPI page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from angarium.conversations.compat import MessageSyncManager
from angarium.conversations.http import http_api
from angarium.conversations.model import MinMessageInfo
from angarium.runtime.application import Application
from angarium.runtime.runtime import Runtime
from angarium.server.http import Api
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime


class ApiClient:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self.url = f"http://127.0.0.1:{port}/v1/conversations"

    async def post(self, path: str, body: object) -> tuple[int, str]:
        """The status, and the code of a problem or the status that the answer names."""
        async with self._session.post(f"{self.url}/{path}", json=body) as response:
            answer = await response.json(content_type=None)
            return response.status, answer.get("code") or answer["status"]

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """The status, and the answer; None without a body."""
        async with self._session.request(method, f"{self.url}/{path}", json=body) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def get(self, path: str) -> tuple[int, Any]:
        return await self.ask("GET", path)


@asynccontextmanager
async def running_api(redis_url: str, **overrides: Any) -> AsyncIterator[tuple[ApiClient, Runtime]]:
    async with sample_runtime(redis_url, http={"port": 0}, **overrides) as runtime:
        api = Api(runtime, [http_api(runtime, Application())])
        await api.start()
        try:
            async with aiohttp.ClientSession() as session:
                yield ApiClient(session, api.ports["http"]), runtime
        finally:
            await api.stop(10)


def opening(request_id: str = "A", conversation_id: str = "c") -> dict[str, Any]:
    return {"conversation_id": conversation_id, "request_id": request_id, "origin": "web"}


def answering(response_id: str, request_id: str = "A", **more: Any) -> dict[str, Any]:
    body = {"conversation_id": "c", "request_id": request_id, "response_id": response_id}
    return {**body, **more}


async def test_a_reply_carries_its_address_to_its_sender(redis_url: str) -> None:
    address = {"connection_id": "other", "tenant": "acme"}
    async with running_api(redis_url) as (api, runtime):
        await api.post("requests", opening())
        assert (await api.post("replies", answering("a1", address=address)))[0] == 202
        (taken,) = await MessageSyncManager(runtime).get_awaited_messages(1)
        assert taken.reply.task_item.message_options.address == address


async def test_dead_replies_are_listed_shown_retried_and_dropped(redis_url: str) -> None:
    async with running_api(redis_url) as (api, runtime):
        await api.post("requests", opening())
        for response_id in ("a1", "a2"):
            await api.post("replies", answering(response_id, payload={"n": response_id}))
        manager = MessageSyncManager(runtime)
        (first, _) = await manager.get_awaited_messages(2)
        assert await manager.cancel_group(first.info, "403", dead=True) == 2
        status, page = await api.get("replies/dead?limit=1")
        assert (status, len(page["letters"])) == (200, 1)
        _, rest = await api.get(f"replies/dead?after={page['next']}")
        found = page["letters"] + rest["letters"]
        assert {each["reason"] for each in found} == {"403"}
        assert {each["id"] for each in found} == {"a1", "a2"}
        assert {each["task"] for each in found} == {None}
        status, shown = await api.get("replies/dead/a1")
        assert (status, shown["conversation_id"], shown["request_id"]) == (200, "c", "A")
        assert shown["task"]["messageOptions"]["payload"] == {"n": "a1"}
        retried = (200, {"id": "a1", "status": "retried"})
        assert await api.ask("POST", "replies/dead/a1/retry") == retried
        assert (await api.get("c"))[1]["replies_total"] == 1
        for method, path in (("POST", "a1/retry"), ("DELETE", "a1"), ("GET", "a1")):
            status, problem = await api.ask(method, f"replies/dead/{path}")
            assert (status, problem["code"]) == (404, "dead_letter_unknown")
        assert await api.ask("DELETE", "replies/dead/a2") == (204, None)
        assert (await api.get("replies/dead"))[1] == {"letters": [], "next": None}
        assert (await api.get("replies/dead?limit=0"))[0] == 400


@pytest.mark.parametrize("cursor", ["x", "", "0:1", "0:1:", "0:x:YQ==", "9:1:YQ==", "0:1:Y"])
async def test_a_cursor_that_no_list_returned_is_refused(redis_url: str, cursor: str) -> None:
    async with running_api(redis_url) as (api, _):
        status, problem = await api.get(f"replies/dead?after={cursor}")
        assert (status, problem["code"]) == (400, "input_invalid")


async def test_dead_replies_of_one_reason_are_listed_retried_and_dropped_together(
    any_redis_url: str,
) -> None:
    async with running_api(any_redis_url) as (api, runtime):
        reasons = {"c": "503 busy", "d": "403 no", "e": "503 busy", "f": "503 away"}
        for id, why in reasons.items():
            await api.post("requests", opening(f"r{id}", id))
            await api.post("replies", answering(f"a{id}", f"r{id}", conversation_id=id))
            info = MinMessageInfo(f"r{id}", f"a{id}", id)
            assert await MessageSyncManager(runtime).cancel_group(info, why, dead=True) == 1

        async def dead(query: str = "") -> set[str]:
            page = (await api.get(f"replies/dead{query}"))[1]
            return {each["id"] for each in page["letters"]}

        assert await dead("?reason=503") == {"ac", "ae", "af"}
        retried = await api.ask("POST", "replies/dead/retry?reason=3%20busy")
        assert retried == (200, {"retried": 2, "unusable": 0})
        assert await dead() == {"ad", "af"}
        assert [(await api.get(id))[1]["replies_total"] for id in "cdef"] == [1, 0, 1, 0]
        assert await api.ask("DELETE", "replies/dead?reason=503") == (200, {"dropped": 1})
        assert await dead() == {"ad"}
        assert await api.ask("DELETE", "replies/dead") == (200, {"dropped": 1})
        assert await dead() == set()


async def test_an_id_of_dead_replies_in_two_conversations_is_refused(redis_url: str) -> None:
    async with running_api(redis_url, partitions=4) as (api, runtime):
        partition_of = runtime.keyspace.partition_of
        other = next(f"c{n}" for n in range(100) if partition_of(f"c{n}") != partition_of("c"))
        for id in ("c", other):
            await api.post("requests", opening(f"r{id}", id))
            await api.post("replies", answering("same/id", f"r{id}", conversation_id=id))
            info = MinMessageInfo(f"r{id}", "same/id", id)
            assert await MessageSyncManager(runtime).cancel_group(info, f"no {id}", dead=True) == 1
        for method, path in (("GET", ""), ("POST", "/retry"), ("DELETE", "")):
            status, problem = await api.ask(method, f"replies/dead/same%2Fid{path}")
            assert (status, problem["code"]) == (409, "conflict")
            assert "'c'" in problem["detail"]
            assert f"'{other}'" in problem["detail"]
        dropped = await api.ask("DELETE", f"replies/dead?reason=no%20{other}")
        assert dropped == (200, {"dropped": 1})
        assert (await api.get("replies/dead/same%2Fid"))[1]["conversation_id"] == "c"


async def test_every_refusal_has_its_code(redis_url: str) -> None:
    async with running_api(redis_url) as (api, _):
        assert await api.post("requests", opening()) == (201, "created")
        assert await api.post("requests", opening()) == (200, "duplicate")
        assert await api.post("requests", opening("A", "d")) == (409, "request_taken")
        assert await api.post("requests", opening("B", "x:req")) == (400, "id_refused")
        assert await api.post("requests", {"conversation_id": 7}) == (400, "input_invalid")
        assert await api.post("replies", answering("a1")) == (202, "accepted")
        assert await api.post("replies", answering("a1")) == (200, "duplicate")
        assert await api.post("replies", answering("b1", "B")) == (404, "request_unknown")
        private = answering("a2", callback_url="http://10.0.0.1/")
        assert await api.post("replies", private) == (422, "address_refused")
        assert await api.post("acks", {"async_response_id": "x"}) == (404, "ack_unknown")
        assert await api.post("acks", {"async_response_id": ""}) == (400, "id_refused")


@pytest.mark.parametrize("response_id", ["plain", "with/slash", "mit Ümlaut", '"quoted"'])
async def test_a_conversation_is_shown_with_the_reason_each_reply_waits(
    redis_url: str, response_id: str
) -> None:
    async with running_api(redis_url) as (api, _):
        for request_id in ("A", "B"):
            await api.post("requests", opening(request_id))
        await api.post("replies", answering(response_id, "B", payload={"text": "hello"}))
        status, shown = await api.get("c")
        assert status == 200
        (only,) = shown["replies"]
        assert only["reply"]["response_id"] == response_id
        assert only["reason"]["why"] == "wait_request"
        status, shown = await api.get("nobody")
        assert (status, shown["replies_total"]) == (200, 0)


def test_the_api_conforms_to_its_openapi_page(redis_url: str) -> None:
    """Requests made up from the page, good and bad, against the real process."""
    env = {"ANGARIUM_REDIS_URL": redis_url, "ANGARIUM_PREFIX": "conversations-page:"}
    with RoleProcess(["serve", "api"], {**env, "ANGARIUM_HTTP__PORT": "0"}) as role:
        url = f"http://127.0.0.1:{role.ports['http']}"
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json").include(tag="conversations")
        names = []
        operations: Any = schema.get_all_operations()
        for found in operations:
            operation = found.ok()
            names.append(operation.label)

            @settings(max_examples=3, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy())
            def hold(case: Any) -> None:
                # Ids that nobody gave out are well-formed, and refused all the same.
                case.call_and_validate(excluded_checks=[positive_data_acceptance])

            hold()
        assert len(names) == 10
