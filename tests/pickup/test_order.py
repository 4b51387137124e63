"""One queue with messages of every size, through Redis and the database and back, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from angarium.pickup.client import PickupClient
from angarium.pickup.gateway import Gateway
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.pickup.harness import DID, QUEUE, Inbox, connected, gateway, sqlite, url_of

MESSAGES = rounds(2_000, 50_000)
# With its quotes, the largest one is exactly the limit of a message.
SIZES = (1, 10, 1_000, 100, 2, 70_000, 1, 300, 262_144, 5, 512 * 1024 - 2)
LARGE_EVERY = MESSAGES // 25


def payload(number: int) -> str:
    """Most are small, so that the whole queue stays below its limit of bytes."""
    large = number % LARGE_EVERY < len(SIZES)
    return "x" * (SIZES[number % LARGE_EVERY] if large else 1 + number % 50)


async def add(client: PickupClient, first: int, end: int) -> list[str]:
    """Calls of one client arrive in their order."""
    ids: list[str] = []
    for start in range(first, end, 50):
        some = range(start, min(start + 50, end))
        ids += await asyncio.gather(*(client.add_message("c1", [DID], payload(n)) for n in some))
    return ids


async def fill(service: Gateway, client: PickupClient) -> list[str]:
    """Half of the messages are in the database, the other half in Redis."""
    ids = await add(client, 0, MESSAGES // 2)

    async def archived() -> bool:
        found = await service.store.queue_status(QUEUE)
        return found is not None and found.archived == len(ids)

    await eventually(archived, 300)
    return ids + await add(client, MESSAGES // 2, MESSAGES)


@pytest.mark.timeout(rounds(300, 3_600))
async def test_takes_give_every_message_once_and_in_order(redis_url: str, tmp_path: Path) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), threshold_timestamp=2_000) as service,
        connected(service) as (client, _),
    ):
        ids = await fill(service, client)
        taken: list[str] = []
        while found := await client.take_from_queue("c1"):
            taken += [each.id for each in found]
            await client.remove_messages("c1", [each.id for each in found])
        assert taken == ids
        assert await client.get_available_message_count("c1") == 0


@pytest.mark.timeout(rounds(300, 3_600))
async def test_a_session_that_takes_over_gets_every_message_in_order(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        gateway(redis_url, sqlite(tmp_path), threshold_timestamp=2_000) as service,
        connected(service) as (sender, _),
    ):
        ids = await fill(service, sender)
        inbox = Inbox()
        async with PickupClient(url_of(service), on_messages=inbox) as first:
            await first.add_live_session("c1", "s1")
            await eventually(lambda: len(inbox.ids) > min(MESSAGES // 4, 5_000), 120)
        seen = list(inbox.ids)
        assert seen == ids[: len(seen)]
        received: list[str] = []
        async with PickupClient(url_of(service)) as second:
            await second.add_live_session("c1", "s2")
            async for delivery in second.deliveries():
                some = [each.id for each in delivery.messages]
                received += some
                await second.remove_messages("c1", some)
                if len(received) >= MESSAGES:
                    break
        assert received == ids
