"""Roles and managers in one keyspace, killed and paused: no reply twice without a fault, none out
of order, nothing left in Redis.

Every process has a role and a sync manager, which are two holders. A second send needs a fault of
the first sender after its send, or of the second one before.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from angarium.conversations import keys
from angarium.conversations.store import ConversationStore
from angarium.runtime.runtime import Runtime
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime

pytestmark = [pytest.mark.faults, pytest.mark.timeout(rounds(300, 1_800))]

HOLDERS = 3
CONVERSATIONS = rounds(40, 1_000)  # of each holder
FAULTS = rounds(4, 40)
FAULT_EVERY_S = (0.3, 1.5)
HOLD_S = 4.0
# A drain that makes no progress for this long has lost something.
STILL_S = 60.0
SETTINGS = {
    "message_ttl": 15_000,
    "awaited_message_ttl": 120_000,
    "max_pending_ttl": round(HOLD_S * 1000),
    "max_pending_ttl_margin": 500,
    "sent_message_ttl": 1_000,
    "awaited_messages_interval": 500,
    "awaited_first_turn": 1_000,
    "awaited_messages_by_turn": 200,
    "awaited_retries_factor": 0.1,
    "awaited_time_when_retries_end": 500,
}


@dataclass
class HolderProcesses:
    """`faults`: for each process, from when to when (ns) it was dead or paused."""

    env: dict[str, str]
    folder: Path
    running: dict[str, RoleProcess] = field(default_factory=dict)
    faults: defaultdict[str, list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    started: int = 0

    async def start(self) -> None:
        self.started += 1
        name = f"h{self.started}"
        path = self.folder / f"{name}.jsonl"
        args = ["-m", "tests.faults.conversation_holder", name, str(path), str(CONVERSATIONS)]
        role = RoleProcess(args, self.env, deadline_s=120)
        await role.__aenter__()
        self.running[name] = role

    async def inject_fault(self, draw: random.Random, number: int) -> None:
        name = draw.choice(list(self.running))
        role, began = self.running[name], time.monotonic_ns()
        if number % 2:
            role.kill()
            role.close()
            del self.running[name]
            self.faults[name].append((began, float("inf")))
            await self.start()
        else:
            # Often longer than its holds last: others take what it holds, then it wakes up.
            role.pause()
            await asyncio.sleep(HOLD_S * draw.uniform(0.3, 1.5))
            role.resume()
            self.faults[name].append((began, time.monotonic_ns()))

    def had_fault(self, name: str, first_ns: float, last_ns: float) -> bool:
        return any(began <= last_ns and end >= first_ns for began, end in self.faults[name])

    def posted_all(self) -> bool:
        """A holder that has just started may post its first conversation after `end` exists."""
        return all((self.folder / f"{name}.posted").exists() for name in self.running)

    def close(self) -> None:
        for role in self.running.values():
            role.close()


async def test_roles_and_managers_with_faults_send_each_reply_once_and_in_order(
    any_redis_url: str, tmp_path: Path
) -> None:
    draw = random.Random(rounds(3, 4))
    async with sample_runtime(any_redis_url, conversations=SETTINGS) as runtime:
        settings = runtime.settings
        env = {
            "ANGARIUM_REDIS_URL": any_redis_url,
            "ANGARIUM_PREFIX": settings.prefix,
            "ANGARIUM_PARTITIONS": str(settings.partitions),
            **{f"ANGARIUM_CONVERSATIONS__{name.upper()}": str(v) for name, v in SETTINGS.items()},
        }
        processes = HolderProcesses(env, tmp_path)
        try:
            await asyncio.gather(*(processes.start() for _ in range(HOLDERS)))
            for number in range(FAULTS):
                await asyncio.sleep(draw.uniform(*FAULT_EVERY_S))
                await processes.inject_fault(draw, number)
            (tmp_path / "end").touch()
            await eventually(processes.posted_all, STILL_S)
            await drained(runtime)
        finally:
            processes.close()
        await check_nothing_left(runtime)
    check_sends(processes, tmp_path)


async def drained(runtime: Runtime) -> None:
    """Until nothing is in flight; fails when nothing moves any more."""
    store = ConversationStore(runtime)

    async def in_flight() -> int:
        counts = [await store.in_flight(partition) for partition in store.partitions]
        return sum(replies + requests for replies, requests in counts)

    left = await in_flight()
    while left:

        async def fewer(than: int = left) -> bool:
            return await in_flight() < than

        await eventually(fewer, STILL_S)
        left = await in_flight()


async def check_nothing_left(runtime: Runtime) -> None:
    """Every key of the module that is left ends by itself."""
    for partition in range(runtime.settings.partitions):
        for kind in (keys.PENDING_MESSAGES, keys.OPEN_REQUESTS):
            name = runtime.keyspace.name(kind, partition)
            assert await runtime.redis.call("EXISTS", name, key=name) == 0, name
        stem = runtime.keyspace.name(keys.CONVERSATION_REQUEST, partition, "")
        cursor = b"0"
        while True:
            cursor, names = await runtime.redis.call(
                "SCAN", cursor, "MATCH", f"{stem.removesuffix('req:')}*", "COUNT", 1_000, key=stem
            )
            for name in names:
                if await runtime.redis.call("TYPE", name, key=name.decode()) != b"none":
                    assert await runtime.redis.call("PTTL", name, key=name.decode()) != -1, name
            if cursor == b"0":
                break


def check_sends(processes: HolderProcesses, folder: Path) -> None:
    sends: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    accepted: dict[str, int] = {}
    removed: dict[str, int] = {}
    order: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for path in sorted(folder.glob("h*.jsonl")):
        for record in History.read(path).records():
            if record.kind == "sent":
                accepted[record.id] = record.at_ns
            elif record.kind == "attempted":
                removed[record.id] = min(record.at_ns, removed.get(record.id, record.at_ns))
            elif record.kind == "received":
                sends[record.id].append((record.at_ns, path.stem))
    doubled = 0
    for response, found in sends.items():
        for (first_ns, first), (second_ns, second) in pairwise(sorted(found)):
            doubled += 1
            before_ns = first_ns - HOLD_S * 1e9
            excused = processes.had_fault(first, first_ns, second_ns) or processes.had_fault(
                second, before_ns, second_ns
            )
            assert excused, f"{response} was sent twice: by {first}, then by {second}"
        order[response.split(".")[0]].append((min(found)[0], response))
    for conversation, found in order.items():
        for at_ns, later in found:
            for other_ns, earlier in found:
                if removed.get(earlier, other_ns) < other_ns:
                    continue
                behind = place(earlier) < place(later) and other_ns > at_ns
                assert not (behind and accepted.get(earlier, other_ns) < at_ns), (
                    f"{conversation}: {later} left before {earlier}"
                )
    print(
        f"\n{len(accepted)} replies accepted, {len(sends)} sent, {doubled} twice after a fault, "
        f"{sum(map(len, processes.faults.values()))} faults"
    )
    assert len(sends) > HOLDERS * CONVERSATIONS
    assert sum(map(len, processes.faults.values())) == FAULTS


def place(response: str) -> tuple[int, int]:
    _, request, number = response.split(".")
    return int(request), int(number)
