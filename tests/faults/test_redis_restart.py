"""Redis killed again and again under load: every kind of connection comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from angarium.runtime import keys
from angarium.runtime.errors import AngariumError
from angarium.runtime.runtime import Runtime
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.sample import SampleStore, sample_runtime
from tests.kit.server import ServerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
WRITERS = 32
PATIENT = {"unavailable_timeout_ms": 30_000}


class Load:
    """Writers, a blocking reader and a subscriber, each counting what it lived through."""

    def __init__(self, runtime: Runtime, history: History) -> None:
        self.runtime = runtime
        self.store = SampleStore(runtime)
        self.history = history
        self.written = 0
        self.read = 0
        self.heard = 0
        self.gaps = 0
        self.over = False

    async def write(self, writer: int) -> None:
        number = 0
        while not self.over:
            number += 1
            item = f"{writer}-{number}"
            self.history.attempted(item)
            try:
                await self.store.accept(item)
            except AngariumError:
                continue  # not acknowledged: it may be there or not
            self.history.sent(item)
            self.written += 1

    async def follow(self) -> None:
        """Reads the journal as it grows, blocking, from the position it has reached."""
        name = self.runtime.keyspace.name(keys.JOURNAL)
        position = "0-0"
        while True:
            reply = await self.runtime.redis.blocking(
                "XREAD", "COUNT", 500, "BLOCK", 1_000, "STREAMS", name, position,
                key=name, block_ms=1_000,
            )  # fmt: skip
            if reply:
                position = reply[0][1][-1][0].decode()
                self.read += 1

    async def listen(self) -> None:
        async with self.runtime.redis.subscribe("ticks") as subscription:
            while True:
                batch = await subscription.receive()
                self.gaps += batch.gap
                self.heard += len(batch.messages)

    async def tick(self) -> None:
        while not self.over:
            await self.runtime.redis.call("PUBLISH", "ticks", "x")
            await asyncio.sleep(0.01)


async def _progress(load: Load, count: Callable[[Load], int]) -> None:
    before = count(load)
    await eventually(lambda: count(load) > before, deadline_s=30)


async def _hurt(server: ServerProcess, load: Load, times: int) -> None:
    kinds: list[Callable[[Load], int]] = [
        lambda load: load.written,
        lambda load: load.read,
        lambda load: load.heard,
    ]
    for kind in kinds:
        await _progress(load, kind)
    for _ in range(times):
        load.history.fault("kill -9 redis")
        server.kill()
        await asyncio.to_thread(server.restart)
        for kind in kinds:
            await _progress(load, kind)


async def _run(server: ServerProcess, runtime: Runtime, times: int) -> tuple[Load, History]:
    history = History()
    load = Load(runtime, history)
    async with asyncio.TaskGroup() as tasks:
        endless = [tasks.create_task(load.follow()), tasks.create_task(load.listen())]
        for writer in range(WRITERS):
            tasks.create_task(load.write(writer))
        tasks.create_task(load.tick())
        await _hurt(server, load, times)
        load.over = True
        for task in endless:
            task.cancel()
    for item in await load.store.all_ids():
        history.received(item)
    return load, history


async def test_twenty_restarts_lose_nothing_acknowledged_at_local() -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        async with sample_runtime(server.url, durability="local", redis=PATIENT) as runtime:
            times = rounds(20, 100)
            load, history = await _run(server, runtime, times)
            verdict = history.check()
            print(f"\n{verdict}\nread {load.read}, heard {load.heard}, gaps {load.gaps}")
            assert verdict.ok
            assert verdict.faults["kill -9 redis"] == times
            assert load.gaps == times + 1, "one for the first subscription, one for each loss"


async def test_without_an_append_only_file_memory_means_memory() -> None:
    """What README says of `memory`: on a server that keeps nothing on disk, all is gone."""
    with ServerProcess() as server:
        async with sample_runtime(server.url, redis=PATIENT) as runtime:
            store = SampleStore(runtime)
            for number in range(100):
                assert await store.accept(f"id{number}") == "accepted"
            server.kill()
            server.restart()
            assert await store.all_ids() == []
            assert await store.accept("id0") == "accepted"


async def test_memory_on_an_append_only_file_survives_the_server_once_it_is_written() -> None:
    """Under `everysec` the server postpones its write while a sync is under way, for two seconds
    at most, and replies meanwhile. What it has written survives a kill -9, synced or not."""
    with ServerProcess(aof=True, fsync="everysec") as server:
        async with sample_runtime(server.url, redis=PATIENT) as runtime:
            for _ in range(rounds(3, 20)):
                load = Load(runtime, History())
                async with asyncio.TaskGroup() as tasks:
                    for writer in range(WRITERS):
                        tasks.create_task(load.write(writer))
                    await _progress(load, lambda load: load.written // 1_000)
                    load.over = True
                before = sorted(await load.store.all_ids())
                await eventually(lambda: _is_written(server), deadline_s=30)
                server.kill()
                await asyncio.to_thread(server.restart)
                assert sorted(await load.store.all_ids()) == before


def _is_written(server: ServerProcess) -> bool:
    """The server writes before it goes on to the next commands, unless it postpones that."""
    found = server.ask("INFO", "persistence")
    return int(found["aof_buffer_length"]) == 0 and int(found["aof_pending_bio_fsync"]) == 0
