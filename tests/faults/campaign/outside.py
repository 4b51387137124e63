"""The world outside: it answers what steps ask, hears webhooks, and receives deliveries."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from tests.faults.campaign.app import SWITCH
from tests.kit.history import History

RETRY_S = 0.2
ANSWER_S_MAX = 3.0


class Outside:
    """`told` counts webhooks by transaction; deliveries go to the history."""

    def __init__(self, deliveries: History) -> None:
        self.told: Counter[str] = Counter()
        self.unsuccessful: list[str] = []
        self.url = ""
        self.api_url = ""
        self._deliveries = deliveries
        self._answering: set[str] = set()
        self._answers: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession
        self._tasks: asyncio.TaskGroup

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Outside]:
        application = web.Application()
        application.router.add_post("/ask", self._ask)
        application.router.add_post("/webhook", self._webhook)
        application.router.add_post("/deliver/{name}", self._deliver)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        limit = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with (
                aiohttp.ClientSession(timeout=limit) as self._session,
                asyncio.TaskGroup() as self._tasks,
            ):
                try:
                    yield self
                finally:
                    for task in list(self._answers):
                        task.cancel()
        finally:
            await runner.cleanup()

    async def _ask(self, request: web.Request) -> web.Response:
        transaction_id = (await request.json())["transaction_id"]
        if transaction_id not in self._answering:
            self._answering.add(transaction_id)
            task = self._tasks.create_task(self._answer(transaction_id))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)
        return web.Response(status=202)

    async def _answer(self, transaction_id: str) -> None:
        """By the API, until it was taken. Asked again later, it is answered again."""
        url = f"{self.api_url}/v1/transactions/{transaction_id}/switches/{SWITCH}"
        try:
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with self._session.put(url, json={"value": "yes"}) as response:
                        if response.status < 500:
                            return
                await asyncio.sleep(RETRY_S)
        finally:
            self._answering.discard(transaction_id)

    async def _webhook(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = msgspec.json.decode(await request.read())
        transaction_id = body["metadata"]["txId"]
        self.told[transaction_id] += 1
        if body["metadata"]["status"] != "success":
            self.unsuccessful.append(transaction_id)
        return web.Response(status=204)

    async def _deliver(self, request: web.Request) -> web.Response:
        await request.read()
        self._deliveries.received(request.match_info["name"])
        return web.Response(status=204)
