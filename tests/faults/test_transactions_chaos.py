"""Transactions under load while nodes and Redis are killed: each one ends once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from angarium.runtime.errors import AngariumError
from angarium.transactions.model import TransactionStart
from angarium.transactions.settings import TransactionsSettings
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.transactions.harness import Harness, harness

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
TRANSACTIONS = rounds(1_200, 20_000)
NODES, NODE_KILLS, REDIS_KILLS = 2, rounds(3, 10), rounds(1, 2)
STARTERS = 50
PATIENT = {"unavailable_timeout_ms": 60_000}


def _environment(here: Harness, step_log: Path | None = None) -> dict[str, str]:
    settings = here.runtime.settings
    return {
        "ANGARIUM_REDIS_URL": settings.redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_DURABILITY": str(settings.durability),
        "ANGARIUM_DATABASE_URL": settings.database_url,
        "ANGARIUM_APP": "tests.transactions.app:app",
        "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
        "ANGARIUM_TRANSACTIONS__NODE_CONCURRENCY": "50",
        "ANGARIUM_TRANSACTIONS__DELAY_BEFORE_ARCHIVING": "0",
        "ANGARIUM_TRANSACTIONS__NODE_TIMEOUT_MS": str(
            settings.group(TransactionsSettings).node_timeout_ms
        ),
        **({"TRANSACTIONS_STEP_LOG": str(step_log)} if step_log else {}),
    }


class Receiver:
    """Counts the webhooks of each transaction."""

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        assert body["metadata"]["status"] == "success"
        self.received[body["metadata"]["txId"]] += 1
        return web.Response(status=204)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/", receiver.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield receiver
    finally:
        await runner.cleanup()


async def _start_all(here: Harness, url: str, ids: list[str]) -> None:
    async def starter(number: int) -> None:
        for count in range(TRANSACTIONS // STARTERS):
            while True:
                try:
                    # Under an externalId, so that a start whose answer was lost is not doubled.
                    start = TransactionStart("five", external_id=f"{number}-{count}", webhook=url)
                    ids.append((await here.store.start(start)).transaction_id)
                    break
                except AngariumError:
                    await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        for number in range(STARTERS):
            group.create_task(starter(number))


async def _completed(here: Harness) -> int:
    return (await here.counters()).get("completed", 0)


async def _hurt(
    here: Harness,
    server: ServerProcess,
    nodes: list[RoleProcess],
    fresh: AsyncExitStack,
    step_log: Path,
) -> None:
    """Kills spread over the run, at shares of the work done."""
    kinds = ["node"] * NODE_KILLS
    for place in range(REDIS_KILLS):
        kinds.insert((place + 1) * len(kinds) // (REDIS_KILLS + 1), "redis")
    for number, kind in enumerate(kinds):
        wanted = TRANSACTIONS * (number + 1) // (len(kinds) + 2)

        async def enough(wanted: int = wanted) -> bool:
            return await _completed(here) >= wanted

        await eventually(enough, 300, ignoring=(AngariumError,))
        if kind == "redis":
            server.kill()
            await asyncio.to_thread(server.restart)
        else:
            nodes[number % len(nodes)].kill()
            role = RoleProcess(["serve", "node"], _environment(here, step_log))
            nodes[number % len(nodes)] = await fresh.enter_async_context(role)


async def test_nodes_and_redis_killed_under_load_lose_and_repeat_nothing_else(
    tmp_path: Path,
) -> None:
    step_log = tmp_path / "steps"
    with ServerProcess(aof=True, fsync="always") as server:
        async with (
            receiving() as receiver,
            harness(server.url, durability="local", redis=PATIENT) as here,
            RoleProcess(["serve", "webhooks"], _environment(here)),
            AsyncExitStack() as fresh,
        ):
            pause = {"type": "logged", "parameters": {"pause_s": 0.005}}
            await here.define("five", *[pause] * 5)
            nodes = [
                await fresh.enter_async_context(
                    RoleProcess(["serve", "node"], _environment(here, step_log))
                )
                for _ in range(NODES)
            ]
            ids: list[str] = []
            began_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                group.create_task(_start_all(here, receiver.url, ids))
                group.create_task(_hurt(here, server, nodes, fresh, step_log))

            async def all_ended() -> bool:
                return (
                    await _completed(here) >= TRANSACTIONS
                    and len(receiver.received) >= TRANSACTIONS
                )

            await eventually(all_ended, 300, ignoring=(AngariumError,))
            took_s = time.monotonic() - began_s
            for node in nodes:
                assert node.terminate() == 0
            await _check(here, ids, receiver, step_log, took_s)


async def _check(
    here: Harness, ids: list[str], receiver: Receiver, step_log: Path, took_s: float
) -> None:
    events = await here.events()
    by_name = Counter(each.event for each in events)
    recovered = Counter(each.subject for each in events if each.event == "recovered")
    began: Counter[str] = Counter()
    for line in step_log.read_text().splitlines():
        what, _, key = line.partition(" ")
        began[key] += what == "began"
    repeats = {key: count - 1 for key, count in began.items() if count > 1}
    print(
        f"\n{len(ids)} transactions of five steps in {took_s:.1f} s; {NODE_KILLS} nodes and Redis "
        f"{REDIS_KILLS} times killed; {sum(recovered.values())} recovered, "
        f"{sum(repeats.values())} steps repeated; {sum(receiver.received.values())} webhooks "
        f"delivered; {sum(by_name.values())} events"
    )
    assert len(set(ids)) == TRANSACTIONS
    assert by_name["started"] == by_name["completed"] == TRANSACTIONS
    for id in ids:
        assert (await here.state(id)).status == "success"
    assert {key.rpartition(":")[0] for key in began} == set(ids)
    assert len(began) == 5 * TRANSACTIONS
    # A step ran again only if its transaction was recovered from a dead node.
    for key, count in repeats.items():
        assert count <= recovered[key.rpartition(":")[0]], key
    assert sum(repeats.values()) <= sum(recovered.values())
    assert set(receiver.received) == set(ids)
    assert max(receiver.received.values()) == 1, "sent again after the receiver had accepted it"
    counters = await here.counters()
    assert counters == {name: count for name, count in by_name.items() if name in counters}
    assert set(by_name) - set(counters) <= {"pipeline_stored"}


async def test_orphans_are_recovered_within_fifteen_seconds(redis_server: ServerProcess) -> None:
    async with harness(redis_server.url) as here:
        await here.define("p", {"type": "logged", "parameters": {"pause_s": 0.5}})
        async with (
            RoleProcess(["serve", "node"], _environment(here)) as first,
            RoleProcess(["serve", "node"], _environment(here)),
        ):
            ids = [await here.start("p") for _ in range(60)]

            async def taken() -> bool:
                return (await here.queries.health_report(["default"], 1)).running >= 60

            await eventually(taken, 30)
            first.kill()
            killed_s = time.monotonic()
            for id in ids:
                assert (await here.ended(id, 60)).status == "success"
            took_s = time.monotonic() - killed_s
            recovered = [each for each in await here.events() if each.event == "recovered"]
            print(f"\n{len(recovered)} orphans ended {took_s:.1f} s after their node was killed")
            assert recovered
            assert took_s < 15


async def test_a_paused_node_cannot_write_after_it_continues(redis_server: ServerProcess) -> None:
    async with harness(redis_server.url, transactions={"node_timeout_ms": 1_000}) as here:
        await here.define("p", {"type": "logged", "parameters": {"pause_s": 0.2}})
        async with RoleProcess(["serve", "node"], _environment(here)) as sleepy:
            ids = [await here.start("p") for _ in range(20)]
            for id in ids:
                await here.wait_for_status(id, "running")
            sleepy.pause()
            async with RoleProcess(["serve", "node"], _environment(here)):
                for id in ids:
                    assert (await here.ended(id, 60)).run == 2
                sleepy.resume()
                again = await here.start("p")
                assert (await here.ended(again, 60)).status == "success"
                assert sleepy.terminate() == 0
        names = Counter(each.event for each in await here.events())
        assert names["completed"] == 21
        assert names["recovered"] >= 20


async def test_a_node_comes_back_after_redis_did() -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        async with (
            harness(server.url, redis=PATIENT) as here,
            RoleProcess(["serve", "node"], _environment(here)) as node,
        ):
            for _ in range(rounds(2, 10)):
                assert (await here.ended(await here.start())).status == "success"
                server.kill()
                await asyncio.to_thread(server.restart)
            assert (await here.ended(await here.start())).status == "success"
            assert node.terminate() == 0


async def test_a_node_stops_though_a_thread_never_returns(redis_server: ServerProcess) -> None:
    async with harness(redis_server.url) as here:
        await here.define("p", {"type": "blocked", "parameters": {"pause_s": 600}})
        async with RoleProcess(["serve", "node"], _environment(here)) as node:
            id = await here.start("p")
            await here.wait_for_status(id, "running")
            # The exit code is 1 because of the thread, but the node returns its transactions first.
            assert await asyncio.to_thread(node.terminate) == 1
        assert (await here.state(id)).status == "queued"
        assert "returned" in await here.event_names(id)


async def test_a_redis_that_stands_still_makes_no_node_look_dead() -> None:
    """Redis stands still for longer than the time-out. Then no transaction is recovered."""
    with ServerProcess() as server:
        async with (
            harness(server.url, transactions={"node_timeout_ms": 2_000}, redis=PATIENT) as here,
            AsyncExitStack() as nodes,
        ):
            await here.define("p", {"type": "logged", "parameters": {"pause_s": 6}})
            for _ in range(3):
                await nodes.enter_async_context(RoleProcess(["serve", "node"], _environment(here)))
            ids = [await here.start("p") for _ in range(60)]
            for id in ids:
                await here.wait_for_status(id, "running")
            with server.paused():
                await asyncio.sleep(3.5)  # the fault itself
            for id in ids:
                assert (await here.ended(id, 60)).run == 1
            assert "recovered" not in {each.event for each in await here.events()}
