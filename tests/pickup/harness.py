"""Harness of the pickup tests: one process's stores with a fake clock, and whole gateways."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from angarium.pickup.archive import MessageArchive
from angarium.pickup.client import Delivery, PickupClient
from angarium.pickup.gateway import Gateway
from angarium.pickup.model import StoredMessage, messages_of
from angarium.pickup.persister import Persister
from angarium.pickup.queues import PickupQueues
from angarium.pickup.store import PickupStore, TakeLimits
from angarium.pickup.sweeper import Sweeper
from angarium.runtime.journal import Event, Journal, decode_entry
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import status_of
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime, sample_settings

THRESHOLD_S = 60
GRACE_S = 5
SENDING_S = 60
LEASE_S = 10
DID, OTHER_DID = "did:example:anna", "did:example:bert"
QUEUE = "default:c1"


@dataclass
class PickupHarness:
    """The stores of one process. Several on one Redis and one database act as several gateways."""

    runtime: Runtime
    store: PickupStore
    archive: MessageArchive
    queues: PickupQueues
    persisters: list[Persister]
    clock: FakeClock
    status: str = ""
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def add(
        self, queue: str = QUEUE, did: str = DID, payload: bytes = b'"x"', push: bytes = b""
    ) -> str:
        message_id = f"m{next(self.numbers):06d}{secrets.token_hex(2)}"
        status = status_of(await self.store.add(queue, message_id, did, payload, push))
        assert status in ("sent", "here", "elsewhere", "offline"), status
        self.status = status
        return message_id

    async def add_many(self, count: int, queue: str = QUEUE) -> list[str]:
        return [await self.add(queue) for _ in range(count)]

    async def take(self, limit: int = 100, queue: str = QUEUE, did: str = "") -> list[str]:
        return ids_of(await take(self.queues, queue, did, limit, 1_000_000))

    async def count(self, queue: str = QUEUE, did: str = "") -> int:
        return await self.queues.count(queue, did)

    async def open(self, queue: str = QUEUE, session: str = "s1", socket: str = "k1") -> str:
        for partition in self.store.partitions:
            await self.store.sessions.renew_gateway(partition)
        reply = await self.store.sessions.open(queue, session, socket)
        assert status_of(reply) in ("opened", "kept"), reply
        return str(reply[1].decode())

    async def pull(self, term: str, queue: str = QUEUE, *, resend: bool = False) -> list[str]:
        """Fetch like a gateway: archived messages first, then Redis, until nothing is pending."""
        found: list[StoredMessage] = []
        seen = ""
        while True:
            reply = await self.store.pull(queue, term, resend=resend, seen=seen)
            resend = False
            status = status_of(reply)
            if status == "archived":
                seen = reply[1].decode()
                claimed = await self.queues.pull_archived(queue, term, reply[2])
                found += claimed.messages
                seen = "" if claimed.messages or claimed.stale else seen
            elif status == "pulled":
                found += messages_of(reply[2:])
                if not reply[1]:
                    return ids_of(found)
            elif status == "in_grace":
                return ids_of(found)
            else:
                assert status == "busy", status

    async def persist(self) -> int:
        moved = 0
        for persister in self.persisters:
            while True:
                done = await persister.run_once()
                moved += done.messages
                if not done.again:
                    break
        return moved

    async def sweep(self) -> int:
        released = 0
        for partition in self.store.partitions:
            while True:
                done = await Sweeper(self.store, partition).run_once()
                released += done.released
                if not done.again:
                    break
        return released

    async def archive_all(self) -> int:
        await self.clock.advance(THRESHOLD_S + 1)
        return await self.persist()

    async def event_names(self) -> list[str]:
        return [event.event for event in await self.events()]

    async def events(self) -> list[Event]:
        found: list[Event] = []
        for partition in self.store.partitions:
            for entry_id, fields in await Journal(self.runtime).read(partition, entries_max=10_000):
                entry = decode_entry(entry_id, fields)
                if entry.module == "pickup":
                    found += entry.events
        return found


async def take(
    queues: PickupQueues, queue: str, did: str, messages_max: int, bytes_max: int
) -> list[StoredMessage]:
    """A take whose byte limit also holds for the first message."""
    return (await queues.take(queue, did, TakeLimits(messages_max, bytes_max, bytes_max))).messages


def ids_of(messages: Sequence[StoredMessage]) -> list[str]:
    return [each.id for each in messages]


@asynccontextmanager
async def harness(
    redis_url: str,
    database_url: str,
    *,
    clock: FakeClock | None = None,
    actor: str | None = None,
    send_at_once: bool = False,
    **overrides: Any,
) -> AsyncIterator[PickupHarness]:
    clock = clock or FakeClock()
    async with sample_runtime(redis_url, clock=clock, actor=actor, **overrides) as runtime:
        store = PickupStore(runtime, send_at_once=send_at_once)
        archive = await MessageArchive.open(database_url, runtime.settings.prefix)
        try:
            persisters = [
                Persister(store, archive, partition, LEASE_S * 1000)
                for partition in store.partitions
            ]
            pickup = PickupHarness(
                runtime, store, archive, PickupQueues(store, archive), persisters, clock
            )
            await pickup.persist()
            yield pickup
        finally:
            await archive.close()


def sqlite(folder: Path) -> str:
    return f"sqlite:///{folder}/pickup.db"


# Gateways in this process


@asynccontextmanager
async def gateway(
    redis_url: str,
    database_url: str,
    *,
    prefix: str | None = None,
    limits: dict[str, int] | None = None,
    **pickup: Any,
) -> AsyncIterator[Gateway]:
    """A gateway on a free port with the real clock and short times."""
    given = {"port": 0, "grace_ms": 200, "lease_ms": 3_000, **pickup}
    overrides: dict[str, Any] = {"pickup": given, "database_url": database_url}
    overrides |= {} if prefix is None else {"prefix": prefix}
    overrides |= {} if limits is None else {"limits": limits}
    if database_url.startswith("sqlite:///"):
        overrides["home"] = Path(database_url.removeprefix("sqlite:///")).parent
    settings = sample_settings(redis_url, **overrides)
    async with Runtime.open(settings) as runtime:
        service = Gateway(runtime)
        await service.start()
        try:
            yield service
        finally:
            await service.stop(10)


def url_of(service: Gateway) -> str:
    return f"ws://127.0.0.1:{service.ports['gateway']}/"


class Inbox:
    """Collects the deliveries of a client."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    def __call__(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    @property
    def ids(self) -> list[str]:
        return [message.id for each in self.deliveries for message in each.messages]

    async def has(self, *ids: str) -> None:
        await eventually(lambda: set(ids) <= set(self.ids), 30)


@asynccontextmanager
async def connected(service: Gateway, **options: Any) -> AsyncIterator[tuple[PickupClient, Inbox]]:
    inbox = Inbox()
    async with PickupClient(url_of(service), on_messages=inbox, **options) as client:
        yield client, inbox


async def all_done(*waiting: Any) -> list[Any]:
    return list(await asyncio.gather(*waiting))
