"""The story, played: a fleet of roles, a world outside, four kills, and the balance at the end.

What is shown on the way comes from the journal, as the balance does. The story ends when every
reply was picked up, or when nothing has moved for a while; either way there is a verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

from angarium.client import Client
from angarium.demo import filing
from angarium.demo.app import PIPELINE, REPLIES_PER_MESSAGE
from angarium.demo.fleet import Fleet, RoleProcess
from angarium.demo.ledger import NAMED_MAX, Audit, Ledger
from angarium.demo.world import Listener, Outside, Phones, people_of
from angarium.runtime.errors import AngariumError
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.process_report import read_processes
from angarium.settings import Settings, load

MESSAGES_PER_PERSON = 2
ROLES = {"api": 1, "dispatcher": 2, "worker": 2, "node": 2, "gateway": 2, "conversations": 2}
# Killed when that part of the replies was picked up; each is started again after a moment.
KILLS = (("worker", 0.1), ("node", 0.3), ("gateway", 0.5), ("dispatcher", 0.7))
RESTART_AFTER_S = 1.0
LOOK_S = 0.1
ENTRIES_PER_READ = 1_000
# Published in so many portions, so that the kills come while questions are still being asked.
PORTIONS = 20
PORTION_S = 0.25
# The longest wait in the building is that for a silent node or gateway; this is several of them.
STILL_S_MAX = 60.0
CONNECT_AT_ONCE = 100
# The defaults are for large houses; in a story nobody wants to wait for a lease to run out.
FASTER = {
    "ANGARIUM_APP": "angarium.demo.app:app",
    "ANGARIUM_REDIS_URL": "embedded",
    "ANGARIUM_HTTP__PORT": "0",
    "ANGARIUM_PICKUP__PORT": "0",
    "ANGARIUM_PICKUP__LEASE_MS": "3000",
    "ANGARIUM_PICKUP__GRACE_MS": "1000",
    "ANGARIUM_PICKUP__SENDING_MS": "5000",
    "ANGARIUM_PICKUP__PUSH_INTERVAL_MS": "1000",
    "ANGARIUM_DISPATCH__ACK_PORT": "0",
    "ANGARIUM_DISPATCH__WORKER_PORT": "0",
    "ANGARIUM_TRANSACTIONS__NODE_TIMEOUT_MS": "3000",
    "ANGARIUM_CONVERSATIONS__MESSAGE_TTL": "600000",
    "ANGARIUM_CONVERSATIONS__SENT_MESSAGE_TTL": "1500",
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL": "10000",
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL_MARGIN": "2000",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGES_INTERVAL": "1000",
    "ANGARIUM_CONVERSATIONS__AWAITED_FIRST_TURN": "1000",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGES_BY_TURN": "200",
}


class Killed(msgspec.Struct, frozen=True):
    role: str
    pid: int
    at_s: float


class Result(msgspec.Struct, frozen=True):
    """The last line of `demo --json`."""

    audit: Audit
    users: int
    messages: int
    seconds: float
    kills: list[Killed]
    home: str
    audited_by: str


@dataclass
class Progress:
    """What can be shown while it plays."""

    stage: str
    wanted: int
    ledger: Ledger
    api_url: str = ""
    kills: list[Killed] = field(default_factory=list)
    published: int = 0


class StillRunning(AngariumError):
    code = "demo_running"


class Story:
    """`async with` it, then `play`: what it started is gone when the block ends."""

    def __init__(
        self,
        users: int,
        home: Path,
        *,
        kills: bool = True,
        lake: bool = True,
        show: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._people = people_of(users)
        self._home = home
        self._kills = list(KILLS) if kills else []
        self._lake = lake
        self._show = show
        self._began_s = time.monotonic()
        wanted = users * MESSAGES_PER_PERSON * REPLIES_PER_MESSAGE
        self.progress = Progress("starting", wanted, Ledger())
        self._position = "0-0"
        self.settings: Settings

    async def __aenter__(self) -> Story:
        async with AsyncExitStack() as stack:
            self._session = await stack.enter_async_context(aiohttp.ClientSession())
            self._outside = Outside(self._session)
            await stack.enter_async_context(_running(self._outside.run))
            self._env = {
                **FASTER,
                "ANGARIUM_HOME": str(self._home),
                "ANGARIUM_PICKUP__PUSH_URL": f"{self._outside.url}/push",
            }
            self.settings = load(home=self._home, redis_url="embedded")
            self._client = await stack.enter_async_context(Client(self.settings))
            self._fleet = await stack.enter_async_context(Fleet(self._env, self._home / "logs"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def play(self) -> Result:
        self._tell("starting the roles")
        await self._client.transactions.load(PIPELINE)
        await self._fleet.start(ROLES)
        self._outside.api_url = f"http://127.0.0.1:{self._fleet.of('api')[0].ports['http']}"
        self.progress.api_url = self._outside.api_url
        self._tell("people connect")
        async with self._world() as phones:
            self._began_s = time.monotonic()
            self._tell("questions come in")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish())
                killing = group.create_task(self._kill_some())
                await self._follow(phones)
                killing.cancel()
            seconds = time.monotonic() - self._began_s
            audit, source = await self._audit()
        return Result(
            audit,
            len(self._people),
            self.progress.published,
            round(seconds, 2),
            self.progress.kills,
            str(self._home),
            source,
        )

    async def _audit(self) -> tuple[Audit, str]:
        """The balance, and who drew it up or why it was not the lake."""
        why = filing.why_not(self.settings) if self._lake else "not asked for"
        if why is not None:
            return self._verdict(self.progress.ledger), f"the journal; the lake: {why}"
        self._tell("Spark files the journal")
        try:
            filed = await filing.file(self._env, self._home)
            ledger = await filing.read_back(self.settings)
        except AngariumError as error:
            return self._verdict(self.progress.ledger), f"the journal; the lake: {error}"
        named = [f"{each['kind']}: {each['subject']}" for each in filed.findings[:NAMED_MAX]]
        audit = self._verdict(ledger)
        audit = msgspec.structs.replace(
            audit, source="lake", wrong_in_lake=filed.wrong, examples=[*audit.examples, *named]
        )
        return audit, f"the lake, from {filed.events} events"

    def _verdict(self, ledger: Ledger) -> Audit:
        offline = frozenset(each.name for each in self._people if each.push_token)
        unordered = sum(
            ledger.seen_out_of_order(f"default:{each.name}", each.seen) for each in self._people
        )
        return ledger.verdict(self.progress.published, REPLIES_PER_MESSAGE, offline, unordered)

    # The people

    @asynccontextmanager
    async def _world(self) -> AsyncIterator[Phones]:
        urls = [f"ws://127.0.0.1:{each.ports['gateway']}/" for each in self._fleet.of("gateway")]
        live = [each for each in self._people if each.push_token is None]
        phones = Phones([each for each in self._people if each.push_token], urls)
        async with AsyncExitStack() as stack:
            for start in range(0, len(live), CONNECT_AT_ONCE):
                part = live[start : start + CONNECT_AT_ONCE]
                listeners = [
                    Listener(each, urls[number % 2 :] + urls[: number % 2]).run
                    for number, each in enumerate(part)
                ]
                await stack.enter_async_context(_running(*listeners))
            called = self._outside.called
            await stack.enter_async_context(_running(lambda up: phones.run(called, up)))
            yield phones

    async def _publish(self) -> None:
        messages = [
            {
                "user": person.name,
                "number": number,
                "push_token": person.push_token,
                "expert": f"{self._outside.url}/expert",
            }
            for number in range(1, MESSAGES_PER_PERSON + 1)
            for person in self._people
        ]
        size = -(-len(messages) // PORTIONS)
        for start in range(0, len(messages), size):
            portion = messages[start : start + size]
            await self._client.dispatch.publish_all(portion)
            self.progress.published += len(portion)
            await asyncio.sleep(PORTION_S)

    # What happens to them

    async def _follow(self, phones: Phones) -> None:
        """Until all is picked up, or nothing moves any more."""
        last, moved_s, looked_s = -1, time.monotonic(), time.monotonic()
        while self._done() < self.progress.wanted:
            await self._read_journal()
            self._show(self.progress)
            seen = sum(self.progress.ledger.counts.values())
            now_s = time.monotonic()
            if self._done() > last:
                last, moved_s = self._done(), now_s
            if now_s - moved_s > STILL_S_MAX:
                self._tell(f"nothing was picked up for {STILL_S_MAX:g} s, after {seen} events")
                return
            # A notification may be lost with the gateway that was to send it.
            if now_s - moved_s > STILL_S_MAX / 12 and now_s - looked_s > STILL_S_MAX / 12:
                looked_s = now_s
                await phones.look()
            await asyncio.sleep(LOOK_S)
        self._tell("all picked up")

    def _done(self) -> int:
        return self.progress.ledger.removed

    async def _read_journal(self) -> None:
        journal = Journal(self._client.runtime)
        while True:
            entries = await journal.read(0, self._position, ENTRIES_PER_READ)
            for entry_id, fields in entries:
                self.progress.ledger.read(decode_entry(entry_id, fields))
                self._position = entry_id.decode()
            if len(entries) < ENTRIES_PER_READ:
                return

    # The kills

    async def _kill_some(self) -> None:
        async with asyncio.TaskGroup() as group:
            for role, part in self._kills:
                while self._done() < part * self.progress.wanted:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S / 2)
                victim = await self._victim(role)
                pid = victim.pid or 0
                await victim.kill()
                at_s = round(time.monotonic() - self._began_s, 2)
                what = "leader" if role == "dispatcher" else role
                self.progress.kills.append(Killed(what, pid, at_s))
                group.create_task(self._start_again(victim))

    async def _victim(self, role: str) -> RoleProcess:
        """Of the dispatchers, the one that leads."""
        processes = self._fleet.of(role)
        if role == "dispatcher":
            leader = (await self._client.dispatch.status())[0].leader
            for each in await read_processes(self._client.runtime):
                if each.actor == leader:
                    return next(one for one in processes if one.pid == each.pid)
        return processes[0]

    async def _start_again(self, process: RoleProcess) -> None:
        await asyncio.sleep(RESTART_AFTER_S)
        await process.start()

    def _tell(self, stage: str) -> None:
        self.progress.stage = stage
        self._show(self.progress)


def fresh_home(home: Path) -> Path:
    """An empty folder of the story's own; one that plays already is left alone."""
    if (home / "redis").exists():
        from angarium.redis.embedded.supervisor import HOST, Folder, read_record

        record = read_record(Folder(home / "redis").record)
        if record is not None and _answers(HOST, record.port):
            raise StillRunning(f"a demo plays already in {home}; wait for it or stop it")
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    return home


def _answers(host: str, port: int) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.create_connection((host, port), 0.5):
        return True
    return False


@asynccontextmanager
async def _running(*runs: Callable[[asyncio.Event], Awaitable[None]]) -> AsyncIterator[None]:
    """Some of the world's coroutines, each up when the block begins and cancelled at its end."""
    tasks: Sequence[asyncio.Task[None]] = ()
    async with asyncio.TaskGroup() as group:
        ups = [asyncio.Event() for _ in runs]
        tasks = [group.create_task(_run(run, up)) for run, up in zip(runs, ups, strict=True)]
        for up in ups:
            await up.wait()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _run(run: Callable[[asyncio.Event], Awaitable[None]], up: asyncio.Event) -> None:
    await run(up)
