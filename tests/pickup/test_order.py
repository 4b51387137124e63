"""One queue with messages of 1 byte to 512 KiB, through Redis, the database and back, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from angarium.pickup.client import PickupClient
from angarium.pickup.client_messages import QueuedMessage
from angarium.pickup.gateway import Gateway
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.pickup.harness import DID, QUEUE, Inbox, connected, gateway, sqlite, url_of

MESSAGES = rounds(2_000, 50_000)
# Bytes of JSON; the largest one is exactly the limit of a message.
SIZES = (1, 10, 1_000, 100, 2, 70_000, 1, 300, 262_144, 5, 512 * 1024)
LARGE_EVERY = MESSAGES // 25


def payload(number: int) -> str | int:
    """Most are small, so that the whole queue stays below its limit of bytes."""
    large = number % LARGE_EVERY < len(SIZES)
    size = SIZES[number % LARGE_EVERY] if large else 1 + number % 50
    return number % 10 if size == 1 else "x" * (size - 2)


def read(messages: Iterable[QueuedMessage]) -> list[tuple[str, str | int]]:
    return [(each.id, each.encrypted_message) for each in messages]


async def add(client: PickupClient, first: int, end: int) -> list[tuple[str, str | int]]:
    """Calls of one client arrive in their order. Returns each id with its payload."""
    added: list[tuple[str, str | int]] = []
    for start in range(first, end, 50):
        some = [payload(number) for number in range(start, min(start + 50, end))]
        ids = await asyncio.gather(*(client.add_message("c1", [DID], each) for each in some))
        added += zip(ids, some, strict=True)
    return added


async def fill(service: Gateway, client: PickupClient) -> list[tuple[str, str | int]]:
    """Half of the messages are in the database, the other half in Redis."""
    added = await add(client, 0, MESSAGES // 2)

    async def archived() -> bool:
        found = await service.store.queue_status(QUEUE)
        return found is not None and found.archived == len(added)

    await eventually(archived, 300)
    return added + await add(client, MESSAGES // 2, MESSAGES)


@pytest.mark.timeout(rounds(300, 3_600))
async def test_takes_give_every_message_once_and_in_order(redis_url: str, tmp_path: Path) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), threshold_timestamp=2_000) as service,
        connected(service) as (client, _),
    ):
        added = await fill(service, client)
        taken: list[tuple[str, str | int]] = []
        while found := await client.take_from_queue("c1"):
            taken += read(found)
            await client.remove_messages("c1", [each.id for each in found])
        assert taken == added
        assert await client.get_available_message_count("c1") == 0


@pytest.mark.timeout(rounds(300, 3_600))
async def test_a_session_that_takes_over_gets_every_message_in_order(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), threshold_timestamp=2_000) as service,
        connected(service) as (sender, _),
    ):
        added = await fill(service, sender)
        inbox = Inbox()
        async with PickupClient(url_of(service), on_messages=inbox) as first:
            await first.add_live_session("c1", "s1")
            await eventually(lambda: len(inbox.ids) > min(MESSAGES // 4, 5_000), 120)
        seen = [pair for each in inbox.deliveries for pair in read(each.messages)]
        assert seen == added[: len(seen)]
        received: list[tuple[str, str | int]] = []
        async with PickupClient(url_of(service)) as second:
            await second.add_live_session("c1", "s2")
            async for delivery in second.deliveries():
                received += read(delivery.messages)
                await second.remove_messages("c1", [each.id for each in delivery.messages])
                if len(received) >= MESSAGES:
                    break
        assert received == added
