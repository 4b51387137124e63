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
    return {"conversationId": conversation_id, "requestId": request_id, "origin": "web"}


def answering(response_id: str, request_id: str = "A", **more: Any) -> dict[str, Any]:
    return {
        "conversationId": "c", "requestId": request_id, "responseId": response_id, **more,
    }  # fmt: skip


async def test_every_refusal_has_its_code(redis_url: str) -> None:
    async with running_api(redis_url) as (api, _):
        assert await api.post("requests", opening()) == (201, "created")
        assert await api.post("requests", opening()) == (200, "duplicate")
        assert await api.post("requests", opening("A", "d")) == (409, "request_taken")
        assert await api.post("requests", opening("B", "x:req")) == (400, "id_refused")
        assert await api.post("requests", {"conversationId": 7}) == (400, "input_invalid")
        assert await api.post("replies", answering("a1")) == (202, "accepted")
        assert await api.post("replies", answering("a1")) == (200, "duplicate")
        assert await api.post("replies", answering("b1", "B")) == (404, "request_unknown")
        private = answering("a2", callbackUrl="http://10.0.0.1/")
        assert await api.post("replies", private) == (422, "address_refused")
        assert await api.post("acks", {"asyncResponseId": "x"}) == (404, "ack_unknown")
        assert await api.post("acks", {"asyncResponseId": ""}) == (400, "id_refused")


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
        assert only["reply"]["responseId"] == response_id
        assert only["reason"]["why"] == "wait_request"
        status, shown = await api.get("nobody")
        assert (status, shown["repliesTotal"]) == (200, 0)


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
        assert len(names) == 4
