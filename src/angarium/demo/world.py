"""The world outside the building: people who ask, an expert who calls back, recipients who come.

Half of the people stay connected to a gateway; the others are away until a push notification calls
them. The expert answers by the API, as any outside service would. Everybody keeps trying: a gateway
that was killed is connected to again, an answer that was not taken is given again.
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

# The expert thinks for so long, about.
THINKING_S = (0.05, 0.4)
# A recipient who is called may already have looked; one who was not called looks in any case when
# the story is about to end.
RETRY_S = 0.3
# A gateway that has nothing for a recipient is asked whether it lives; one that does not answer
# within this time is left for another.
SILENCE_S = 2.0
ANSWER_S_MAX = 3.0
# Offline recipients share the connections of their phones' network, so to say.
PHONES_PER_GATEWAY = 2
AT_ONCE = 100


@dataclass
class Person:
    """One who asks; `push_token` is there for those who go away."""

    name: str
    push_token: str | None = None
    seen: dict[str, None] = field(default_factory=dict)
    """Ids of messages, in the order in which they first arrived."""

    def receive(self, messages: Sequence[QueuedMessage]) -> None:
        for message in messages:
            self.seen.setdefault(message.id)


def people_of(count: int) -> list[Person]:
    return [
        Person(f"user-{number:05d}", None if number % 2 else f"phone-{number:05d}")
        for number in range(count)
    ]


class Outside:
    """An HTTP listener: the expert's desk and the service that sends push notifications."""

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
        await asyncio.sleep(random.uniform(*THINKING_S))
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


class Listener:
    """A recipient who stays connected to whichever gateway answers, and acknowledges."""

    def __init__(self, person: Person, urls: Sequence[str]) -> None:
        self._person = person
        self._urls = itertools.cycle(urls)

    async def run(self, connected: asyncio.Event) -> None:
        while True:
            try:
                await self._listen(next(self._urls), connected)
            except (AngariumError, TimeoutError):
                await asyncio.sleep(RETRY_S)

    async def _listen(self, url: str, connected: asyncio.Event) -> None:
        """Until the gateway no longer answers."""
        name = self._person.name
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
                self._person.receive(delivery.messages)
                await client.remove_messages(name, [each.id for each in delivery.messages])


class Phones:
    """The recipients who are away, until they are called."""

    def __init__(self, people: Sequence[Person], urls: Sequence[str]) -> None:
        self._people = {each.push_token: each for each in people}
        self._clients = [
            PickupClient(url, call_timeout_s=ANSWER_S_MAX)
            for url in urls
            for _ in range(PHONES_PER_GATEWAY)
        ]
        self._turns = itertools.cycle(self._clients)

    async def run(self, called: asyncio.Queue[str], connected: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                await client.__aenter__()
            connected.set()
            try:
                for _ in range(AT_ONCE):
                    group.create_task(self._answer_calls(called))
                await asyncio.Event().wait()
            finally:
                for client in self._clients:
                    await client.__aexit__()

    async def _answer_calls(self, called: asyncio.Queue[str]) -> None:
        while True:
            person = self._people[await called.get()]
            await self.pick_up(person)

    async def pick_up(self, person: Person) -> None:
        """Take what waits and remove it; what comes meanwhile is called for again."""
        name = person.name
        while True:
            client = next(self._turns)
            try:
                messages = await client.take_from_queue(name, limit=50)
                if not messages:
                    return
                person.receive(messages)
                await client.remove_messages(name, [each.id for each in messages])
            except (AngariumError, TimeoutError):
                await asyncio.sleep(RETRY_S)

    async def look(self) -> None:
        """Everybody opens the application of their own accord."""
        async with asyncio.TaskGroup() as group:
            for person in self._people.values():
                group.create_task(self.pick_up(person))
