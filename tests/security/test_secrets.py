"""Secrets in settings, URLs and calls: none of them is printed, logged, measured or answered."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from angarium.pickup.client import PickupClient, PushToken
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

PATIENCE_S = 60.0
WORDS = {
    name: f"s3cret-{name}-word"
    for name in ("redis", "admin", "reader", "worker", "gateway", "push", "query", "hook", "status")
}
WEBHOOK_SECRET = "whsec_" + base64.b64encode(b"s3cret-signing-word-0123456789").decode()
DEBUG = ["-m", "angarium.cli.main", "--debug"]  # tracebacks are shown, and may show too much
ADMIN = {"Authorization": f"Bearer {WORDS['admin']}"}


@asynccontextmanager
async def failing_receiver() -> AsyncIterator[tuple[int, list[str]]]:
    """A server that refuses everything and repeats what it was asked, and what it was asked."""
    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(str(request.rel_url))
        return web.Response(status=500, reason=f"no {request.rel_url}"[:100], text=str(request.url))

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1], asked
    finally:
        await runner.cleanup()


def settings_of(server: ServerProcess, receiver: int) -> Mapping[str, str]:
    inbound = '[["http","127.0.0.1","0"],["ws","127.0.0.1","0"]]'
    return {
        "ANGARIUM_REDIS_URL": server.url,
        "ANGARIUM_HTTP__PORT": "0",
        "ANGARIUM_HTTP__TOKENS": json.dumps(
            [f"admin:{WORDS['admin']}", f"read@acme:{WORDS['reader']}"]
        ),
        "ANGARIUM_DISPATCH__ACK_PORT": "0",
        "ANGARIUM_DISPATCH__TOKEN": WORDS["worker"],
        "ANGARIUM_PICKUP__PORT": "0",
        "ANGARIUM_PICKUP__TOKENS": json.dumps([f"acme:{WORDS['gateway']}"]),
        "ANGARIUM_PICKUP__PUSH_URL": f"http://me:{WORDS['push']}@127.0.0.1:{receiver}"
        f"/push?token={WORDS['query']}",
        "ANGARIUM_ROUTING__INBOUND": inbound,
        "ANGARIUM_ROUTING__STATUS_API_KEY": WORDS["status"],
        "ANGARIUM_TRANSACTIONS__WEBHOOK_SECRET": WEBHOOK_SECRET,
        "ANGARIUM_TRANSACTIONS__WEBHOOK_RETRY_DELAY_MS": "1",
        "ANGARIUM_TRANSACTIONS__MAX_WEBHOOK_RETRIES": "2",
        "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
        "ANGARIUM_REDIS__UNAVAILABLE_TIMEOUT_MS": "1000",
    }


def leaked(text: str) -> list[str]:
    secrets = [*WORDS.values(), WEBHOOK_SECRET, WEBHOOK_SECRET.removeprefix("whsec_")]
    secrets += [base64.b64encode(f"me:{WORDS['push']}".encode()).decode()]
    return [word for word in secrets if word in text]


async def test_roles_that_run_and_fail_show_no_secret_anywhere() -> None:
    with ServerProcess(config={"requirepass": WORDS["redis"]}) as server:
        async with failing_receiver() as (receiver, asked):
            command = [*DEBUG, "up", "tests.deploy.application:app", "--json"]
            async with RoleProcess(
                command, settings_of(server, receiver), ready_lines=12, deadline_s=PATIENCE_S
            ) as role:
                url = f"http://127.0.0.1:{role.port_of('api', 'http')}"
                answers = await _provoke(url, role, receiver, asked)
                server.kill()
                async with aiohttp.ClientSession(headers=ADMIN) as session:
                    answers += await _answers_without_redis(session, url)
                server.restart()
                await eventually(lambda: _answers(url, 200), PATIENCE_S)
                role.terminate(30)
                printed = "\n".join([*role.lines(), *role.stderr()])
    assert "push" in printed  # what failed was told
    assert leaked(printed) == []
    assert leaked("\n".join(answers)) == []


async def _provoke(url: str, role: RoleProcess, receiver: int, asked: list[str]) -> list[str]:
    """Everything that can be asked in the wrong way; the answers."""
    answers = []
    async with aiohttp.ClientSession() as session:

        async def call(method: str, path: str, **named: Any) -> Any:
            async with session.request(method, url + path, **named) as answer:
                text = await answer.text()
                answers.append(f"{answer.status} {dict(answer.headers)} {text}")
                return json.loads(text) if text.startswith("{") else text

        for shown in (WORDS["admin"], WORDS["admin"] + "x", WORDS["reader"]):
            headers = {"Authorization": f"Bearer {shown}"}
            for path in ("/metrics", "/v1/processes", "/v1/nowhere", "/v1/dashboard"):
                await call("GET", path, headers=headers)
        await call("GET", f"/v1/processes?token={WORDS['admin']}")
        pipeline = {"name": "p", "steps": [{"type": "noop"}]}
        await call("PUT", "/v1/pipelines/p", headers=ADMIN, json=pipeline)
        hook = f"http://127.0.0.1:{receiver}/hook?signature={WORDS['hook']}"
        start = {"pipeline": "p", "webhook": hook}
        await call("POST", "/v1/transactions", headers=ADMIN, json=start)
        await eventually(lambda: any("hook" in each for each in asked), PATIENCE_S)
        await _add_offline(role)
        await eventually(lambda: any("push" in each for each in asked), PATIENCE_S)
        for path in ("/metrics", "/v1/processes", "/v1/dashboard", "/v1/transaction-watch"):
            await call("GET", path, headers=ADMIN)
    return answers


async def _add_offline(role: RoleProcess) -> None:
    port = role.port_of("gateway", "gateway")
    async with PickupClient(f"ws://127.0.0.1:{port}/", token=WORDS["gateway"]) as client:
        await client.add_message("c", ["did:a"], {"x": 1}, push=PushToken("device"))


async def _answers_without_redis(session: aiohttp.ClientSession, url: str) -> list[str]:
    found = []
    for path in ("/readyz", "/v1/processes", "/v1/search?id=x", "/metrics"):
        async with session.get(url + path) as answer:
            found.append(await answer.text())
    return found


async def _answers(url: str, status: int) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as answer:
        return answer.status == status


@pytest.mark.parametrize(
    "settings",
    [
        {"ANGARIUM_REDIS_URL": "redis://u:s3cret-x@127.0.0.1:1/0"},
        {"ANGARIUM_REDIS_URL": "redis://u:s3cret-x@127.0.0.1:notaport/0"},
        {"ANGARIUM_REDIS_URL": "redis+cluster://u:s3cret-x@127.0.0.1:1,127.0.0.1:2"},
        {"ANGARIUM_DATABASE_URL": "postgresql://u:s3cret-x@127.0.0.1:1/db"},
        {"ANGARIUM_DATABASE_URL": "mysql://u:s3cret-x@127.0.0.1:1/db"},
        {"ANGARIUM_PICKUP__PUSH_URL": "ftp://u:s3cret-x@127.0.0.1/"},
        {"ANGARIUM_PICKUP__TOKENS": "s3cret-x"},
        {"ANGARIUM_HTTP__TOKENS": '["s3cret-x"]'},
        {"ANGARIUM_HTTP__TOKENS": '{"s3cret-x": 1}'},
        {"ANGARIUM_TRANSACTIONS__WEBHOOK_SECRET": "s3cret-x"},
        {"ANGARIUM_DISPATCH__TOKENS": "s3cret-x"},
        {"ANGARIUM_LAKE_URL": "s3://key:s3cret-x@bucket/x"},
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else each,
)
async def test_a_start_that_fails_repeats_no_secret(
    settings: dict[str, str], tmp_path: Path
) -> None:
    roles = ["gateway", "webhooks", "archiver", "api"]
    known = {
        "ANGARIUM_HTTP__PORT": "0",
        "ANGARIUM_PICKUP__PORT": "0",
        "ANGARIUM_REDIS__UNAVAILABLE_TIMEOUT_MS": "500",
        **settings,
    }
    with RoleProcess([*DEBUG, "serve", *roles], known, ready_lines=0) as role:
        await eventually(lambda: not role.alive or len(role.lines()) >= 4, PATIENCE_S)
        if not role.alive:
            role.wait()
        printed = "\n".join([*role.lines(), *role.stderr()])
    assert "s3cret-x" not in printed
    assert "angarium" in printed or '"ready":true' in printed


def test_the_doctor_tells_no_secret() -> None:
    for redis in ("redis://u:s3cret-x@127.0.0.1:1/0", "redis://u:s3cret-x@127.0.0.1:no/0"):
        settings = {
            "ANGARIUM_REDIS_URL": redis,
            "ANGARIUM_DATABASE_URL": "postgresql://u:s3cret-x@127.0.0.1:1/db",
            "ANGARIUM_HTTP__TOKENS": '["read:s3cret-x"]',
        }
        with RoleProcess(["doctor", "--json"], settings, ready_lines=0) as role:
            role.wait(PATIENCE_S)
            assert "s3cret-x" not in "\n".join([*role.lines(), *role.stderr()])
