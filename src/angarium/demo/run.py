"""Runs the demo: role processes, users, external services, four kills and the audit.

Progress and audit both come from the journal. The run ends when every reply has been picked up or
when none has been picked up for a while; it is audited in both cases.
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
from angarium.demo import lake_audit
from angarium.demo.app import PIPELINE, REPLIES_PER_MESSAGE
from angarium.demo.audit import EXAMPLES_MAX, AuditResult, JournalAudit
from angarium.demo.processes import RoleProcess, RoleProcesses
from angarium.demo.users import LiveUser, OfflineUsers, OutsideServices, make_users
from angarium.runtime.errors import AngariumError
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.process_report import read_processes
from angarium.settings import Settings, load

MESSAGES_PER_USER = 2
ROLES = {"api": 1, "dispatcher": 2, "worker": 2, "node": 2, "gateway": 2, "conversations": 2}
# Each role is killed when this share of the replies has been picked up, and then restarted.
KILLS = (("worker", 0.1), ("node", 0.3), ("gateway", 0.5), ("dispatcher", 0.7))
RESTART_AFTER_S = 1.0
POLL_S = 0.1
ENTRIES_PER_READ = 1_000
# Publishing takes this many portions, so that the kills happen while questions come in.
PORTIONS = 20
PORTION_S = 0.25
# Several times the longest timeout in these settings, which is that of a silent node or gateway.
IDLE_S_MAX = 60.0
CONNECT_AT_ONCE = 100
# Leases and timeouts shorter than the defaults, so that a killed process is replaced quickly.
DEMO_SETTINGS = {
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


class Kill(msgspec.Struct, frozen=True):
    role: str
    pid: int
    at_s: float


class Result(msgspec.Struct, frozen=True):
    """The last line of `demo --json`."""

    audit: AuditResult
    users: int
    messages: int
    seconds: float
    kills: list[Kill]
    home: str
    audited_by: str


@dataclass
class Progress:
    stage: str
    wanted: int
    journal_audit: JournalAudit
    api_url: str = ""
    kills: list[Kill] = field(default_factory=list)
    published: int = 0


class StillRunning(AngariumError):
    code = "demo_running"


class DemoRun:
    """Enter it with `async with`, then call `run`. Its processes stop when the block ends."""

    def __init__(
        self,
        users: int,
        home: Path,
        *,
        kills: bool = True,
        lake: bool = True,
        show: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._users = make_users(users)
        self._home = home
        self._kills = list(KILLS) if kills else []
        self._lake = lake
        self._show = show
        self._began_s = time.monotonic()
        wanted = users * MESSAGES_PER_USER * REPLIES_PER_MESSAGE
        self.progress = Progress("starting", wanted, JournalAudit())
        self._position = "0-0"
        self.settings: Settings

    async def __aenter__(self) -> DemoRun:
        async with AsyncExitStack() as stack:
            self._session = await stack.enter_async_context(aiohttp.ClientSession())
            self._outside = OutsideServices(self._session)
            await stack.enter_async_context(_running(self._outside.run))
            self._env = {
                **DEMO_SETTINGS,
                "ANGARIUM_HOME": str(self._home),
                "ANGARIUM_PICKUP__PUSH_URL": f"{self._outside.url}/push",
            }
            self.settings = load(home=self._home, redis_url="embedded")
            self._client = await stack.enter_async_context(Client(self.settings))
            self._roles = await stack.enter_async_context(
                RoleProcesses(self._env, self._home / "logs")
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self) -> Result:
        self._set_stage("starting the roles")
        await self._client.transactions.load(PIPELINE)
        await self._roles.start(ROLES)
        self._outside.api_url = f"http://127.0.0.1:{self._roles.of('api')[0].ports['http']}"
        self.progress.api_url = self._outside.api_url
        self._set_stage("connecting the users")
        async with self._connected_users() as offline_users:
            self._began_s = time.monotonic()
            self._set_stage("publishing questions")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish())
                killing = group.create_task(self._kill_some())
                await self._follow(offline_users)
                killing.cancel()
            seconds = time.monotonic() - self._began_s
            audit, source = await self._audit()
        return Result(
            audit,
            len(self._users),
            self.progress.published,
            round(seconds, 2),
            self.progress.kills,
            str(self._home),
            source,
        )

    async def _audit(self) -> tuple[AuditResult, str]:
        """The result, and where it comes from or why the lake was not used."""
        from_journal = self.progress.journal_audit
        why = lake_audit.why_unavailable(self.settings) if self._lake else "not requested"
        if why is not None:
            return self._audit_result(from_journal), f"the journal; the lake: {why}"
        self._set_stage("copying the journal to the lake")
        try:
            in_lake = await lake_audit.audit_in_lake(self._env, self._home)
            from_lake = await lake_audit.audit_events(self.settings)
        except AngariumError as error:
            return self._audit_result(
                self.progress.journal_audit
            ), f"the journal; the lake: {error}"
        named = [f"{each['kind']}: {each['subject']}" for each in in_lake.findings[:EXAMPLES_MAX]]
        audit = self._audit_result(from_lake)
        audit = msgspec.structs.replace(
            audit, source="lake", wrong_in_lake=in_lake.wrong, examples=[*audit.examples, *named]
        )
        return audit, f"the lake, from {in_lake.events} events"

    def _audit_result(self, found: JournalAudit) -> AuditResult:
        offline = frozenset(each.name for each in self._users if each.push_token)
        unordered = sum(
            found.seen_out_of_order(f"default:{each.name}", each.seen) for each in self._users
        )
        return found.result(self.progress.published, REPLIES_PER_MESSAGE, offline, unordered)

    # Users

    @asynccontextmanager
    async def _connected_users(self) -> AsyncIterator[OfflineUsers]:
        urls = [f"ws://127.0.0.1:{each.ports['gateway']}/" for each in self._roles.of("gateway")]
        live = [each for each in self._users if each.push_token is None]
        offline_users = OfflineUsers([each for each in self._users if each.push_token], urls)
        async with AsyncExitStack() as stack:
            for start in range(0, len(live), CONNECT_AT_ONCE):
                part = live[start : start + CONNECT_AT_ONCE]
                listeners = [
                    LiveUser(each, urls[number % 2 :] + urls[: number % 2]).run
                    for number, each in enumerate(part)
                ]
                await stack.enter_async_context(_running(*listeners))
            called = self._outside.called
            await stack.enter_async_context(_running(lambda up: offline_users.run(called, up)))
            yield offline_users

    async def _publish(self) -> None:
        messages = [
            {
                "user": user.name,
                "number": number,
                "push_token": user.push_token,
                "expert": f"{self._outside.url}/expert",
            }
            for number in range(1, MESSAGES_PER_USER + 1)
            for user in self._users
        ]
        size = -(-len(messages) // PORTIONS)
        for start in range(0, len(messages), size):
            portion = messages[start : start + size]
            await self._client.dispatch.publish_all(portion)
            self.progress.published += len(portion)
            await asyncio.sleep(PORTION_S)

    # Progress

    async def _follow(self, offline_users: OfflineUsers) -> None:
        """Return when all is picked up, or nothing was picked up for `IDLE_S_MAX`."""
        last, moved_s, looked_s = -1, time.monotonic(), time.monotonic()
        while self._done() < self.progress.wanted:
            await self._read_journal()
            self._show(self.progress)
            seen = sum(self.progress.journal_audit.counts.values())
            now_s = time.monotonic()
            if self._done() > last:
                last, moved_s = self._done(), now_s
            if now_s - moved_s > IDLE_S_MAX:
                self._set_stage(f"nothing was picked up for {IDLE_S_MAX:g} s, after {seen} events")
                return
            # A killed gateway may lose a notification.
            if now_s - moved_s > IDLE_S_MAX / 12 and now_s - looked_s > IDLE_S_MAX / 12:
                looked_s = now_s
                await offline_users.pick_up_all()
            await asyncio.sleep(POLL_S)
        self._set_stage("all picked up")

    def _done(self) -> int:
        return self.progress.journal_audit.removed

    async def _read_journal(self) -> None:
        journal = Journal(self._client.runtime)
        while True:
            entries = await journal.read(0, self._position, ENTRIES_PER_READ)
            for entry_id, fields in entries:
                self.progress.journal_audit.read(decode_entry(entry_id, fields))
                self._position = entry_id.decode()
            if len(entries) < ENTRIES_PER_READ:
                return

    # Kills

    async def _kill_some(self) -> None:
        async with asyncio.TaskGroup() as group:
            for role, part in self._kills:
                while self._done() < part * self.progress.wanted:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S / 2)
                victim = await self._victim(role)
                pid = victim.pid or 0
                await victim.kill()
                at_s = round(time.monotonic() - self._began_s, 2)
                what = "leader" if role == "dispatcher" else role
                self.progress.kills.append(Kill(what, pid, at_s))
                group.create_task(self._start_again(victim))

    async def _victim(self, role: str) -> RoleProcess:
        """The first process of the role; of the dispatchers, the leader."""
        processes = self._roles.of(role)
        if role == "dispatcher":
            leader = (await self._client.dispatch.status())[0].leader
            for each in await read_processes(self._client.runtime):
                if each.actor == leader:
                    return next(one for one in processes if one.pid == each.pid)
        return processes[0]

    async def _start_again(self, process: RoleProcess) -> None:
        await asyncio.sleep(RESTART_AFTER_S)
        await process.start()

    def _set_stage(self, stage: str) -> None:
        self.progress.stage = stage
        self._show(self.progress)


def empty_home(home: Path) -> Path:
    """Empty the folder. Refuse if a demo is running in it."""
    if (home / "redis").exists():
        from angarium.redis.embedded.supervisor import HOST, Folder, read_record

        record = read_record(Folder(home / "redis").record)
        if record is not None and _answers(HOST, record.port):
            raise StillRunning(f"a demo is already running in {home}; wait for it or stop it")
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
    """Run coroutines during the block. Each has set its event when the block begins."""
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
