"""A soak from its beginning to its verdict: the fleet and the load of the campaign, and no faults.

What is kept for a while by promise (ids of the intake for ten minutes, results in their stream) is
bounded so that it stands still before the part that is judged begins. The journal is read and
committed all the time, as the lake does, so it is trimmed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from angarium.client import Client
from angarium.runtime.errors import AngariumError
from angarium.runtime.journal import Journal, decode_entry
from angarium.settings import load
from tests.faults.campaign.app import OLD
from tests.faults.campaign.balance import Balance
from tests.faults.campaign.fleet import Fleet
from tests.faults.campaign.load import Load, Pace, Recipients
from tests.faults.campaign.outside import Outside
from tests.faults.campaign.run import SETTINGS
from tests.faults.soak.report import SoakReport
from tests.faults.soak.samples import Kind, Sample, kinds, of_process, of_redis, reported
from tests.kit.history import History
from tests.kit.server import ServerProcess

READER = "soak"
ENTRIES_PER_READ = 1_000
READ_S = 0.5
DRAIN_S_MAX = 120.0
REPORTED_S_MAX = 60.0
REST_SAMPLES = 8
# About a core of two for all roles, Redis and the load together.
HALF_LOAD = Pace(users=180, senders=45, keys=450, pause_s=0.8)
KEPT = {
    "ANGARIUM_DURABILITY": "local",
    "ANGARIUM_DISPATCH__STREAM_ENTRIES_MAX": "2000",
    "ANGARIUM_CONVERSATIONS__MESSAGE_TTL": "120000",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGE_TTL": "120000",
    "ANGARIUM_TRANSACTIONS__EXTERNALID_UNIQUENESS_PERIOD": "120",
}


class SoakLoad(Load):
    """Without idempotency keys: they are kept for a day, and nothing is sent twice here."""

    async def _by_client(self, message: dict[str, str], _: aiohttp.ClientSession, __: str) -> bool:
        try:
            await self._client.dispatch.enqueue(message)
        except AngariumError:
            return False
        return True

    async def _by_api(
        self, message: dict[str, str], session: aiohttp.ClientSession, api_url: str
    ) -> bool:
        try:
            async with session.post(f"{api_url}/v1/messages", json={"payload": message}) as answer:
                return answer.status < 300
        except (aiohttp.ClientError, TimeoutError):
            return False


class Soak:
    def __init__(
        self,
        minutes: float,
        every_s: float,
        pace: Pace,
        folder: Path,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._seconds = minutes * 60
        self._every_s = every_s
        self._pace = pace
        self._folder = folder
        self._tell = tell
        self._balance = Balance()
        self._samples: list[tuple[float, Sample]] = []
        self._samples_per_minute = max(2, round(60 / every_s))
        self._before: dict[str, Kind] = {}
        self._position = "0-0"

    async def run(self) -> SoakReport:
        async with AsyncExitStack() as stack:
            self._server = stack.enter_context(ServerProcess(aof=True))
            self._witness: Any = self._server.client(decode_responses=True)
            inbound = stack.enter_context(History(self._folder / "sent.jsonl"))
            outbound = stack.enter_context(History(self._folder / "outbound.jsonl"))
            outside = await stack.enter_async_context(Outside(outbound).run())
            given = load(redis_url=self._server.url, home=self._folder / "home")
            self._client = await stack.enter_async_context(Client(given))
            self._journal = Journal(self._client.runtime)
            await self._journal.register(READER)
            await self._client.transactions.load(OLD)
            env = {
                **SETTINGS,
                **KEPT,
                "ANGARIUM_REDIS_URL": self._server.url,
                "ANGARIUM_DATABASE_URL": f"sqlite:///{self._folder}/angarium.sqlite",
                "ANGARIUM_HOME": str(self._folder / "home"),
                "CAMPAIGN_OUTSIDE": outside.url,
                "CAMPAIGN_HISTORY": str(self._folder),
            }
            self._fleet = await stack.enter_async_context(Fleet(env, self._folder, None))
            self._load = SoakLoad(self._client, self._pace, inbound, outbound, outside.url)
            async with self._loaded(outside) as loading:
                await self._watch()
                after = await asyncio.to_thread(kinds, self._witness)
                self._load.over.set()
                await loading
                await self._drain()
                at_rest = await self._at_rest()
            return self._report(after, at_rest)

    @asynccontextmanager
    async def _loaded(self, outside: Outside) -> AsyncIterator[asyncio.Task[None]]:
        """The load and its recipients, and somebody who reads the journal."""
        fleet = self._fleet
        api, relay = (f"http://127.0.0.1:{fleet.of(role)[0].port}" for role in ("api", "relay"))
        self._api_url = outside.api_url = api
        gateways = [f"ws://127.0.0.1:{each.port}/" for each in fleet.of("gateway")]
        recipients = Recipients(self._load.users, gateways)
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(each)
                for each in (fleet.watch(), recipients.run(), self._read_on())
            ]
            yield group.create_task(self._load.run(api, relay))
            for task in background:
                task.cancel()

    async def _watch(self) -> None:
        await self._all_reported()
        began_s, looked = time.monotonic(), False
        while (at_s := time.monotonic() - began_s) <= self._seconds:
            self._samples.append((at_s, await self._sample()))
            if len(self._samples) % self._samples_per_minute == 1:
                sent, open_lives = len(self._load.sent.messages), self._balance.open_lives
                self._tell(f"{at_s / 60:.0f} min: {sent:,} sent, {open_lives:,} under way")
            if not looked and at_s >= self._seconds / 3:
                looked = True
                self._before = await asyncio.to_thread(kinds, self._witness)
            due_s = began_s + len(self._samples) * self._every_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def _all_reported(self) -> None:
        """Every process has told its figures once, so that a series has no holes."""
        async with asyncio.timeout(REPORTED_S_MAX):
            members = self._fleet.members
            while not {f"{each.name}: tasks" for each in members} <= (await self._told()).keys():
                await asyncio.sleep(READ_S)

    async def _told(self) -> dict[str, float]:
        return await reported(self._fleet.members, self._client.runtime, self._api_url)

    async def _sample(self) -> Sample:
        found = await self._told()
        for member in self._fleet.members:
            found |= of_process(member.name, member.pid)
        found["redis: CPU s"] = of_process("redis", self._server.pid)["redis: CPU s"]
        return found | await asyncio.to_thread(of_redis, self._witness)

    # The journal, as the lake reads it

    async def _read_on(self) -> None:
        while True:
            await self._read()
            await asyncio.sleep(READ_S)

    async def _read(self) -> None:
        while entries := await self._journal.read(0, self._position, ENTRIES_PER_READ):
            for entry_id, fields in entries:
                self._balance.read(0, decode_entry(entry_id, fields))
            self._position = entries[-1][0].decode()
            await self._journal.commit(READER, 0, self._position)

    async def _drain(self) -> None:
        """Until everything that was taken has come to its end."""
        until_s = time.monotonic() + DRAIN_S_MAX
        while time.monotonic() < until_s:
            begun = self._balance.accounts["dispatch", "message"].begun
            if len(begun) >= len(self._load.sent.messages) and self._balance.open_lives == 0:
                return
            await asyncio.sleep(READ_S)

    async def _at_rest(self) -> Sample:
        """The least of several samples: a process reports every few seconds."""
        samples = []
        for _ in range(REST_SAMPLES):
            samples.append(await self._sample())
            await asyncio.sleep(1.0)
        return {name: min(each.get(name, math.inf) for each in samples) for name in samples[0]}

    def _report(self, after: dict[str, Kind], at_rest: Sample) -> SoakReport:
        balance = self._balance
        problems = list(self._fleet.deaths)
        if balance.missing_numbers or balance.rewound_numbers:
            problems.append("the journal has a gap")
        return SoakReport(
            self._samples,
            self._before,
            after,
            sent=len(self._load.sent.messages),
            events=balance.events,
            unfinished=balance.open_lives,
            doubled=sum(len(each.doubled) for each in balance.accounts.values()),
            problems=problems,
            at_rest=at_rest,
        )
