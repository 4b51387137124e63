"""A year of traffic through all modules but the lake, in pieces: nothing grows from month to month.

Between two pieces the clock of Redis, by which everything ends, moves on by some days. All
retentions are set and shorter than half a month. The long form sends 10 million messages in daily
pieces; `YEAR_MESSAGES` changes their number. At the end of each month the keys and their entries,
the memory of Redis and of the process, the rows of the database and the files are counted. Two
months later, what is left is what was there before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from angarium import Angarium, DoNotRetry
from angarium.client import Client
from angarium.conversations.model import OutgoingReply
from angarium.dispatch.keys import MESSAGES_PROCESSED
from angarium.dispatch.store import DispatchStore
from angarium.modules import MODULES
from angarium.pickup.archive import MessageArchive
from angarium.pickup.client import Delivery, PickupClient
from angarium.pickup.expiry import Expiry
from angarium.pickup.keys import PICKUP_AGES, PICKUP_MOVING, PICKUP_REMOVED_QUEUES
from angarium.pickup.store import PickupStore
from angarium.routing.items import InboundMessage
from angarium.routing.service import RoutingService
from angarium.runtime.journal import Journal
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.settings import Settings, load
from angarium.transactions import Step
from angarium.transactions.archiver import Archiver
from angarium.transactions.service import TransactionsService
from tests.faults.profile import rounds
from tests.faults.test_restart_storm import census
from tests.kit.eventually import eventually
from tests.kit.server import ServerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(rounds(600, 10_800))]
DAY_S = 86_400
MONTHS, DAYS_PER_PIECE = rounds(3, 12), rounds(6, 1)
MESSAGES = int(os.environ.get("YEAR_MESSAGES", rounds(9_000, 10_000_000)))
PIECES = 30 // DAYS_PER_PIECE
AT_ONCE = 400
PATIENCE_S = 300.0
MIB = 1024 * 1024
# Results are removed in groups of so many, so that the last ones stay.
NODE_ENTRIES = 200
READER = "year"
# Half a month at most, twice that for recipient keys, so that the second month is like the last.
RETENTIONS: dict[str, Any] = {
    "dispatch": {"ack_port": 0, "results_keep_s": 7 * DAY_S},
    "routing": {
        "inbound": [["http", "127.0.0.1", "0"]],
        "recip_key_retention_ms": 7 * DAY_S * 1000,
        "instance_retention_ms": DAY_S * 1000,
    },
    "pickup": {"port": 0, "retention_s": 12 * DAY_S},
    "transactions": {
        "archive_retention": 12 * DAY_S,
        "dead_letter_retention": 6 * DAY_S,
        "pipeline_versions_max": 3,
    },
}
# What a figure may differ by, besides a tenth: what is under way, and pages of the allocators.
SLACK = {
    "keys": 50,
    "entries": 500,
    "rows": 50,
    "redis_mib": 8.0,
    "process_mib": 40.0,
    "files_mib": 4.0,
}
app = Angarium()


@dataclass
class Ended:
    """What the functions of the application have finished."""

    steps: int = 0
    replies: int = 0
    posts: int = 0


ended = Ended()


@app.worker
async def work(message: dict[str, Any]) -> None: ...


@app.step("work")
async def step(step: Step) -> None:
    ended.steps += 1
    if step.data["fails"]:
        raise DoNotRetry("on purpose")


@app.inbox()
async def handle(message: InboundMessage) -> None: ...


@app.reply_sender()
async def send(reply: OutgoingReply) -> None:
    ended.replies += 1
    if reply.payload["fails"]:
        raise DoNotRetry("on purpose")


class MovingTime:
    """The wall clock of a server, in seconds ahead of ours."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ahead"
        self.ahead_s = 0
        self.move(0)

    @property
    def path(self) -> str:
        return str(self._file)

    def move(self, seconds: int) -> None:
        self.ahead_s += seconds
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("l", self.ahead_s))


@pytest.fixture
def moving_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MovingTime:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path / "moving_time.so"
    source = Path(__file__).with_name("moving_time.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    moving = MovingTime(tmp_path)
    monkeypatch.setenv("SERVER_PRELOAD", str(library))
    monkeypatch.setenv("MOVING_TIME", moving.path)
    return moving


@dataclass
class Month:
    """What there is at the end of a month."""

    keys: int
    entries: int
    redis_mib: float
    process_mib: float
    rows: int
    files: int
    files_mib: float

    def __str__(self) -> str:
        return (
            f"{self.keys:8,} keys {self.entries:9,} entries  Redis {self.redis_mib:6.1f} MiB  "
            f"process {self.process_mib:5.0f} MiB  {self.rows:8,} rows  {self.files} files "
            f"{self.files_mib:6.1f} MiB"
        )


class Year:
    """An installation with every role in this process, and those who use it."""

    def __init__(self, settings: Settings, server: ServerProcess, time: MovingTime) -> None:
        self.settings, self._server, self._time = settings, server, time
        self._number = 0
        self._read = "0-0"
        self._present = self._posts = self.acknowledged = 0
        modules = "dispatch", "pickup", "routing", "deliveries", "transactions", "conversations"
        self.totals = dict.fromkeys(modules, 0)

    @property
    def results(self) -> str:
        return self.runtime.keyspace.name(MESSAGES_PROCESSED)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Year]:
        async with AsyncExitStack() as stack:
            self._receiver = await stack.enter_async_context(receiver())
            self.client = await stack.enter_async_context(Client(self.settings))
            self.runtime = self.client.runtime
            self._service = TransactionsService(self.runtime)
            stack.push_async_callback(self._service.close)
            self._results = DispatchStore(self.runtime)
            self._journal = Journal(self.runtime)
            await self._journal.register(READER)
            self._redis: Any = self._server.client()
            for module in MODULES:
                for role in module.roles if module.name != "lake" else ():
                    service = await stack.enter_async_context(serving(role.path, self.settings))
                    if isinstance(service, Archiver):
                        self._archiver = service
                    if role.name == "gateway":
                        gateway = service.ports["gateway"]
            self._archive = await MessageArchive.of(self.runtime)
            stack.push_async_callback(self._archive.close)
            self._pickup = await stack.enter_async_context(
                PickupClient(f"ws://127.0.0.1:{gateway}/", on_messages=self._deliver)
            )
            await self._pickup.add_live_session("present", "s")
            self._acknowledging = await stack.enter_async_context(asyncio.TaskGroup())
            yield self

    def _deliver(self, delivery: Delivery) -> None:
        self._acknowledging.create_task(self._acknowledge(delivery))

    async def _acknowledge(self, delivery: Delivery) -> None:
        ids = [each.id for each in delivery.messages]
        await self._pickup.remove_messages(delivery.connection_id, ids)
        self.acknowledged += len(ids)

    async def piece(self, messages: int) -> None:
        """Send messages through all modules and wait until each has ended, or waits for somebody
        who never comes."""
        shares: dict[str, tuple[int, Callable[[int], Awaitable[object]]]] = {
            "dispatch": (60, self._dispatch),
            "pickup": (20, self._add),
            "routing": (10, self._route),
            "deliveries": (2, self._send_out),
            "transactions": (5, self._start),
            "conversations": (3, self._talk),
        }
        steps = [{"type": "work", "parameters": {"since": self._number}}]
        # Other steps: a new version of the pipeline.
        await self.client.transactions.load({"name": "year", "steps": steps})
        for module, (percent, run) in shares.items():
            count = max(10, messages * percent // 100)
            await in_turns(count, lambda run=run: run(self._next()))  # type: ignore[misc]
            self.totals[module] += count
        await eventually(self._at_rest, PATIENCE_S)
        await self._follow_journal()

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _dispatch(self, number: int) -> None:
        key = f"key-{number}" if number % 10 == 0 else None
        await self.client.dispatch.enqueue({"n": number, "text": "x" * 100}, idempotency_key=key)

    async def _add(self, number: int) -> None:
        """Every tenth recipient never comes."""
        absent = number % 10 == 0
        connection = f"absent-{number}" if absent else "present"
        await self._pickup.add_message(connection, [f"did:example:{connection}"], {"n": number})
        self._present += not absent

    async def _route(self, number: int) -> None:
        """Every tenth is for a key that nobody uses again."""
        key = f"new-{number}" if number % 10 == 0 else f"key-{number % 500}"
        await self.client.routing.send(key, {"n": number})

    async def _send_out(self, number: int) -> None:
        await self.runtime.store(RoutingService).deliver(f"{self._receiver}/{number % 7}", "eA", {})
        self._posts += 1

    async def _start(self, number: int) -> None:
        """Every hundredth becomes a dead letter; every tenth has a webhook and an external id."""
        special = number % 10 == 0
        await self.client.transactions.start(
            "year",
            {"fails": number % 100 == 0},
            external_id=f"external-{number}" if special else None,
            webhook=f"{self._receiver}/webhook" if special else None,
        )
        self._posts += special

    async def _talk(self, number: int) -> None:
        """Every hundredth reply becomes a dead one."""
        conversation, request = f"c-{number}", f"q-{number}"
        await self.client.conversations.request(conversation, request)
        payload = {"fails": number % 100 == 0}
        await self.client.conversations.reply(conversation, request, f"r-{number}", payload)

    async def _at_rest(self) -> bool:
        (partition,) = await self.client.dispatch.status()
        routing = await self.runtime.store(RoutingService).lengths()
        open_now = {
            "dispatch": partition.pending + partition.inbox,
            "routing": routing.keys_with_mail,
            "outbound": routing.outbound + routing.retrying + routing.in_hand,
            "posts": self._posts - ended.posts,
            "steps": self.totals["transactions"] - ended.steps,
            "replies": self.totals["conversations"] - ended.replies,
            "pickup": self._present - self.acknowledged,
        }
        assert not any(open_now.values()), open_now
        return True

    async def _follow_journal(self) -> None:
        """Read and commit, as the lake does."""
        while entries := await self._journal.read(0, self._read, 1_000):
            self._read = entries[-1][0].decode()
            await self._journal.commit(READER, 0, self._read)

    async def days(self, days: int) -> None:
        """Let time pass; then the passes that these days have, of which the roles make one in ten
        seconds or in a minute."""
        self._time.move(days * DAY_S)
        expiry = Expiry(self.runtime.store(PickupStore), self._archive, RETENTIONS["pickup"][
            "retention_s"
        ])  # fmt: skip
        while (await expiry.run_once()).again:
            continue
        while (await self._archiver.sweep()).again:
            continue
        keep_ms = RETENTIONS["dispatch"]["results_keep_s"] * 1_000
        while await self._results.trim_results(0, keep_ms, 100_000):
            continue
        await self.runtime.store(RoutingService).prune()

    async def settle(self) -> None:
        """Until archiver and persister have nothing to do."""
        names = [self.runtime.keyspace.name(key) for key in (PICKUP_AGES, PICKUP_MOVING)]

        async def settled() -> bool:
            lengths = [
                await self.runtime.redis.call(command, name, key=name)
                for command, name in zip(("ZCARD", "HLEN"), names, strict=True)
            ]
            buried = self.runtime.keyspace.name(PICKUP_REMOVED_QUEUES)
            lengths.append(await self.runtime.redis.call("SCARD", buried, key=buried))
            lengths.append((await self._service.health_report(1)).to_archive)
            assert not any(map(int, lengths)), lengths
            return True

        await eventually(settled, PATIENCE_S)
        await self._follow_journal()

    async def month(self) -> Month:
        found = await census(self.runtime)
        files = [each for each in self.settings.home.rglob("*") if each.is_file()]
        return Month(
            len(found),
            sum(found.values()),
            int(self._redis.info("memory")["used_memory"]) / MIB,
            resident_mib(),
            sum(self.rows().values()),
            len(files),
            sum(each.stat().st_size for each in files) / MIB,
        )

    def rows(self) -> dict[str, int]:
        """Table → number of rows, read as any program would."""
        path = self.settings.database_url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = [name for (name,) in names.fetchall()]
            count = "SELECT count(*) FROM "
            return {name: database.execute(f'{count}"{name}"').fetchone()[0] for name in tables}


def resident_mib() -> float:
    found = re.search(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


async def in_turns(count: int, run: Callable[[], Awaitable[object]]) -> None:
    """Some hundred at once."""
    left = iter(range(count))

    async def one_after_the_other() -> None:
        for _ in left:
            await run()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())


@asynccontextmanager
async def serving(role: str, settings: Settings) -> AsyncIterator[Service]:
    async with Runtime.open(settings, actor=role.rpartition(".")[2]) as runtime:
        app.bind(runtime)
        service: Service = import_module(role).build(runtime, app)
        await service.start()
        try:
            yield service
        finally:
            await service.stop(10)


@asynccontextmanager
async def receiver() -> AsyncIterator[str]:
    """Of webhooks and deliveries."""

    async def receive(request: web.Request) -> web.Response:
        await request.read()
        ended.posts += 1
        return web.Response()

    application = web.Application()
    application.router.add_post("/{name}", receive)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_nothing_grows_in_a_year(moving_time: MovingTime, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with ServerProcess() as server:
        settings = load(redis_url=server.url, home=home, allow_private_addresses=True, **RETENTIONS)
        async with Year(settings, server, moving_time).run() as year:
            await emptied(year)
            before, before_rows = await census(year.runtime), year.rows()
            months, began_s = [], time.monotonic()
            for number in range(1, MONTHS + 1):
                for _ in range(PIECES):
                    await year.piece(MESSAGES // MONTHS // PIECES)
                    await year.days(DAYS_PER_PIECE)
                months.append(await year.month())
                print(f"month {number:2}: {months[-1]}, {time.monotonic() - began_s:.0f} s")
            total = sum(year.totals.values())
            print(f"{total:,} messages in {MONTHS} months: {year.totals}")
            await emptied(year)
            print(f"two months later: {await year.month()}")
            await eventually(lambda: left_nothing(year, before, before_rows), 30)
        second, *others = months[1:]
        for each in others:
            for name in ("keys", "entries", "rows", "redis_mib", "process_mib", "files_mib"):
                most = getattr(second, name) * 1.1 + SLACK[name]
                assert getattr(each, name) <= most, (name, second, each)
            assert each.files == second.files


async def left_nothing(year: Year, before: dict[str, int], rows: dict[str, int]) -> bool:
    found = await census(year.runtime)
    before = {**before, year.results: NODE_ENTRIES}
    grown = {name: size for name, size in found.items() if size > before.get(name, 0)}
    assert not grown, (grown, {name: before.get(name) for name in grown})
    more = {name: count for name, count in year.rows().items() if count > rows.get(name, 0)}
    assert not more, (more, rows)
    return True


async def emptied(year: Year) -> None:
    """A month with a few messages, which bring as many versions of the pipeline each time, and a
    month without."""
    for _ in range(5):
        await year.piece(0)
        await year.days(6)
    for _ in range(5):
        await year.days(6)
        await year.settle()
