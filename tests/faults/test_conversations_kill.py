"""Replies over four processes that are killed and paused, with lost ACKs: order is kept.

Every conversation opens four requests. The first one is answered last: until then all ten replies
wait, in whatever order they were accepted. So there is exactly one order in which they may arrive.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import defaultdict
from pathlib import Path

import pytest

from angarium.conversations.model import MinMessageInfo
from angarium.conversations.script_values import NewReply
from angarium.conversations.store import ConversationStore
from angarium.runtime.runtime import Runtime
from tests.faults.profile import LONG, rounds
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

# The long run can be cut into parts, for machines that are shared.
CONVERSATIONS = int(os.environ.get("CONVERSATIONS", rounds(100, 100_000)))
INSTANCES = rounds(3, 4)
CONCURRENT_POSTS = rounds(8, 100)  # conversations posted at the same time
IN_FLIGHT_MAX = 4_000  # replies; more are posted when some have left
PENDING_S, TTL_S = (4.0 if LONG else 2.0), 300.0
SETTINGS = {
    "message_ttl": 120_000,
    "awaited_message_ttl": round(TTL_S * 1000),
    "max_pending_ttl": round(PENDING_S * 1000),
    "max_pending_ttl_margin": 500,
    "sent_message_ttl": 1_000,
    "awaited_messages_interval": 500,
    "awaited_first_turn": 1_000,
    "awaited_messages_by_turn": 200,
    "awaited_retries_factor": 0.1,
    "awaited_time_when_retries_end": 500,
    "concurrent": 100,
}
FAULTS = rounds(2, 12)
FAULT_EVERY_S = (0.2, 1.0) if not LONG else (1.0, 4.0)
# A drain that makes no progress for this long has lost something.
STILL_S = 60.0

CLOCKS_APART_S = 60
AHEAD = """
import runpy, time
read, read_ns = time.time, time.time_ns
time.time = lambda: read() + {0}
time.time_ns = lambda: read_ns() + {0} * 10**9
runpy.run_module("tests.faults.conversations_process", run_name="__main__")
"""


class Conversation:
    """Requests g (the gate), a, b, c; replies g0, a0…a2, b0…b2, c0…c2."""

    def __init__(self, number: int) -> None:
        self.id = f"cn{number}"
        self.requests = [f"{self.id}.{letter}" for letter in "gabc"]
        self.order = [f"{self.requests[0]}0"]
        for request in self.requests[1:]:
            self.order += [f"{request}{n}" for n in range(3)]

    async def post(self, store: ConversationStore, history: History, draw: random.Random) -> None:
        for request in self.requests:
            info = MinMessageInfo(request, "", self.id)
            await store.create_request(info, "load", 1, "")
        for response in self.order:
            history.attempted(response, self.id)
        left = dict.fromkeys(self.requests[1:], 0)
        while left:
            request = draw.choice(list(left))
            await self.reply(store, history, request, left[request])
            left[request] += 1
            if left[request] == 3:
                del left[request]
        await self.reply(store, history, self.requests[0], 0)

    async def reply(
        self, store: ConversationStore, history: History, request: str, number: int
    ) -> None:
        response = f"{request}{number}"
        await store.accept_reply(NewReply(self.id, request, response, 1, b"{}"))
        history.sent(response, self.id)


class InstanceProcesses:
    """Processes of the role, replaced as they die; each has a history of its own.

    Every second one has a wall clock that is a minute ahead of the others'.
    """

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self._env = env
        self._folder = folder
        self._serial = 0
        self.running: list[tuple[str, RoleProcess]] = []
        self.faulted: set[str] = set()
        self.faults: list[str] = []

    async def start(self) -> None:
        self._serial += 1
        name = f"i{self._serial}"
        path = self._folder / f"{name}.jsonl"
        ahead_s = CLOCKS_APART_S * (self._serial % 2)
        args = ["-c", AHEAD.format(ahead_s), name, str(path)]
        role = RoleProcess(args, self._env, deadline_s=120)
        await role.__aenter__()
        self.running.append((name, role))

    async def inject_fault(self, draw: random.Random) -> None:
        name, role = self.running.pop(draw.randrange(len(self.running)))
        self.faulted.add(name)
        if len(self.faults) % 2 == 0:
            self.faults.append("kill -9")
            role.kill()
            role.close()
            await self.start()
        else:
            # Longer than its claims last: others take what it holds, then it wakes up.
            self.faults.append("pause")
            role.pause()
            await asyncio.sleep(PENDING_S * draw.uniform(0.5, 1.5))
            role.resume()
            self.running.append((name, role))

    def close(self) -> None:
        for _, role in self.running:
            role.close()

    @property
    def paths(self) -> list[Path]:
        return sorted(self._folder.glob("i*.jsonl"))


async def _inject_faults(processes: InstanceProcesses, over: asyncio.Event) -> None:
    draw = random.Random(7)
    while not over.is_set():
        await asyncio.sleep(draw.uniform(*FAULT_EVERY_S))
        if not over.is_set():
            await processes.inject_fault(draw)


async def _load(runtime: Runtime, history: History, processes: InstanceProcesses) -> int:
    """Until there were enough conversations and enough faults; how many conversations."""
    store, draw = ConversationStore(runtime), random.Random(11)
    numbers = itertools.count()
    posted = 0

    async def post_some() -> None:
        nonlocal posted
        while posted < CONVERSATIONS or len(processes.faults) < FAULTS:
            # A client does not ask on for ever while nobody answers.
            await eventually(lambda: _few_in_flight(store), 120)
            await Conversation(next(numbers)).post(store, history, draw)
            posted += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENT_POSTS):
            group.create_task(post_some())
    return posted


async def _few_in_flight(store: ConversationStore) -> bool:
    counts = [(await store.in_flight(partition))[0] for partition in store.partitions]
    return sum(counts) < IN_FLIGHT_MAX


async def _drained(runtime: Runtime) -> None:
    """Until nothing is in flight; fails when nothing moves any more."""
    store = ConversationStore(runtime)
    least: int | None = None

    async def in_flight() -> int:
        counts = [(await store.in_flight(partition))[0] for partition in store.partitions]
        return sum(counts)

    while least != 0:
        bound = least

        async def fewer(than: int | None = bound) -> bool:
            now = await in_flight()
            return now == 0 or than is None or now < than

        await eventually(fewer, STILL_S)
        least = await in_flight()


async def _run(redis_url: str, folder: Path) -> tuple[InstanceProcesses, History, int]:
    history = History()
    async with sample_runtime(redis_url, conversations=SETTINGS) as runtime:
        settings = runtime.settings
        env = {
            "ANGARIUM_REDIS_URL": redis_url,
            "ANGARIUM_PREFIX": settings.prefix,
            "ANGARIUM_PARTITIONS": str(settings.partitions),
            **{f"ANGARIUM_CONVERSATIONS__{name.upper()}": str(v) for name, v in SETTINGS.items()},
        }
        processes = InstanceProcesses(env, folder)
        over = asyncio.Event()
        try:
            await asyncio.gather(*(processes.start() for _ in range(INSTANCES)))
            async with asyncio.TaskGroup() as group:
                injecting = group.create_task(_inject_faults(processes, over))
                posted = await _load(runtime, history, processes)
                over.set()
                await injecting
                await _drained(runtime)
        finally:
            processes.close()
    return processes, history, posted


def _longest_wait_s(history: History) -> float:
    """Between the acceptance of a reply and its first arrival."""
    sent, waits = {}, []
    for record in history.records():
        if record.kind == "sent":
            sent[record.id] = record.at_ns
        elif record.kind == "received" and record.id in sent:
            waits.append(record.at_ns - sent.pop(record.id))
    return max(waits) / 1e9


@pytest.mark.parametrize("shape", ["single", "cluster"])
async def test_killed_and_paused_processes_change_no_order(
    shape: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: ServerProcess = request.getfixturevalue(
        "redis_server" if shape == "single" else "cluster"
    )
    processes, history, posted = await _run(server.url, tmp_path)
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path in processes.paths:
        received = History.read(path)
        history.extend(received.records())
        for record in received.records():
            where[record.id].append(path.stem)
    for fault in processes.faults:
        history.fault(fault)
    verdict = history.check()
    longest_s = _longest_wait_s(history)
    print(f"\n{verdict}\nlongest wait {longest_s:.1f} s; what is doubled must be a fault's doing")
    assert verdict.operations == posted * 10
    assert verdict.out_of_order.count == 0
    assert verdict.lost.count == 0
    assert verdict.unexpected.count == 0
    assert longest_s < TTL_S
    assert len(processes.faults) >= FAULTS
    for response, places in where.items():
        if len(places) > 1:
            assert processes.faulted & set(places), (
                f"{response} was doubled without a fault: {places}"
            )
