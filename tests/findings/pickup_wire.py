"""A gateway process and a plain WebSocket client, for the findings about pickup."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from angarium.pickup.store import PickupQueueStatus, PickupStore
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.kit.roles import RoleProcess

DID = "did:example:anna"
DEADLINE_S = 30.0


def environment(redis_url: str, folder: Path, **more: str) -> dict[str, str]:
    return {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"f{secrets.token_hex(3)}:",
        "ANGARIUM_DATABASE_URL": f"sqlite:///{folder}/pickup.db",
        "ANGARIUM_PICKUP__PORT": "0",
        **more,
    }


def url_of(role: RoleProcess) -> str:
    return f"ws://127.0.0.1:{role.ports['gateway']}/"


@asynccontextmanager
async def opened_store(env: dict[str, str]) -> AsyncIterator[PickupStore]:
    """The store of the gateway's keyspace, in the process of the test."""
    settings = load(redis_url=env["ANGARIUM_REDIS_URL"], prefix=env["ANGARIUM_PREFIX"])
    async with Runtime.open(settings) as runtime:
        yield PickupStore(runtime)


async def status_of_queue(store: PickupStore, connection: str) -> PickupQueueStatus:
    found = await store.queue_status(f"default:{connection}")
    assert found is not None
    return found


class Wire:
    """One socket. `notifications` collects the notifications of the gateway."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.notifications: list[Any] = []
        self._numbers = itertools.count(1)

    async def hear(self) -> Any:
        message = await asyncio.wait_for(self.socket.receive(), DEADLINE_S)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return json.loads(message.data)

    async def ask(self, method: str, params: Any = None) -> Any:
        """The whole answer."""
        return await self.ask_raw(method, b"" if params is None else json.dumps(params).encode())

    async def ask_raw(self, method: str, params: bytes) -> Any:
        number = next(self._numbers)
        given = b'"params":%b,' % params if params else b""
        call = b'{"jsonrpc":"2.0","method":"%b",%b"id":%d}' % (method.encode(), given, number)
        await self.socket.send_str(call.decode())
        while True:
            heard = await self.hear()
            if isinstance(heard, dict) and heard.get("id") == number and "method" not in heard:
                return heard
            self.notifications.append(heard)

    async def add(self, connection: str, payload: Any) -> str:
        params = {"connectionId": connection, "recipientDids": [DID], "payload": payload}
        return str((await self.ask("addMessage", params))["result"]["messageId"])


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Wire]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, max_msg_size=0) as socket,
    ):
        yield Wire(socket)
