"""An HTTP server that receives callbacks, records them and answers as the test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.conversations.harness import DEADLINE_S
from tests.kit.eventually import eventually

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


class Receiver:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    @property
    def ids(self) -> list[str]:
        return [body["responseId"] for body in self.bodies]

    async def wait(self, number: int) -> None:
        await eventually(lambda: len(self.bodies) >= number, DEADLINE_S)

    async def wait_for_all(self, ids: Sequence[str]) -> None:
        await eventually(lambda: set(ids) <= set(self.ids), 2 * DEADLINE_S)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        status, answer = self._answer(body)
        return web.json_response(answer, status=status)


@asynccontextmanager
async def receiver(answer: Answer = lambda _: (200, {})) -> AsyncIterator[Receiver]:
    found = Receiver(answer)
    app = web.Application()
    app.router.add_post("/replies", found.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    found.url = f"http://127.0.0.1:{port}/replies"
    try:
        yield found
    finally:
        await runner.cleanup()
