"""The module's HTTP API: error codes, and conformance to its OpenAPI page."""

from __future__ import annotations

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
from angarium.runtime.application import Angarium
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

    async def answer(self, path: str, body: object) -> Any:
        async with self._session.post(f"{self.url}/{path}", json=body) as response:
            return await response.json(content_type=None)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._session.get(f"{self.url}/{path}") as response:
            return response.status, await response.json(content_type=None)


@asynccontextmanager
async def running_api(redis_url: str) -> AsyncIterator[tuple[ApiClient, Runtime]]:
    async with sample_runtime(redis_url, http={"port": 0}) as runtime:
        api = Api(runtime, [http_api(runtime, Angarium())])
        await api.start()
        try:
            async with aiohttp.ClientSession() as session:
                yield ApiClient(session, api.ports["http"]), runtime
        finally:
            await api.stop(10)


def opening(request_id: str = "A", conversation_id: str = "c") -> dict[str, Any]:
    return {"conversation_id": conversation_id, "request_id": request_id, "origin": "web"}


def answering(response_id: str, request_id: str = "A", **more: Any) -> dict[str, Any]:
    return {
        "conversation_id": "c", "request_id": request_id, "response_id": response_id, **more,
    }  # fmt: skip


async def test_a_reply_carries_its_address_to_its_sender(redis_url: str) -> None:
    address = {"connection_id": "other", "tenant": "acme"}
    async with running_api(redis_url) as (api, runtime):
        await api.post("requests", opening())
        assert (await api.post("replies", answering("a1", address=address)))[0] == 202
        (taken,) = await MessageSyncManager(runtime).get_awaited_messages(1)
        assert taken.reply.task_item.message_options.address == address


async def test_f35_the_refusal_of_a_request_id_says_why(redis_url: str) -> None:
    async with running_api(redis_url) as (api, _):
        await api.post("requests", opening("A", "c"))
        assert await api.post("requests", opening("A", "d")) == (409, "request_taken")
        refused = await api.answer("requests", opening("A", "d"))
        assert "belongs to one conversation" in refused["detail"]


async def test_dead_replies_are_listed_shown_retried_and_dropped(redis_url: str) -> None:
    async with running_api(redis_url) as (api, runtime):
        await api.post("requests", opening())
        for response_id in ("a1", "a2"):
            await api.post("replies", answering(response_id, payload={"n": response_id}))
        manager = MessageSyncManager(runtime)
        (first, _) = await manager.get_awaited_messages(2)
        assert await manager.cancel_group(first.info, "403", dead=True) == 2
        status, page = await api.get("replies/dead?limit=1")
        assert (status, len(page["replies"])) == (200, 1)
        _, rest = await api.get(f"replies/dead?after={page['next']}")
        assert {each["why"] for each in page["replies"] + rest["replies"]} == {"403"}
        one = {"conversation_id": "c", "response_id": "a1"}
        shown = await api.answer("replies/dead/show", one)
        assert shown["task"]["messageOptions"]["payload"] == {"n": "a1"}
        assert await api.post("replies/dead/retry", one) == (202, "accepted")
        assert (await api.get("c"))[1]["replies_total"] == 1
        assert await api.post("replies/dead/retry", one) == (404, "reply_unknown")
        other = {"conversation_id": "c", "response_id": "a2"}
        assert await api.post("replies/dead/drop", other) == (200, "dropped")
        assert (await api.get("replies/dead"))[1] == {"replies": [], "next": None}
        assert (await api.get("replies/dead?after=x"))[0] == 400
        assert (await api.get("replies/dead?limit=0"))[0] == 400


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
        assert len(names) == 8
