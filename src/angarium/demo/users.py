"""The demo's users and external services: live and offline recipients, an expert, a push service.

Half of the users stay connected to a gateway; the others connect after a push notification. The
expert sets a switch through the API. All of them retry: they reconnect to a killed gateway and
repeat a refused call.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from angarium.pickup.client import Delivery, PickupClient, QueuedMessage
from angarium.runtime.errors import AngariumError

# The expert answers after a random time between these.
EXPERT_DELAY_S = (0.05, 0.4)
RETRY_S = 0.3
# A live user pings a gateway that is silent for this long, and leaves one that does not answer.
SILENCE_S = 2.0
ANSWER_S_MAX = 3.0
# Offline users share these connections.
CLIENTS_PER_GATEWAY = 2
CONCURRENT_PICKUPS = 100


@dataclass
class User:
    """Offline users have a `push_token`."""

    name: str
    push_token: str | None = None
    seen: dict[str, None] = field(default_factory=dict)
    """Ids of received messages, in the order of their first arrival."""

    def receive(self, messages: Sequence[QueuedMessage]) -> None:
        for message in messages:
            self.seen.setdefault(message.id)


def make_users(count: int) -> list[User]:
    return [
        User(f"user-{number:05d}", None if number % 2 else f"phone-{number:05d}")
        for number in range(count)
    ]


class OutsideServices:
    """An HTTP server that is the expert and the push notification service."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._answered: set[str] = set()
        self._tasks: asyncio.TaskGroup
        self.api_url = ""
        self.url = ""
        self.called: asyncio.Queue[str] = asyncio.Queue()
        self.asked = self.pushes = 0

    async def run(self, running: asyncio.Event) -> None:
        application = web.Application()
        application.router.add_post("/expert", self._ask)
        application.router.add_post("/push", self._push)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with asyncio.TaskGroup() as self._tasks:
                running.set()
                await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _ask(self, request: web.Request) -> web.Response:
        question = await request.json()
        self.asked += 1
        if question["transaction_id"] not in self._answered:
            self._answered.add(question["transaction_id"])
            self._tasks.create_task(self._answer(question))
        return web.Response(status=202)

    async def _answer(self, question: dict[str, Any]) -> None:
        await asyncio.sleep(random.uniform(*EXPERT_DELAY_S))
        url = f"{self.api_url}/v1/transactions/{question['transaction_id']}/switches/expert"
        body = {"value": f"The answer to question {question['question']} is 42."}
        while True:
            try:
                async with self._session.put(url, json=body) as response:
                    if response.status < 500:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(RETRY_S)

    async def _push(self, request: web.Request) -> web.Response:
        note = await request.json()
        self.pushes += 1
        self.called.put_nowait(note["token"])
        return web.Response(status=202)


class LiveUser:
    """A user who stays connected to a gateway that answers, and removes each message."""

    def __init__(self, user: User, urls: Sequence[str]) -> None:
        self._user = user
        self._urls = itertools.cycle(urls)

    async def run(self, connected: asyncio.Event) -> None:
        while True:
            try:
                await self._listen(next(self._urls), connected)
            except (AngariumError, TimeoutError):
                await asyncio.sleep(RETRY_S)

    async def _listen(self, url: str, connected: asyncio.Event) -> None:
        """Return when the gateway no longer answers."""
        name = self._user.name
        got: asyncio.Queue[Delivery] = asyncio.Queue()
        options = {"on_messages": got.put_nowait, "call_timeout_s": ANSWER_S_MAX}
        async with PickupClient(url, **options) as client:  # type: ignore[arg-type]
            await client.add_live_session(name, f"session-{name}")
            connected.set()
            while True:
                try:
                    async with asyncio.timeout(SILENCE_S):
                        delivery = await got.get()
                except TimeoutError:
                    await client.ping()
                    continue
                self._user.receive(delivery.messages)
                await client.remove_messages(name, [each.id for each in delivery.messages])


class OfflineUsers:
    """Users who connect only when a push notification calls them."""

    def __init__(self, users: Sequence[User], urls: Sequence[str]) -> None:
        self._users = {each.push_token: each for each in users}
        self._clients = [
            PickupClient(url, call_timeout_s=ANSWER_S_MAX)
            for url in urls
            for _ in range(CLIENTS_PER_GATEWAY)
        ]
        self._turns = itertools.cycle(self._clients)

    async def run(self, called: asyncio.Queue[str], connected: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                await client.__aenter__()
            connected.set()
            try:
                for _ in range(CONCURRENT_PICKUPS):
                    group.create_task(self._answer_calls(called))
                await asyncio.Event().wait()
            finally:
                for client in self._clients:
                    await client.__aexit__()

    async def _answer_calls(self, called: asyncio.Queue[str]) -> None:
        while True:
            user = self._users[await called.get()]
            await self.pick_up(user)

    async def pick_up(self, user: User) -> None:
        """Take and remove waiting messages. A later message causes another notification."""
        name = user.name
        while True:
            client = next(self._turns)
            try:
                messages = await client.take_from_queue(name, limit=50)
                if not messages:
                    return
                user.receive(messages)
                await client.remove_messages(name, [each.id for each in messages])
            except (AngariumError, TimeoutError):
                await asyncio.sleep(RETRY_S)

    async def pick_up_all(self) -> None:
        """Pick up for every user, without a notification."""
        async with asyncio.TaskGroup() as group:
            for user in self._users.values():
                group.create_task(self.pick_up(user))
