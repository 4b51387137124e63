"""F26: replies to absent recipients are stored in pickup at once, in order.

They waited for an ACK each, so they left one per `sent_message_ttl`, and most of them expired.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from angarium.client import Client
from angarium.client.application import Angarium
from angarium.server.reply_to_pickup import build
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.server.test_reply_to_pickup import mark_archive_counted

DEADLINE_S = 200.0
# So long that nothing in this test ends by it.
PATIENT: dict[str, Any] = {"conversations": {"sent_message_ttl": 600_000}}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("recipients", "each"), [(100, 10), (1, rounds(200, 10_000))], ids=["100 recipients", "one"]
)
async def test_replies_to_absent_recipients_are_in_pickup_at_once_and_in_order(
    any_redis_url: str, no_settings: object, recipients: int, each: int
) -> None:
    limits = {"pickup_queue_messages_max": 20_000}
    async with sample_runtime(any_redis_url, limits=limits, **PATIENT) as runtime:
        await mark_archive_counted(runtime)
        client = Client(runtime=runtime)
        names = [f"away-{number}" for number in range(recipients)]
        for name in names:
            await client.conversations.request(name, f"{name}-q")
        for number in range(each):
            await asyncio.gather(
                *(client.conversations.reply(n, f"{n}-q", f"{n}-{number}", number) for n in names)
            )
        role = build(runtime, Angarium())
        began_s = time.monotonic()
        await role.start()
        try:

            async def all_stored() -> bool:
                return await role.manager.in_flight() == (0, 0)

            await eventually(all_stored, DEADLINE_S)
            print(f"{recipients * each} replies stored in {time.monotonic() - began_s:.2f} s")
            for name in names:
                stored = await payloads(client, name)
                assert stored == [str(number) for number in range(each)]
        finally:
            await role.stop(5)
            await client.close()


async def payloads(client: Client, name: str) -> list[str]:
    found: list[str] = []
    while some := await client.pickup.take(name):
        found += [message.payload.decode() for message in some]
        await client.pickup.remove(name, [message.id for message in some])
    return found
