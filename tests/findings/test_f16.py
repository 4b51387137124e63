"""F16: only an answer that was written to a living connection counts as notification."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from angarium.transactions.model import Transaction, TransactionStatus
from tests.findings.transactions_deployment import DEADLINE_S, Deployment, deployment
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.transactions.api_client import api_client

pytestmark = pytest.mark.timeout(300)
POLLS = 20
REQUESTS = ["start", "status", "external", "v1"]


class Receiver:
    """Accepts every webhook, and counts them by transaction."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        self.bodies: list[Any] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.received[body["metadata"]["txId"]] += 1
        return web.Response()


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    found, app = Receiver(), web.Application()
    app.router.add_post("/", found.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        place = web.TCPSite(runner, "127.0.0.1", 0)
        await place.start()
        port = runner.addresses[0][1]
        found.url = f"http://127.0.0.1:{port}/"
        yield found
    finally:
        await runner.cleanup()


class Caller:
    """Long polls on bare sockets, as a client that may hang up makes them."""

    def __init__(self, here: Deployment, api: RoleProcess, hook: str) -> None:
        self._here = here
        self._port = api.ports["http"]
        self._hook = hook
        self._sockets: list[socket.socket] = []

    @property
    def metadata(self) -> dict[str, Any]:
        return {"webhook": self._hook, "pollReplyCancelsWebhook": True}

    async def call(self, kind: str, number: int) -> None:
        """Start a transaction, and ask for its end."""
        external = f"{kind}-{number}"
        start = {"metadata": {**self.metadata, "externalId": external}, "data": {}}
        path = "/datp/1.0/tx/start/payment"
        if kind == "start":
            start["metadata"]["reply"] = "longpoll"
            self.send("PUT", path, start)
            return
        async with api_client(self._port) as http:
            _, started = await http.request("PUT", path, start)
        id = started["metadata"]["txId"]
        paths = {
            "status": f"/datp/1.0/tx/status/{id}?reply=longpoll",
            "external": f"/datp/1.0/tx/statusByExternalId/{external}?reply=longpoll",
            "v1": f"/v1/transactions/{id}?wait_s=60",
        }
        self.send("GET", paths[kind])

    def send(self, method: str, path: str, body: Any = None) -> socket.socket:
        data = b"" if body is None else json.dumps(body).encode()
        sender = socket.create_connection(("127.0.0.1", self._port))
        self._sockets.append(sender)
        sender.sendall(
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n"
            "content-type: application/json\r\n\r\n".encode()
            + data
        )
        return sender

    async def all_wait(self) -> None:
        """Until the API says that all of them wait for an end."""
        line = f'angarium_transactions{{state="polls"}} {float(len(self._sockets))}'
        async with api_client(self._port) as http:

            async def waiting() -> bool:
                return line in await http.metrics()

            await eventually(waiting, DEADLINE_S)

    def read(self) -> Any:
        """The whole answer that the first of them gets."""
        with http.client.HTTPResponse(self._sockets[0]) as response:
            response.begin()
            return json.loads(response.read())

    def hang_up(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()


@contextlib.contextmanager
def caller(here: Deployment, api: RoleProcess, hook: str) -> Iterator[Caller]:
    found = Caller(here, api, hook)
    try:
        yield found
    finally:
        found.hang_up()


async def _asleep(here: Deployment, count: int) -> list[str]:
    """Ids of the transactions, when all of them wait for their switch."""

    async def all_sleep() -> list[Transaction] | None:
        found = await here.client.list_by_status(TransactionStatus.SLEEPING, count + 1)
        return found if len(found) == count else None

    return [each.id for each in await eventually(all_sleep, DEADLINE_S) or ()]


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_client_that_disconnected_is_notified_by_webhook(
    redis_url: str, tmp_path: Path, kind: str
) -> None:
    async with deployment(redis_url, tmp_path) as here, receiver() as hooks:
        await here.define("payment", "wait_for_bank")
        async with here.role("api") as api, here.role("webhooks"), here.node("old"):
            with caller(here, api, hooks.url) as clients:
                for number in range(POLLS):
                    await clients.call(kind, number)
                ids = await _asleep(here, POLLS)
                await clients.all_wait()
                clients.hang_up()
            # Just at the end: nobody waits until the API has noticed that they are gone.
            await asyncio.gather(*(here.client.set_switch(id, "go", "1") for id in ids))
            found = await here.ended(ids)
            assert {each.status for each in found} == {"success"}
            await eventually(lambda: set(hooks.received) == set(ids), 30)
            for each in await here.ended(ids):
                assert each.notified_ms is None


async def test_a_client_that_reads_its_response_is_not_notified_again(
    redis_url: str, tmp_path: Path
) -> None:
    """Without the role that sends webhooks, so that only the answer can take it off the list."""
    async with deployment(redis_url, tmp_path) as here, receiver() as hooks:
        await here.define("payment", "wait_for_bank")
        async with here.role("api") as api, here.node("old"):
            with caller(here, api, hooks.url) as clients:
                await clients.call("status", 1)
                (id,) = await _asleep(here, 1)
                await clients.all_wait()
                await here.client.set_switch(id, "go", "1")
                body = await asyncio.to_thread(clients.read)
                assert body["metadata"]["status"] == "success"

                async def recorded() -> Transaction | None:
                    found = await here.client.get(id)
                    return found if found.notified_ms is not None else None

                found = await eventually(recorded, DEADLINE_S)
                assert found is not None
                milliseconds = f"{(found.notified_ms or 0) % 1000:03d}Z"
                assert body["metadata"]["notifiedTime"].endswith(milliseconds)
                assert (await here.client.health_report(1)).webhooks == 0


async def test_a_head_request_notifies_nobody(redis_url: str, tmp_path: Path) -> None:
    """HEAD: the state is looked at, and not sent."""
    async with deployment(redis_url, tmp_path) as here, receiver() as hooks:
        await here.define("payment", "charge")
        async with here.role("api") as api, here.node("old"):
            with caller(here, api, hooks.url) as clients:
                async with api_client(api.ports["http"]) as http:
                    start = {"metadata": clients.metadata, "data": {}}
                    _, started = await http.request("PUT", "/datp/1.0/tx/start/payment", start)
                    id = started["metadata"]["txId"]
                    await here.ended([id])
                    assert await http.head(f"/v1/transactions/{id}?wait_s=1") == 200
                    await http.request("GET", f"/v1/transactions/{id}")
            assert (await here.client.get(id)).notified_ms is None
            assert (await here.client.health_report(1)).webhooks == 1
