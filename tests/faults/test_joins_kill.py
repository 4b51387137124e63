"""Conversations joined with pickup, while processes of the role `conversations` are killed.

Replies go to recipients who are connected and remove each message. A process dies somewhere between
taking a reply, putting it into pickup, noting that it was sent, and hearing its ACK; another one
goes on. Each reply must reach its recipient, once, in the order of the requests.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from angarium.client import Client
from angarium.pickup.client import Delivery, PickupClient
from angarium.runtime.errors import AngariumError
from angarium.runtime.journal import Journal, decode_entry
from angarium.settings import load
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess

KILLS = rounds(2, 40)
PEOPLE = rounds(10, 40)
REQUESTS = rounds(6, 100)
REPLIES = 2
PATIENCE_S = rounds(90, 1_800)
SEED = random.randrange(2**32)
ROLE_SETTINGS = {
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL": "2000",
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL_MARGIN": "500",
    "ANGARIUM_CONVERSATIONS__MESSAGE_TTL": "3600000",
    "ANGARIUM_CONVERSATIONS__SENT_MESSAGE_TTL": "1000",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGES_INTERVAL": "200",
    "ANGARIUM_CONVERSATIONS__AWAITED_FIRST_TURN": "200",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGES_BY_TURN": "200",
    "ANGARIUM_PICKUP__PORT": "0",
}


class Recipients:
    """All of them at one socket; what came is removed, and its order remembered."""

    def __init__(self) -> None:
        self.got: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue()

    def hear(self, delivery: Delivery) -> None:
        for message in delivery.messages:
            self.got[delivery.connection_id].setdefault(message.id, message.encrypted_message)
        self._queue.put_nowait(delivery)

    async def remove(self, client: PickupClient) -> None:
        while True:
            delivery = await self._queue.get()
            ids = [each.id for each in delivery.messages]
            try:
                await client.remove_messages(delivery.connection_id, ids)
            except AngariumError:
                self._queue.put_nowait(delivery)


async def kill_some(env: dict[str, str], stack: AsyncExitStack) -> None:
    chance = random.Random(SEED)
    running = [
        await stack.enter_async_context(RoleProcess(["serve", "conversations"], env))
        for _ in range(2)
    ]
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0.2, 1.5))
        victim = running.pop(chance.randrange(2))
        victim.kill()
        fresh = RoleProcess(["serve", "conversations"], env, deadline_s=90)
        running.append(await stack.enter_async_context(fresh))


async def ask_and_reply(client: Client, person: str) -> None:
    for request in range(REQUESTS):
        await client.conversations.request(person, f"{person}-{request}")
    for request in range(REQUESTS):
        for reply in range(REPLIES):
            name = f"{person}-{request}"
            await client.conversations.reply(person, name, f"{name}-{reply}", f"{request}-{reply}")
            await asyncio.sleep(0.02)


async def counted(client: Client) -> dict[tuple[str, str], int]:
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    for entry_id, fields in await Journal(client.runtime).read(0, entries_max=1_000_000):
        entry = decode_entry(entry_id, fields)
        for event in entry.events:
            counts[f"{entry.module} {event.event}", event.subject] += 1
    return counts


@pytest.mark.faults
@pytest.mark.timeout(PATIENCE_S + 120)
async def test_each_reply_is_picked_up_once_and_in_order(redis_url: str, tmp_path: Path) -> None:
    prefix = f"t{secrets.token_hex(4)}:"
    env: dict[str, str] = {
        **ROLE_SETTINGS,
        "ANGARIUM_REDIS_URL": redis_url,
        "ANGARIUM_PREFIX": prefix,
        "ANGARIUM_HOME": str(tmp_path),
    }
    people, recipients = [f"p{number}" for number in range(PEOPLE)], Recipients()
    given: dict[str, Any] = {"redis_url": redis_url, "prefix": prefix, "home": tmp_path}
    settings = load(**given, conversations={"message_ttl": 3_600_000})
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            RoleProcess(["serve", "gateway"], env, deadline_s=90)
        )
        url = f"ws://127.0.0.1:{gateway.ports['gateway']}/"
        client = await stack.enter_async_context(Client(settings))
        socket = await stack.enter_async_context(PickupClient(url, on_messages=recipients.hear))
        for person in people:
            await socket.add_live_session(person, "s")
        wanted = PEOPLE * REQUESTS * REPLIES
        async with asyncio.TaskGroup() as group:
            removing = group.create_task(recipients.remove(socket))
            for person in people:
                group.create_task(ask_and_reply(client, person))
            await kill_some(env, stack)

            async def all_removed() -> bool:
                counts = await counted(client)
                return sum(event == "pickup delivered" for event, _ in counts) >= wanted

            await eventually(all_removed, PATIENCE_S)
            removing.cancel()
        counts = await counted(client)
    doubled = [each for each, n in counts.items() if n > 1 and each[0].startswith("pickup acc")]
    doubled += [each for each, n in counts.items() if n > 1 and each[0] == "pickup delivered"]
    expected = [f"{request}-{reply}" for request in range(REQUESTS) for reply in range(REPLIES)]
    out_of_order = [p for p in people if list(recipients.got[p].values()) != expected]
    acknowledged = sum(event == "conversations delivered" for event, _ in counts)
    print(
        f"seed {SEED}: {wanted} replies, {KILLS} kills, {len(doubled)} doubled, "
        f"{len(out_of_order)} recipients out of order, {acknowledged} ended in their conversation"
    )
    assert not doubled
    assert not out_of_order
