"""Transactions beside what a user would pick instead, over HTTP, and at a million sleepers.

One item is a start and its completion through one worker process, journal and statistics on.
Everyone has a server of their own; rounds are interleaved, and a round from which CPU time was
stolen is repeated. `PEERS=bullmq,taskiq` chooses peers, `PARTS=queue,http,size` parts.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess

from angarium.runtime.runtime import Runtime
from angarium.transactions import keys
from angarium.transactions.model import TransactionStart
from angarium.transactions.pipeline import pipeline_of
from angarium.transactions.statistics import StatisticsLevel
from angarium.transactions.store import (
    PipelineStore,
    TransactionLeases,
    TransactionQueries,
    TransactionStore,
)
from benchmarks.end_to_end import _redis
from benchmarks.measure import STEAL_MAX, cpu_times, redis_figures, steal_since
from benchmarks.sizes import count, rounds, sizes
from benchmarks.transactions_peer import (
    PYTHON_QUEUES,
    Peer,
    PeerFailed,
    install,
)

ROUNDS = rounds(5)
STARTERS = 200
ITEMS = {"ours": count(20_000, least=400), "bullmq": count(6_000, least=100)}
ITEMS_PYTHON = count(1_500, least=100)
LOOK_S = 0.01
# A round that was stolen from is repeated; what remains stolen is shown.
ATTEMPTS_MAX = 3
CONNECTIONS = (1, 10, 100)
HTTP_S = float(count(5))
SETTLE_S = 2.0


@dataclass
class Measured:
    """One contender: its rates, and what its server spent for each item."""

    name: str
    witness: Any
    run: Callable[[int], Awaitable[None]]
    items: int
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)
    steals: list[float] = field(default_factory=list)

    async def round(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            before, stolen, began = _redis(self.witness), cpu_times(), time.perf_counter()
            await self.run(self.items)
            seconds = time.perf_counter() - began
            after = _redis(self.witness)
            steal = steal_since(stolen)
            if steal <= STEAL_MAX:
                break
        self.steals.append(steal)
        self.rates.append(self.items / seconds)
        commands, scripts, cpu_s = (b - a for a, b in zip(before, after, strict=True))
        self.commands.append(commands / self.items)
        self.calls.append(scripts / self.items)
        self.cpu_us.append(cpu_s * 1e6 / self.items)


class Ours:
    """Starters here, one node process there."""

    def __init__(self, runtime: Runtime, pipeline: str) -> None:
        self._store = TransactionStore(runtime)
        self._queries = TransactionQueries(runtime)
        self._pipeline = pipeline

    async def run(self, items: int) -> None:
        before = await self._completed()

        async def starter(number: int) -> None:
            for _ in range(number, items, STARTERS):
                await self._store.start(TransactionStart(self._pipeline))

        await asyncio.gather(*(starter(number) for number in range(STARTERS)))
        while await self._completed() < before + items:
            await asyncio.sleep(LOOK_S)

    async def _completed(self) -> int:
        intervals = await self._queries.statistics(StatisticsLevel.COARSE, 3)
        return sum(each.all.get("completed", 0) for each in intervals)


def _environment(runtime: Runtime) -> dict[str, str]:
    return {
        "ANGARIUM_REDIS_URL": runtime.settings.redis_url,
        "ANGARIUM_PREFIX": runtime.settings.prefix,
        "ANGARIUM_APP": "benchmarks.transactions_app:app",
        "ANGARIUM_HTTP__PORT": "0",
    }


@asynccontextmanager
async def _runtime(server: ServerProcess) -> AsyncIterator[Runtime]:
    async with sample_runtime(server.url) as runtime:
        pipelines = PipelineStore(runtime)
        pause = {"type": "pause", "parameters": {"seconds": 0.01}}
        for name, steps in (
            ("one", [{"type": "job"}]),
            ("five", [{"type": "job"}] * 5),
            ("two", [pause] * 2),
        ):
            await pipelines.put(pipeline_of({"name": name, "steps": steps}))
        yield runtime


def main() -> None:
    parts = os.environ.get("PARTS", "queue,http,size").split(",")
    if "queue" in parts:
        uvloop.run(_queues())
    if "http" in parts:
        uvloop.run(_http())
    if "size" in parts:
        uvloop.run(_sizes())


# Beside other queues


async def _queues() -> None:
    chosen = os.environ.get("PEERS", ",".join(("bullmq", *PYTHON_QUEUES))).split(",")
    chosen = [name for name in chosen if name and install(name)]
    async with AsyncExitStack() as stack:
        contenders = [await _ours(stack, "one"), await _ours(stack, "five")]
        for name in chosen:
            try:
                peer = await stack.enter_async_context(Peer(name))
            except PeerFailed as error:
                print(f"({error}: left out)\n")
                continue
            items = ITEMS.get(name, ITEMS_PYTHON)
            contenders.append(Measured(name, peer.server.client(), peer.run, items))
        for contender in contenders:
            await contender.run(contender.items // 10)
        for _ in range(ROUNDS):
            for contender in list(contenders):
                try:
                    await contender.round()
                except PeerFailed as error:
                    print(f"({error}: left out)\n")
                    contenders.remove(contender)
    _print_queues(contenders)


async def _ours(stack: AsyncExitStack, pipeline: str) -> Measured:
    server = stack.enter_context(ServerProcess())
    runtime = await stack.enter_async_context(_runtime(server))
    await stack.enter_async_context(RoleProcess(["serve", "node"], _environment(runtime)))
    items = ITEMS["ours"] if pipeline == "one" else ITEMS["ours"] // 4
    title = f"Angarium, {pipeline} step{'s' if pipeline != 'one' else ''}"
    return Measured(title, server.client(), Ours(runtime, pipeline).run, items)


def _print_queues(contenders: list[Measured]) -> None:
    base = contenders[0]
    print(f"## Start to completion through one worker process, {ROUNDS} rounds\n")
    print("| | items/s | ours is × as fast | spread | Redis commands | Redis CPU µs | stolen |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for each in contenders:
        ratios = sorted(a / b for a, b in zip(base.rates, each.rates, strict=True))
        print(
            f"| {each.name} | {statistics.median(each.rates):,.0f} | "
            f"{statistics.median(ratios):.2f} | {ratios[0]:.2f}–{ratios[-1]:.2f} | "
            f"{statistics.median(each.commands):.1f} | {statistics.median(each.cpu_us):.1f} | "
            f"{max(each.steals):.1%} |"
        )
    print(f"\nAngarium's script calls per transaction: {statistics.median(base.calls):.3f}\n")


# Over HTTP


async def _http() -> None:
    """A start that waits for the end of two steps of 10 ms each, as many at once as connections."""
    print("## PUT start with long poll, two steps of 10 ms, one API and one node process\n")
    print("| connections | transactions/s | p50 ms | p99 ms | Redis CPU µs each |")
    print("|---:|---:|---:|---:|---:|")
    with ServerProcess() as server:
        async with _runtime(server) as runtime:
            env = _environment(runtime)
            async with (
                RoleProcess(["serve", "node"], env),
                RoleProcess(["serve", "api"], env) as api,
            ):
                port, witness = api.ports["http"], server.client()
                await _load(port, 10, 1.0)
                for connections in CONNECTIONS:
                    before = redis_figures(witness)
                    times_ms = sorted(await _load(port, connections, HTTP_S))
                    cpu_s = redis_figures(witness)[1] - before[1]
                    print(
                        f"| {connections} | {len(times_ms) / HTTP_S:,.0f} "
                        f"| {times_ms[len(times_ms) // 2]:.1f} "
                        f"| {times_ms[int(len(times_ms) * 0.99)]:.1f} "
                        f"| {cpu_s * 1e6 / len(times_ms):.1f} |"
                    )
    print()


class _Connection(asyncio.Protocol):
    """One request after the other on one connection; as little Python as will do."""

    def __init__(self, request: bytes, until: float, times_ms: list[float]) -> None:
        self._request = request
        self._until = until
        self._times_ms = times_ms
        self._received = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the API closed the connection"))

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        if len(body) < length:
            return
        if b'"success"' not in body:
            self._transport.close()
            self.done.set_exception(RuntimeError(self._received.decode()))
            return
        self._received = b""
        self._times_ms.append((time.perf_counter() - self._began) * 1000)
        if self._began < self._until:
            self._send()
        else:
            self._transport.close()
            self.done.set_result(None)


async def _load(port: int, connections: int, seconds: float) -> list[float]:
    times_ms: list[float] = []
    body = b'{"metadata":{"reply":"longpoll"},"data":{}}'
    request = (
        b"PUT /datp/1.0/tx/start/two HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    loop, until = asyncio.get_running_loop(), time.perf_counter() + seconds
    made = [
        await loop.create_connection(
            lambda: _Connection(request, until, times_ms), "127.0.0.1", port
        )
        for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.done for _, protocol in made))
    return times_ms


# Against size


async def _sizes() -> None:
    """What one tick costs Redis when nobody is due, by how many wait."""
    print("## One look for due sleepers, and for transactions to archive, when none is due\n")
    print("| waiting | sleepers, µs | to archive, µs |")
    print("|---:|---:|---:|")
    with ServerProcess() as server:
        async with _runtime(server) as runtime:
            store, leases = TransactionStore(runtime), TransactionLeases(runtime)
            witness = server.client()
            there = 0
            for size in sizes(0, 1_000, 100_000, 1_000_000):
                for key in (keys.SLEEPING, keys.TO_ARCHIVE):
                    _fill(witness, runtime.keyspace.name(key), there, size)
                there = size
                # Redis rehashes what has grown in idle moments, and that is no look's cost.
                await asyncio.sleep(SETTLE_S)
                sleepers = await _cost_us(witness, lambda: store.wake_due(0, 500))
                archive = await _cost_us(witness, lambda: leases.to_archive(0, "a", [], 500))
                print(f"| {size:,} | {sleepers:.1f} | {archive:.1f} |")
    print()


def _fill(witness: Any, name: str, first: int, last: int) -> None:
    far_ms = 4_000_000_000_000
    for start in range(first, last, 10_000):
        members = {f"{number:032x}": far_ms + number for number in range(start, start + 10_000)}
        witness.zadd(name, dict(list(members.items())[: last - start]))


async def _cost_us(witness: Any, call: Callable[[], Awaitable[object]]) -> float:
    """The script's own time, as Redis counts it."""
    for _ in range(20):
        await call()
    before = witness.info("commandstats")["cmdstat_evalsha"]
    for _ in range(500):
        await call()
    after = witness.info("commandstats")["cmdstat_evalsha"]
    return float((after["usec"] - before["usec"]) / (after["calls"] - before["calls"]))
