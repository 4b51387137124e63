"""Real processes: the roles `api` and `conversations`, HTTP in, callbacks out, and the command."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.conversations.receiver import receiver
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess


class Api:
    """Calls to the role `api` of one process."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session = session
        self.base = f"http://127.0.0.1:{port}"

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        url = f"{self.base}/v1/conversations/{path}"
        async with self.session.post(url, json=body) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async with self.session.get(f"{self.base}{path}") as response:
            return response.status, await response.json(content_type=None)

    async def open(self, request_id: str, conversation_id: str = "c") -> None:
        status, _ = await self.post(
            "requests", conversation_id=conversation_id, request_id=request_id, origin="web"
        )
        assert status == 201

    async def reply(self, request_id: str, response_id: str, url: str) -> int:
        status, _ = await self.post(
            "replies",
            conversation_id="c",
            request_id=request_id,
            response_id=response_id,
            payload={"text": response_id},
            callback_url=url,
        )
        return status


def environment(redis_url: str) -> dict[str, str]:
    cluster = "+cluster" in redis_url
    return {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"t{secrets.token_hex(4)}:",
        "ANGARIUM_PARTITIONS": "4" if cluster else "1",
        "ANGARIUM_HTTP__PORT": "0",
        "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
    }


@asynccontextmanager
async def running_api(env: dict[str, str]) -> AsyncIterator[Api]:
    async with (
        RoleProcess(["serve", "api"], env) as api,
        RoleProcess(["serve", "conversations"], env),
        aiohttp.ClientSession() as session,
    ):
        yield Api(session, api.ports["http"])


async def test_replies_posted_over_http_reach_their_callbacks_in_order(any_redis_url: str) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 202, {"asyncResponseId": f"ack-{body['responseId']}"}

    async with receiver(answer) as client, running_api(environment(any_redis_url)) as api:
        await api.open("A")
        await api.open("B")
        assert await api.reply("B", "b1", client.url) == 202
        assert await api.reply("A", "a1", client.url) == 202
        assert await api.reply("A", "a2", client.url) == 202
        assert await api.reply("A", "a2", client.url) == 200
        for number, wanted in enumerate(["a1", "a2", "b1"]):
            await client.wait(number + 1)
            assert client.ids[-1] == wanted
            status, body = await api.post("acks", async_response_id=f"ack-{wanted}")
            assert (status, body) == (200, {"status": "delivered"})
        assert client.bodies[0]["payload"] == {"text": "a1"}
        status, shown = await api.get("/v1/conversations/c")
        assert (status, shown["replies_total"]) == (200, 0)


async def test_the_command_lists_retries_and_drops_dead_replies(redis_url: str) -> None:
    """The role cancels replies with an address that it may not call."""
    env = {
        **environment(redis_url),
        "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
        "ANGARIUM_CONVERSATIONS__MESSAGE_TTL": "600000",
        "ANGARIUM_CONVERSATIONS__AWAITED_FIRST_TURN": "500",
    }

    def command(*words: str) -> list[str]:
        with RoleProcess(["conversation", *words], env, ready_lines=0) as process:
            assert process.wait() == 0
            return process.lines()

    async with RoleProcess(["serve", "api"], env) as role, aiohttp.ClientSession() as session:
        api = Api(session, role.ports["http"])
        await api.open("A")
        await api.reply("A", "a1", "http://127.0.0.1:9/")
        env["ANGARIUM_ALLOW_PRIVATE_ADDRESSES"] = "false"

        async def dead() -> bool:
            return bool(json.loads(command("dead", "list", "--json")[-1])["letters"])

        async with RoleProcess(["serve", "conversations"], env):
            await eventually(dead, 60.0)
        assert "a1" in "\n".join(command("dead", "list"))
        assert command("dead", "retry", "a1")[-1] == "a1 retried"
        nothing: dict[str, Any] = {"letters": [], "next": None}
        assert json.loads(command("dead", "list", "--json")[-1]) == nothing
        async with RoleProcess(["serve", "conversations"], env):
            await eventually(dead, 60.0)
        assert command("dead", "drop", "a1")[-1] == "a1 dropped"


async def test_the_command_shows_why_each_reply_waits(redis_url: str) -> None:
    # The first request stays open however long the commands take.
    env = {**environment(redis_url), "ANGARIUM_CONVERSATIONS__MESSAGE_TTL": "600000"}
    async with RoleProcess(["serve", "api"], env) as role, aiohttp.ClientSession() as session:
        api = Api(session, role.ports["http"])
        await api.open("A")
        await api.open("B")
        await api.reply("B", "b1", "http://127.0.0.1:9/")
        with RoleProcess(["conversation", "show", "c"], env, ready_lines=0) as command:
            assert command.wait() == 0
            text = "\n".join(command.lines())
        assert "1 replies in flight, 2 requests" in text
        assert "waits for request A, which has no reply yet" in text
        with RoleProcess(["conversation", "show", "c", "--json"], env, ready_lines=0) as command:
            assert command.wait() == 0
            shown = json.loads(command.lines()[-1])
        (only,) = shown["replies"]
        assert only["reason"]["why"] == "wait_request"
        assert only["reason"]["behind"] == "A"
        refused = ["conversation", "show", "pendingMessages"]
        with RoleProcess(refused, env, ready_lines=0) as command:
            assert command.wait() == 1
            (line,) = command.stderr()
            assert line.startswith("angarium: conversation id 'pendingMessages' would spell")
