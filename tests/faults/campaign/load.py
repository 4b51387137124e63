"""The load: messages for the dispatchers, mail for the relay and the deliverer, and recipients.

Everybody keeps trying, as a careful user would: what has a key of its own is sent until it was
taken; what has none is written down as attempted, and as sent only when it was taken.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from angarium.client import Client
from angarium.pickup.client import Delivery, PickupClient
from angarium.routing.outbound_store import OutboundStore
from angarium.runtime.errors import AngariumError
from tests.kit.history import History
from tests.routing.harness import envelope

RETRY_S = 0.2
ANSWER_S_MAX = 3.0
POST_S_MAX = 40.0  # longer than the relay waits for Redis
SILENCE_S = 1.0
AWAY_S = 1.5
TAKE_MAX = 50

Intake = Callable[[dict[str, str], aiohttp.ClientSession, str], Awaitable[bool]]


@dataclass(frozen=True)
class Pace:
    """How many there are of each, and the seconds between two of one sender."""

    users: int
    senders: int
    keys: int
    pause_s: float


@dataclass
class Sent:
    """`messages`: name → user, once the intake has it."""

    messages: dict[str, str] = field(default_factory=dict)
    refused: int = 0


class Load:
    def __init__(
        self, client: Client, pace: Pace, inbound: History, outbound: History, outside_url: str
    ) -> None:
        self._client = client
        self._pace = pace
        self._inbound = inbound
        self._outbound = outbound
        self._outside_url = outside_url
        self._store = OutboundStore(client.runtime, "native")
        self.over = asyncio.Event()
        self.sent = Sent()
        self.users = [f"user-{number}" for number in range(pace.users)]

    async def run(self, api_url: str, relay_url: str) -> None:
        """Until `over`; everybody finishes what they had begun."""
        limit = aiohttp.ClientTimeout(total=POST_S_MAX)
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            asyncio.TaskGroup() as group,
        ):
            for number, user in enumerate(self.users):
                intake = self._by_api if number % 2 else self._by_client
                group.create_task(self._ask(user, intake, session, api_url))
            for sender in range(self._pace.senders):
                group.create_task(self._post(sender, session, relay_url))
                group.create_task(self._deliver(sender))

    async def _ask(
        self, user: str, intake: Intake, session: aiohttp.ClientSession, api_url: str
    ) -> None:
        for number in itertools.count():
            if self.over.is_set():
                return
            name = f"{user}-{number}"
            message = {"user": user, "name": name}
            while not await intake(message, session, api_url):
                await asyncio.sleep(RETRY_S)
            self.sent.messages[name] = user
            await asyncio.sleep(self._pace.pause_s)

    async def _by_client(self, message: dict[str, str], _: aiohttp.ClientSession, __: str) -> bool:
        try:
            await self._client.dispatch.enqueue(message, idempotency_key=message["name"])
        except AngariumError:
            return False
        return True

    async def _by_api(
        self, message: dict[str, str], session: aiohttp.ClientSession, api_url: str
    ) -> bool:
        body = {"payload": message, "idempotency_key": message["name"]}
        try:
            async with session.post(f"{api_url}/v1/messages", json=body) as answer:
                assert answer.status < 300 or answer.status >= 500, await answer.text()
                return answer.status < 300
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _post(self, sender: int, session: aiohttp.ClientSession, url: str) -> None:
        """Each sender has keys of its own, so that their order is known."""
        mine = itertools.cycle(range(sender, self._pace.keys, self._pace.senders))
        for number in itertools.count():
            if self.over.is_set():
                return
            key, text = f"key-{next(mine)}", f"in-{sender}-{number}"
            self._inbound.attempted(text, key)
            try:
                async with session.post(url, data=envelope(key, text=text)) as answer:
                    assert answer.status in (200, 503), await answer.text()
                    if answer.status == 200:
                        self._inbound.sent(text, key)
                    else:
                        self.sent.refused += 1
            except (aiohttp.ClientError, TimeoutError):
                self.sent.refused += 1
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(self._pace.pause_s)

    async def _deliver(self, sender: int) -> None:
        for number in itertools.count():
            if self.over.is_set():
                return
            name = f"out-{sender}-{number}"
            self._outbound.attempted(name)
            try:
                await self._store.push(f"{self._outside_url}/deliver/{name}", b"{}", {})
                self._outbound.sent(name)
            except AngariumError:
                self.sent.refused += 1
            await asyncio.sleep(self._pace.pause_s)


class Recipients:
    """Half of them stay connected. The others come now and then, and every third of these not
    before `late`, where that is given. `seen`: user → ids, once each."""

    def __init__(
        self, users: Sequence[str], urls: Sequence[str], late: asyncio.Event | None = None
    ) -> None:
        self.live = list(users[::2])
        self._away = list(users[1::2])
        self._late = late
        self._urls = list(urls)
        self.seen: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.again = 0
        self.sightings: list[tuple[int, str, str, str]] = []  # ms, user, message, gateway

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, user in enumerate(self.live):
                group.create_task(self._listen(user, number))
            for number, user in enumerate(self._away):
                group.create_task(self._come(user, number))

    def _see(self, user: str, ids: Sequence[str], url: str) -> None:
        for message_id in ids:
            self.sightings.append((time.time_ns() // 1_000_000, user, message_id, url))
            self.again += message_id in self.seen[user]
            self.seen[user].setdefault(message_id)

    async def _listen(self, user: str, number: int) -> None:
        for url in itertools.cycle(self._urls[number % 2 :] + self._urls[: number % 2]):
            try:
                await self._stay(user, url)
            except (AngariumError, TimeoutError, OSError):
                await asyncio.sleep(RETRY_S)

    async def _stay(self, user: str, url: str) -> None:
        got: asyncio.Queue[list[str]] = asyncio.Queue()

        def hear(delivery: Delivery) -> None:
            ids = [each.id for each in delivery.messages]
            self._see(user, ids, url)
            got.put_nowait(ids)

        async with PickupClient(url, on_messages=hear, call_timeout_s=ANSWER_S_MAX) as client:
            await client.add_live_session(user, f"session-{user}")
            while True:
                try:
                    async with asyncio.timeout(SILENCE_S):
                        ids = await got.get()
                except TimeoutError:
                    await client.ping()
                    continue
                await client.remove_messages(user, ids)

    async def _come(self, user: str, number: int) -> None:
        if self._late is not None and number % 3 == 2:
            await self._late.wait()
        for url in itertools.cycle(self._urls[number % 2 :] + self._urls[: number % 2]):
            await asyncio.sleep(AWAY_S)
            try:
                async with PickupClient(url, call_timeout_s=ANSWER_S_MAX) as client:
                    while messages := await client.take_from_queue(user, limit=TAKE_MAX):
                        ids = [each.id for each in messages]
                        self._see(user, ids, url)
                        await client.remove_messages(user, ids)
            except (AngariumError, TimeoutError, OSError):
                continue
