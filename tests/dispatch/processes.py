"""Dispatchers and workers as processes on one Redis, for tests under load and faults."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from angarium.dispatch import keys
from angarium.dispatch.store import DispatchStore
from angarium.runtime.runtime import Runtime
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_settings

APP = "tests.dispatch.echo:app"


@dataclass
class StreamResults:
    """The entries of the result streams."""

    counts: Counter[str] = field(default_factory=Counter)
    at_ms: list[int] = field(default_factory=list)
    consumers: Counter[str] = field(default_factory=Counter)
    message_ids: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.counts.total()

    def gap_after_ms(self, at_ms: int, span_ms: int) -> int:
        """The longest time without a result that began within `span_ms` after `at_ms`."""
        times = sorted(self.at_ms)
        return max(
            (b - a for a, b in itertools.pairwise(times) if at_ms - 10 <= a <= at_ms + span_ms),
            default=0,
        )

    def longest_gap_ms(self) -> int:
        times = sorted(self.at_ms)
        return max((b - a for a, b in itertools.pairwise(times)), default=0)


class DispatchProcesses:
    """Use `dispatch_processes(url, …)`. The processes end with its block."""

    def __init__(self, runtime: Runtime, stack: AsyncExitStack, env: Mapping[str, str]) -> None:
        self.runtime = runtime
        self.store = DispatchStore(runtime)
        self.dispatchers: list[RoleProcess] = []
        self.workers: list[RoleProcess] = []
        self._stack = stack
        self._env = dict(env)

    async def add_dispatcher(self, **env: str) -> RoleProcess:
        role = RoleProcess(["serve", "dispatcher"], {**self._env, **env})
        self.dispatchers.append(await self._stack.enter_async_context(role))
        return role

    async def add_worker(self, app: str = APP, **env: str) -> RoleProcess:
        role = RoleProcess(["serve", "worker", "--app", app], {**self._env, **env})
        self.workers.append(await self._stack.enter_async_context(role))
        return role

    async def leader_of(self, partition: int = 0) -> RoleProcess | None:
        """The process that holds the lock, if the harness started it and it is alive."""
        actor = (await self.store.status(partition)).leader
        pid = int(actor.split("-")[-2]) if actor else None
        return next((each for each in self.dispatchers if each.alive and each.pid == pid), None)

    async def wait_for_leaders(self) -> RoleProcess:
        """Wait until every partition has a leader; the leader of partition 0."""

        async def all_led() -> bool:
            partitions = range(self.store.partitions)
            return all([await self.leader_of(p) is not None for p in partitions])

        await eventually(all_led, deadline_s=60)
        leader = await self.leader_of()
        assert leader is not None
        return leader

    async def now_ms(self) -> int:
        seconds, micros = await self.runtime.redis.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def publish(self, payloads: list[bytes]) -> None:
        commands = [("PUBLISH", self.store.channel, payload) for payload in payloads]
        await self.runtime.redis.execute(commands, key=None, repeatable=False)

    def stream_name(self, partition: int) -> str:
        return self.runtime.keyspace.name(keys.MESSAGES_PROCESSED, partition)

    async def results(self) -> StreamResults:
        found = StreamResults()
        for partition in range(self.store.partitions):
            name = self.stream_name(partition)
            after = "-"
            while True:
                entries: list[Any] = await self.runtime.redis.call(
                    "XRANGE", name, after, "+", "COUNT", 5_000, key=name
                )
                for entry_id, values in entries:
                    fields = dict(zip(values[::2], values[1::2], strict=True))
                    found.counts[fields[b"n"].decode()] += 1
                    found.at_ms.append(int(entry_id.partition(b"-")[0]))
                    found.consumers[fields[b"consumer_id"].decode()] += 1
                    found.message_ids.append(fields[b"message_id"].decode())
                if len(entries) < 5_000:
                    break
                after = f"({entries[-1][0].decode()}"
        return found

    async def wait_settled(self, count: int, deadline_s: float = 60) -> None:
        """Wait until the streams have `count` results and nothing is pending or in an inbox."""

        async def all_there() -> bool:
            partitions = range(self.store.partitions)
            statuses = [await self.store.status(partition) for partition in partitions]
            open_ = sum(each.pending + each.inbox for each in statuses)
            return open_ == 0 and sum(each.processed for each in statuses) >= count

        await eventually(all_there, deadline_s=deadline_s)


@asynccontextmanager
async def dispatch_processes(redis_url: str, **overrides: Any) -> AsyncIterator[DispatchProcesses]:
    settings = sample_settings(redis_url, **overrides)
    env = {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_PARTITIONS": str(settings.partitions),
        "ANGARIUM_DURABILITY": str(settings.durability),
        "ANGARIUM_DISPATCH__ACK_PORT": "0",
    }
    for name, value in overrides.get("dispatch", {}).items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        env[f"ANGARIUM_DISPATCH__{name.upper()}"] = text
    async with Runtime.open(settings) as runtime, AsyncExitStack() as stack:
        yield DispatchProcesses(runtime, stack, env)


async def publish_steadily(
    processes: DispatchProcesses, payloads: list[bytes], rate: float
) -> None:
    """Publish about `rate` messages a second, in small chunks."""
    loop = asyncio.get_running_loop()
    chunk = max(1, round(rate / 100))
    began = loop.time()
    for start in range(0, len(payloads), chunk):
        await processes.publish(payloads[start : start + chunk])
        ahead_s = began + (start + chunk) / rate - loop.time()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
