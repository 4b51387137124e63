"""Gateways, the persister and Redis killed under load: nothing acknowledged is lost or comes back.

Writers add messages through one gateway and count as accepted what was answered; recipients hold
live sessions, acknowledge what they get, and come back by themselves wherever they were cut off.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from angarium.pickup.archive import MessageArchive
from angarium.pickup.client import Delivery, PickupClient
from angarium.pickup.queues import PickupQueues
from angarium.pickup.store import PickupStore
from angarium.runtime.errors import AngariumError
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.faults.profile import LONG, rounds
from tests.kit.eventually import eventually
from tests.kit.history import History
from tests.kit.ports import free_port
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.pickup.harness import take

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


@dataclass(frozen=True)
class Pair:
    """Two gateways of one keyspace, for tests that do not change them."""

    env: dict[str, str]
    one: RoleProcess
    two: RoleProcess


@pytest.fixture(scope="module")
def pair(redis_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    env = environment(redis_server.url, tmp_path_factory.mktemp("pair"))
    with (
        RoleProcess(["serve", "gateway"], env) as one,
        RoleProcess(["serve", "gateway"], env) as two,
    ):
        yield Pair(env, one, two)


class Recipients:
    """Live sessions that acknowledge, and record each new message in the history."""

    def __init__(self, history: History, names: list[str]) -> None:
        self.history = history
        self.names = names
        self.seen: dict[str, str] = {}
        self.acknowledged: set[str] = set()
        self.came_back: list[str] = []
        # The check of the history reads all of it, so it is not called often.
        self.received: set[str] = set()
        self.outstanding: set[str] = set()
        self._to_acknowledge: asyncio.Queue[tuple[str, list[str]]] = asyncio.Queue()

    def take(self, delivery: Delivery) -> None:
        fresh = []
        for message in delivery.messages:
            if message.id in self.acknowledged:
                self.came_back.append(message.id)
            if message.id not in self.seen:
                self.seen[message.id] = delivery.connection_id
                operation = f"{delivery.connection_id}-{message.encrypted_message}"
                self.history.received(operation, delivery.connection_id)
                self.received.add(operation)
                self.outstanding.discard(operation)
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
                # Without an answer the message may be stored or not.
                await asyncio.sleep(0.05)
                continue
            self.history.sent(operation, name)
            if operation not in self.recipients.received:
                self.recipients.outstanding.add(operation)
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
            await eventually(lambda: not recipients.outstanding, PATIENCE_S)
            await eventually(lambda: recipients.acknowledged >= set(recipients.seen), PATIENCE_S)
            for task in acknowledging:
                task.cancel()


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
    # A message may be sent again before its acknowledgement arrives, never after it.
    assert recipients.came_back == []
    assert verdict.ok, str(verdict)


async def test_a_gateway_killed_again_and_again_loses_nothing(pair: Pair) -> None:
    port = free_port()
    readers = {**pair.env, "ANGARIUM_PICKUP__PORT": str(port)}
    roles: list[RoleProcess] = []

    async def start() -> None:
        roles.append(await RoleProcess(["serve", "gateway"], readers).__aenter__())

    async def kill() -> None:
        roles[-1].kill()
        await start()

    await start()
    try:
        names = [f"c{number}" for number in range(20)]
        async with under_load(url_of(pair.one), f"ws://127.0.0.1:{port}/", names) as (
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


async def test_a_persister_killed_during_a_move_loses_duplicates_and_restores_nothing(
    redis_server: ServerProcess, tmp_path: Path
) -> None:
    env = environment(redis_server.url, tmp_path, ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP="1")
    ids: list[str] = []
    removed: set[str] = set()
    async with queue_of(env) as (store, queues):
        for turn in range(rounds(2, 20)):
            step = ("on_move_begun", "on_rows_stored")[turn % 2]
            added = [f"m{turn:03d}x{number:03d}" for number in range(100)]
            await asyncio.gather(*(store.add(QUEUE, each, DID, b"1") for each in added))
            ids += added
            dying = RoleProcess(["-m", "tests.faults.pickup_persister", step], env)
            async with dying as process:
                assert await asyncio.to_thread(process.wait, PATIENCE_S) == -signal.SIGKILL
            # Some are acknowledged while their move is interrupted.
            some = random.Random(turn).sample(sorted(set(ids) - removed), 40)
            assert await queues.remove(QUEUE, some) == 40
            removed |= set(some)
            assert await queues.count(QUEUE, "") == len(ids) - len(removed)
            assert await queues.count(QUEUE, DID) == len(ids) - len(removed)
        async with RoleProcess(["-m", "tests.faults.pickup_persister"], env):

            async def all_moved() -> bool:
                figures = await store.queue_status(QUEUE)
                return figures is not None and figures.archived == len(ids) - len(removed)

            await eventually(all_moved, PATIENCE_S)
        found: list[str] = []
        while taken := await take(queues, QUEUE, "", 97, 1_000_000):
            found += [each.id for each in taken]
        print(f"\n{len(ids)} added, {len(removed)} acknowledged, {len(found)} left, in order")
        assert found == [each for each in ids if each not in removed]


@asynccontextmanager
async def queue_of(env: dict[str, str]) -> AsyncIterator[tuple[PickupStore, PickupQueues]]:
    """A reader of the queue without a persister; it completes the archive counts itself."""
    settings = load(
        redis_url=env["ANGARIUM_REDIS_URL"],
        prefix=env["ANGARIUM_PREFIX"],
        database_url=env["ANGARIUM_DATABASE_URL"],
    )
    async with Runtime.open(settings) as runtime:
        store = PickupStore(runtime)
        archive = await MessageArchive.open(settings.database_url, settings.prefix)
        try:
            await store.moves.write_counts(0, [], last=True)
            yield store, PickupQueues(store, archive)
        finally:
            await archive.close()


async def test_a_gateway_paused_past_its_lease_keeps_only_sessions_that_nobody_replaced(
    pair: Pair,
) -> None:
    paused, awake = pair.one, pair.two
    paused_got, awake_got = Got(), Got()
    async with (
        PickupClient(url_of(paused), on_messages=paused_got) as old,
        PickupClient(url_of(awake), on_messages=awake_got) as new,
    ):
        for turn in range(rounds(1, 10)):
            await _pause_once(turn, paused.pid, (old, paused_got), (new, awake_got))


async def _pause_once(
    turn: int, paused_pid: int, before: tuple[PickupClient, Got], after: tuple[PickupClient, Got]
) -> None:
    (old, paused_got), (new, awake_got) = before, after
    moved, kept = f"moved{turn}", f"kept{turn}"
    await old.add_live_session(moved, "s1")
    await old.add_live_session(kept, "s1")
    os.kill(paused_pid, signal.SIGSTOP)
    try:
        await eventually(lambda: _is_offline(new, moved), PATIENCE_S)
        await new.add_live_session(moved, "s2")
        first = await new.add_message(moved, [DID], 1)
        waiting = await new.add_message(kept, [DID], 1)
        await eventually(lambda: first in awake_got.ids, PATIENCE_S)
    finally:
        os.kill(paused_pid, signal.SIGCONT)
    await eventually(lambda: waiting in paused_got.ids, PATIENCE_S)
    assert await new.get_live_session(kept)
    # A message added at the old gateway goes to the session at the new one.
    second = await old.add_message(moved, [DID], 2)
    await eventually(lambda: second in awake_got.ids, PATIENCE_S)
    assert not {first, second} & set(paused_got.ids)
    assert waiting not in awake_got.ids
    await new.remove_messages(moved, [first, second])
    await old.remove_messages(kept, [waiting])
    assert await new.get_available_message_count(kept) == 0


class Got:
    """Collects the ids that a client received."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def __call__(self, delivery: Delivery) -> None:
        self.ids += [message.id for message in delivery.messages]


async def _is_offline(client: PickupClient, name: str) -> bool:
    return not await client.get_live_session(name)


async def test_recipients_who_come_and_go_get_everything_in_order(pair: Pair) -> None:
    recipients, duration_s = rounds(100, 1_000), rounds(3, 60)
    await RoamingRecipients([url_of(pair.one), url_of(pair.two)], recipients, duration_s).run()


class RoamingRecipient:
    """A recipient whose socket is aborted at random and who then connects to any gateway."""

    def __init__(self, name: str, all_of_them: RoamingRecipients) -> None:
        self.name = name
        self.numbers: list[int] = []
        self._all = all_of_them
        self._acknowledging: asyncio.Queue[list[str]] = asyncio.Queue()

    def take(self, delivery: Delivery) -> None:
        now = time.monotonic()
        for message in delivery.messages:
            number = message.encrypted_message
            if number not in self.numbers:
                self.numbers.append(number)
                self._all.received += 1
                self._all.history.received(f"{self.name}-{number}", self.name)
                self._all.latency_ms.append((now - self._all.sent_at[self.name, number]) * 1000)
        self._acknowledging.put_nowait([message.id for message in delivery.messages])

    async def live(self, urls: list[str], stay_s: float) -> None:
        rng, visit = random.Random(self.name), 0
        while not self._all.done.is_set():
            visit += 1
            async with PickupClient(rng.choice(urls), on_messages=self.take) as client:
                await client.add_live_session(self.name, f"s{visit}")
                self._all.ready.add(self.name)
                acknowledging = asyncio.create_task(self._acknowledge(client))
                await self._until_cut(rng.expovariate(1 / stay_s))
                acknowledging.cancel()
                if not self._all.done.is_set():
                    # Aborted: there is no close frame.
                    client.reconnect()
                    self._all.cuts += 1

    async def _until_cut(self, seconds: float) -> None:
        over, done = self._all.over, self._all.done
        try:
            async with asyncio.timeout(seconds):
                await over.wait()
        except TimeoutError:
            return
        await done.wait()

    async def _acknowledge(self, client: PickupClient) -> None:
        while True:
            ids = await self._acknowledging.get()
            try:
                await client.remove_messages(self.name, ids)
            except (AngariumError, TimeoutError):
                return  # the socket was aborted, so they come again


class RoamingRecipients:
    def __init__(self, urls: list[str], count: int, duration_s: float) -> None:
        self.urls = urls
        self.duration_s = duration_s
        self.history = History()
        self.latency_ms: list[float] = []
        self.sent_at: dict[tuple[str, int], float] = {}
        self.cuts = self.sent = self.received = 0
        self.ready: set[str] = set()
        self.over, self.done = asyncio.Event(), asyncio.Event()
        self._recipients = [RoamingRecipient(f"r{number}", self) for number in range(count)]

    async def run(self) -> None:
        count = len(self._recipients)
        async with (
            PickupClient(self.urls[0]) as one,
            PickupClient(self.urls[1]) as two,
            asyncio.TaskGroup() as tasks,
        ):
            for each in self._recipients:
                tasks.create_task(each.live(self.urls, stay_s=self.duration_s / 3))
            await eventually(lambda: len(self.ready) == count, PATIENCE_S)
            ends = time.monotonic() + self.duration_s
            writing = [
                tasks.create_task(self._write([one, two], start, ends)) for start in range(8)
            ]
            for task in writing:
                await task
            self.over.set()
            await eventually(lambda: self.received >= self.sent, PATIENCE_S)

            async def all_acknowledged() -> bool:
                figures = [one.get_available_message_count(each.name) for each in self._recipients]
                return sum(await asyncio.gather(*figures)) == 0

            await eventually(all_acknowledged, PATIENCE_S)
            self.done.set()
        self._report()

    async def _write(self, writers: list[PickupClient], start: int, ends: float) -> None:
        number = 0
        while time.monotonic() < ends:
            number += 1
            for each in self._recipients[start::8]:
                self.sent_at[each.name, number] = time.monotonic()
                self.history.attempted(f"{each.name}-{number}", each.name)
                await writers[number % 2].add_message(each.name, [DID], number)
                self.history.sent(f"{each.name}-{number}", each.name)
                self.sent += 1
            await asyncio.sleep(0.02)

    def _report(self) -> None:
        verdict = self.history.check()
        cuts = statistics.quantiles(self.latency_ms, n=100)
        print(
            f"\n{verdict}\n{len(self._recipients):,} recipients, {self.cuts:,} sockets cut\n"
            f"added → received: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms"
        )
        assert verdict.ok, str(verdict)
        assert self.cuts > 0
        for each in self._recipients:
            assert each.numbers == sorted(each.numbers), each.name
        assert LONG or verdict.operations > 0
