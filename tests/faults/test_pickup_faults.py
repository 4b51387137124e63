"""Gateways, the persister and Redis killed under load: nothing acknowledged is lost or comes back.

Writers add messages through one gateway and count as accepted what was answered; recipients hold
live sessions, acknowledge what they get, and come back by themselves wherever they were cut off.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from angarium.core.errors import AngariumError
from angarium.core.ground import Ground
from angarium.core.settings import load
from angarium.pickup.archive import Archive
from angarium.pickup.client import Delivery, PickupClient
from angarium.pickup.mailbox import Mailbox
from angarium.pickup.store import PickupStore
from tests.faults.profile import LONG, rounds
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.ports import free_port
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
DID = "did:example:anna"
QUEUE = "default:c1"
PATIENCE_S = 90


def environment(redis_url: str, folder: Path, **more: str) -> dict[str, str]:
    return {
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": f"f{secrets.token_hex(3)}:",
        "ANGARIUM_DATABASE_URL": f"sqlite:///{folder}/pickup.db",
        "ANGARIUM_PICKUP__GRACE_MS": "300",
        "ANGARIUM_PICKUP__LEASE_MS": "1000",
        "ANGARIUM_PICKUP__PORT": "0",
        **more,
    }


def url_of(role: RoleProcess) -> str:
    return f"ws://127.0.0.1:{role.ports['gateway']}/"


class Recipients:
    """Live sessions that acknowledge; each message is told to the history when it is new."""

    def __init__(self, history: History, names: list[str]) -> None:
        self.history = history
        self.names = names
        self.seen: dict[str, str] = {}
        self.acknowledged: set[str] = set()
        self.came_back: list[str] = []
        self.latency_ms: list[float] = []
        self.sent_at: dict[int, float] = {}
        self._to_acknowledge: asyncio.Queue[tuple[str, list[str]]] = asyncio.Queue()

    def take(self, delivery: Delivery) -> None:
        fresh = []
        for message in delivery.messages:
            if message.id in self.acknowledged:
                self.came_back.append(message.id)
            if message.id not in self.seen:
                self.seen[message.id] = delivery.connection_id
                number = message.encrypted_message
                self.history.received(f"{delivery.connection_id}-{number}", delivery.connection_id)
            fresh.append(message.id)
        self._to_acknowledge.put_nowait((delivery.connection_id, fresh))

    async def acknowledge(self, client: PickupClient) -> None:
        while True:
            connection, ids = await self._to_acknowledge.get()
            while True:
                try:
                    await client.remove_messages(connection, ids)
                    break
                except (AngariumError, TimeoutError):
                    await asyncio.sleep(0.05)
            self.acknowledged.update(ids)


class Load:
    def __init__(self, history: History, client: PickupClient, recipients: Recipients) -> None:
        self.history = history
        self.client = client
        self.recipients = recipients
        self.accepted = 0
        self.over = False

    async def write(self, name: str) -> None:
        number = 0
        while not self.over:
            number += 1
            operation = f"{name}-{number}"
            self.history.attempted(operation, name)
            try:
                await self.client.add_message(name, [DID], number)
            except (AngariumError, TimeoutError):
                # Not acknowledged: it may be there or not.
                await asyncio.sleep(0.05)
                continue
            self.history.sent(operation, name)
            self.accepted += 1
            await asyncio.sleep(0.002)

    async def progress(self, more: int = 50) -> None:
        before, received = self.accepted, len(self.recipients.seen)
        await eventually(lambda: self.accepted > before + more, PATIENCE_S)
        await eventually(lambda: len(self.recipients.seen) > received, PATIENCE_S)


@asynccontextmanager
async def under_load(
    writer_url: str, reader_url: str, names: list[str]
) -> AsyncIterator[tuple[Load, Recipients, History]]:
    history = History()
    recipients = Recipients(history, names)
    async with (
        PickupClient(writer_url, call_timeout_s=20) as writer,
        PickupClient(reader_url, on_messages=recipients.take, call_timeout_s=20) as reader,
    ):
        load = Load(history, writer, recipients)
        for name in names:
            await reader.add_live_session(name, "s1")
        async with asyncio.TaskGroup() as tasks:
            acknowledging = [tasks.create_task(recipients.acknowledge(reader)) for _ in range(4)]
            for name in names:
                tasks.create_task(load.write(name))
            yield load, recipients, history
            load.over = True
            await eventually(lambda: not _missing(history), PATIENCE_S)
            await eventually(lambda: recipients.acknowledged >= set(recipients.seen), PATIENCE_S)
            for task in acknowledging:
                task.cancel()


def _missing(history: History) -> int:
    return history.check().lost.count


async def hurt(
    load: Load, kind: str, times: int, once: Callable[[], Awaitable[object]], more: int = 50
) -> None:
    await load.progress(more)
    for _ in range(times):
        load.history.fault(kind)
        await once()
        await load.progress(more)


def report(recipients: Recipients, history: History) -> None:
    verdict = history.check()
    print(f"\n{verdict}\nacknowledged {len(recipients.acknowledged):,}")
    # Before its acknowledgement arrived, a message may be sent again; after it, never.
    assert recipients.came_back == []
    assert verdict.ok, str(verdict)


async def test_a_gateway_killed_again_and_again_loses_nothing(
    redis_server: ServerProcess, tmp_path: Path
) -> None:
    env = environment(redis_server.url, tmp_path)
    port = free_port()
    async with RoleProcess(["serve", "gateway"], env) as other:
        readers = {**env, "ANGARIUM_PICKUP__PORT": str(port)}
        roles: list[RoleProcess] = []

        async def start() -> None:
            roles.append(await RoleProcess(["serve", "gateway"], readers).__aenter__())

        async def kill() -> None:
            roles[-1].kill()
            await start()

        await start()
        try:
            names = [f"c{number}" for number in range(20)]
            async with under_load(url_of(other), f"ws://127.0.0.1:{port}/", names) as (
                load,
                recipients,
                history,
            ):
                await hurt(load, "kill -9 gateway", rounds(1, 10), kill)
            report(recipients, history)
        finally:
            for role in roles:
                role.close()


async def test_redis_killed_again_and_again_loses_nothing_at_local(tmp_path: Path) -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        env = environment(server.url, tmp_path, ANGARIUM_DURABILITY="local")
        async with RoleProcess(["serve", "gateway"], env) as role:

            async def kill() -> None:
                server.kill()
                await asyncio.to_thread(server.restart)

            names = [f"c{number}" for number in range(20)]
            async with under_load(url_of(role), url_of(role), names) as (
                load,
                recipients,
                history,
            ):
                await hurt(load, "kill -9 redis", rounds(3, 20), kill, more=300)
            report(recipients, history)


async def test_a_persister_killed_in_mid_move_neither_loses_nor_doubles_nor_revives(
    redis_server: ServerProcess, tmp_path: Path
) -> None:
    env = environment(redis_server.url, tmp_path, ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP="1")
    ids: list[str] = []
    removed: set[str] = set()
    async with queue_of(env) as (store, mailbox):
        for turn in range(rounds(4, 20)):
            step = ("on_marked", "on_stored")[turn % 2]
            added = [f"m{turn:03d}x{number:03d}" for number in range(100)]
            await asyncio.gather(*(store.add(QUEUE, each, DID, b"1") for each in added))
            ids += added
            dying = RoleProcess(["-m", "tests.faults.pickup_persister", step], env)
            async with dying as process:
                assert await asyncio.to_thread(process.wait, PATIENCE_S) == -signal.SIGKILL
            # Some are acknowledged while their move is torn in half.
            some = random.Random(turn).sample(sorted(set(ids) - removed), 40)
            assert await mailbox.remove(QUEUE, some) == 40
            removed |= set(some)
            assert await mailbox.count(QUEUE, "") == len(ids) - len(removed)
            assert await mailbox.count(QUEUE, DID) == len(ids) - len(removed)
        async with RoleProcess(["-m", "tests.faults.pickup_persister"], env):

            async def all_moved() -> bool:
                figures = await store.show(QUEUE)
                return figures is not None and figures.archived == len(ids) - len(removed)

            await eventually(all_moved, PATIENCE_S)
        found: list[str] = []
        while taken := await mailbox.take(QUEUE, "", 97, 1_000_000):
            found += [each.id for each in taken]
        print(f"\n{len(ids)} added, {len(removed)} acknowledged, {len(found)} left, in order")
        assert found == [each for each in ids if each not in removed]


@asynccontextmanager
async def queue_of(env: dict[str, str]) -> AsyncIterator[tuple[PickupStore, Mailbox]]:
    """A reader of the queue that never moves anything itself; the first chart is made for it."""
    settings = load(
        redis_url=env["ANGARIUM_REDIS_URL"],
        prefix=env["ANGARIUM_PREFIX"],
        database_url=env["ANGARIUM_DATABASE_URL"],
    )
    async with Ground.open(settings) as ground:
        store = PickupStore(ground)
        archive = await Archive.open(settings.database_url, settings.prefix)
        try:
            await store.chart(0, [], last=True)
            yield store, Mailbox(store, archive)
        finally:
            await archive.close()


async def test_recipients_who_come_and_go_get_everything_in_order(
    redis_server: ServerProcess, tmp_path: Path
) -> None:
    recipients, duration_s = rounds(100, 1_000), rounds(4, 60)
    env = environment(redis_server.url, tmp_path)
    async with (
        RoleProcess(["serve", "gateway"], env) as one,
        RoleProcess(["serve", "gateway"], env) as two,
    ):
        await _come_and_go([url_of(one), url_of(two)], recipients, duration_s)


async def _come_and_go(urls: list[str], count: int, duration_s: int) -> None:
    history, rng = History(), random.Random(7)
    seen: dict[str, list[int]] = {f"r{number}": [] for number in range(count)}
    latency_ms: list[float] = []
    sent_at: dict[tuple[str, int], float] = {}
    waiting: asyncio.Queue[tuple[PickupClient, str, list[str]]] = asyncio.Queue()
    ends = time.monotonic() + duration_s
    clients: list[PickupClient] = []

    def take(client_number: int) -> Callable[[Delivery], None]:
        def on_messages(delivery: Delivery) -> None:
            name = delivery.connection_id
            for message in delivery.messages:
                number = message.encrypted_message
                if number not in seen[name]:
                    seen[name].append(number)
                    history.received(f"{name}-{number}", name)
                    latency_ms.append((time.monotonic() - sent_at[name, number]) * 1000)
            ids = [message.id for message in delivery.messages]
            waiting.put_nowait((clients[client_number], name, ids))

        return on_messages

    async def acknowledge() -> None:
        while True:
            client, name, ids = await waiting.get()
            await client.remove_messages(name, ids)

    async def write(names: list[str]) -> None:
        number = 0
        while time.monotonic() < ends:
            number += 1
            for name in names:
                sent_at[name, number] = time.monotonic()
                history.attempted(f"{name}-{number}", name)
                await clients[number % 2].add_message(name, [DID], number)
                history.sent(f"{name}-{number}", name)
            await asyncio.sleep(0.02)

    async def wander() -> None:
        session = 0
        while time.monotonic() < ends:
            name = f"r{rng.randrange(count)}"
            session += 1
            await clients[rng.randrange(2)].add_live_session(name, f"s{session}")
            await asyncio.sleep(0.002)

    async with (
        PickupClient(urls[0], on_messages=take(0)) as first,
        PickupClient(urls[1], on_messages=take(1)) as second,
    ):
        clients += [first, second]
        names = list(seen)
        await asyncio.gather(*(first.add_live_session(name, "s0") for name in names))
        async with asyncio.TaskGroup() as tasks:
            acknowledging = [tasks.create_task(acknowledge()) for _ in range(16)]
            parts = [tasks.create_task(write(names[start::8])) for start in range(8)]
            wandering = tasks.create_task(wander())
            for task in (*parts, wandering):
                await task
            await eventually(lambda: history.check().lost.count == 0, PATIENCE_S)
            for task in acknowledging:
                task.cancel()
    verdict = history.check()
    cuts = statistics.quantiles(latency_ms, n=100)
    print(f"\n{verdict}\nadded → received: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms")
    assert verdict.ok, str(verdict)
    assert LONG or verdict.operations > 0
