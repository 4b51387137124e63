"""Starts all roles in one process on its own server, and adds sample data to every module.

The data goes through the API and the modules' stores. Ids and payloads contain markup, which a page
must show as text.
"""

from __future__ import annotations

import asyncio
import secrets
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from angarium.pickup.client import PickupClient
from angarium.routing.outbound_store import OutboundStore
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.routing.harness import envelope

APP = "tests.dashboard.app:app"
MARKUP = "<img/src=x/onerror=window.hurt=1>"
DEADLINE_S = 60.0
PIPELINE = {
    "name": "payment",
    "steps": [{"type": "charge-card"}, {"type": "await-bank"}, {"type": "ship"}],
}


@dataclass(frozen=True)
class RunningSystem:
    server: ServerProcess
    role: RoleProcess
    prefix: str
    database_url: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.role.readiness()[0]['ports']['http']}"

    def port(self, role: str, name: str) -> int:
        lines = [line for line in self.role.readiness() if line["role"] == role]
        return int(lines[0]["ports"][name])

    @property
    def settings(self) -> Any:
        return load(
            redis_url=self.server.url,
            prefix=self.prefix,
            partitions=2,
            database_url=self.database_url,
            allow_private_addresses=True,
        )


def environment(server: ServerProcess, prefix: str, **more: str) -> dict[str, str]:
    return {
        "ANGARIUM_REDIS_URL": server.url,
        "ANGARIUM_PREFIX": prefix,
        "ANGARIUM_PARTITIONS": "2",
        "ANGARIUM_HTTP__PORT": "0",
        "ANGARIUM_PICKUP__PORT": "0",
        "ANGARIUM_DISPATCH__ACK_PORT": "0",
        "ANGARIUM_DISPATCH__DELIVERIES_MAX": "2",
        "ANGARIUM_ROUTING__INBOUND": '[["http","127.0.0.1","0"],["ws","127.0.0.1","0"]]',
        "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
        "ANGARIUM_CONVERSATIONS__MESSAGE_TTL": "600000",
        "ANGARIUM_CONVERSATIONS__SENT_MESSAGE_TTL": "600000",
        "ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP": "600000",
        "ANGARIUM_REDIS__UNAVAILABLE_TIMEOUT_MS": "1500",
        **more,
    }


@contextmanager
def running_system(**more: str) -> Iterator[RunningSystem]:
    """Run all roles except the lake, which has its own tests."""
    roles = ["api", "relay", "inbox", "deliverer", "dispatcher", "worker", "gateway",
             "conversations", "archiver", "webhooks", "node"]  # fmt: skip
    with ServerProcess(aof=True) as server:
        env = environment(server, f"t{secrets.token_hex(3)}:", **more)
        arguments = ["serve", *roles, "--app", APP]
        with RoleProcess(arguments, env, ready_lines=len(roles), deadline_s=DEADLINE_S) as role:
            database_url = f"sqlite:///{role.home}/angarium.db"
            yield RunningSystem(server, role, env["ANGARIUM_PREFIX"], database_url)


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        async with self._session.request(method, self._url + path, json=body) as answer:
            found = await answer.json() if answer.status != 204 else None
            assert answer.status < 400, found
            return found

    async def get(self, path: str) -> Any:
        return await self.ask("GET", path)

    async def message(self, payload: Mapping[str, Any]) -> str:
        return str((await self.ask("POST", "/v1/messages", {"payload": payload}))["message_id"])

    async def transaction(self, data: Mapping[str, Any], **more: Any) -> str:
        body = {"pipeline": "payment", "data": data, **more}
        return str((await self.ask("POST", "/v1/transactions", body))["id"])

    async def request(self, conversation: str, request: str) -> None:
        body = {"conversation_id": conversation, "request_id": request, "origin": "chat"}
        await self.ask("POST", "/v1/conversations/requests", body)

    async def reply(self, conversation: str, request: str, response: str, payload: Any) -> None:
        body = {
            "conversation_id": conversation, "request_id": request, "response_id": response,
            "sender": "chat", "payload": payload,
        }  # fmt: skip
        await self.ask("POST", "/v1/conversations/replies", body)


@dataclass(frozen=True)
class SampleData:
    """Ids of the sample data."""

    dead: tuple[str, ...]
    sleeping: str
    ended: str
    failed: str
    with_webhook: str
    conversation: str
    key: str
    connection: str


async def add_sample_data(system: RunningSystem) -> SampleData:
    async with aiohttp.ClientSession() as session:
        api = Client(session, system.url)
        await api.ask("PUT", "/v1/pipelines/payment", PIPELINE)
        ids = await _transactions(api)
        dead = tuple([await api.message({"fail": f"no {n} {MARKUP}"}) for n in range(3)])
        for number in range(20):
            await api.message({"order": number})
        conversation = f"chat-{MARKUP}"
        await _conversation(api, conversation)
        key = await _mail(session, system)
        await _deliveries(system)
        connection = await _pickup(system)

        async def settled() -> bool:
            letters = (await api.get("/v1/dispatch/dead"))["letters"]
            given_up = (await api.get("/v1/routing/dead-deliveries"))["letters"]
            not_handled = (await api.get("/v1/routing/dead"))["letters"]
            ended = await api.get(f"/v1/transactions/{ids['ended']}")
            hook = await api.get(f"/v1/transactions/{ids['with_webhook']}")
            asleep = await api.get(f"/v1/transactions/{ids['sleeping']}")
            path = f"/v1/conversations/{urllib.parse.quote(conversation, safe='')}"
            shown = {each["reason"]["why"] for each in (await api.get(path))["replies"]}
            return (
                (len(letters), len(given_up), len(not_handled)) == (3, 1, 2)
                and ended["status"] == "success"
                and hook.get("webhook_error") is not None
                and asleep["status"] == "sleeping"
                and "sent" in shown
            )

        await eventually(settled, DEADLINE_S)
    return SampleData(dead=dead, conversation=conversation, key=key, connection=connection, **ids)


async def _transactions(api: Client) -> dict[str, str]:
    closed = "http://127.0.0.1:9/hook"  # nothing listens on the discard port
    return {
        "sleeping": await api.transaction({"amount": 42}, external_id=f"order-{MARKUP}"),
        "ended": await api.transaction({"quick": True, "note": MARKUP}),
        "failed": await api.transaction({"refused": True}, owner="shop"),
        "with_webhook": await api.transaction({"quick": True}, webhook=closed),
    }


async def _conversation(api: Client, conversation: str) -> None:
    """The first request's reply waits for its ACK, the second has no reply, the third's wait."""
    for request in ("r1", "r2", "r3"):
        await api.request(conversation, request)
    await api.reply(conversation, "r1", "r1-a", {"ack": f"ack-{secrets.token_hex(4)}"})
    await api.reply(conversation, "r3", "r3-a", {"text": MARKUP})
    await api.reply(conversation, "r3", "r3-b", {"text": "second"})


async def _mail(session: aiohttp.ClientSession, system: RunningSystem) -> str:
    url = f"http://127.0.0.1:{system.port('relay', 'http')}/"
    for number in range(12):
        key = f"key-{number}-{MARKUP}"
        text = "refused" if number < 2 else "hello"
        async with session.post(url, data=envelope(key, text=text)) as answer:
            assert answer.status < 300, await answer.text()
    return key


async def _deliveries(system: RunningSystem) -> None:
    """Add a delivery to a refused address; the deliverer gives up at once."""
    async with Runtime.open(system.settings) as runtime:
        store = OutboundStore(runtime, "native")
        await store.push(f"gopher://nowhere.example/{MARKUP}", b"hello", {})


async def _pickup(system: RunningSystem) -> str:
    url = f"ws://127.0.0.1:{system.port('gateway', 'gateway')}/"
    connection = f"phone-{MARKUP}"
    async with PickupClient(url) as client:
        for number in range(3):
            await client.add_message(connection, ["did:example:anna"], {"n": number})
    return connection


def run(coroutine: Any) -> Any:
    """For tests without a loop. The browser's loop runs in this thread."""
    return asyncio.run(coroutine)
