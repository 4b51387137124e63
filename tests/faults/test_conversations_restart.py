"""Redis killed and restarted on its append-only file: the role goes on by itself."""

from __future__ import annotations

import asyncio

import pytest

from angarium.conversations.compat import MessageSyncManager
from angarium.conversations.settings import ConversationsSettings
from angarium.conversations.store import ConversationStore
from tests.conversations.harness import task
from tests.conversations.receiver import receiver
from tests.faults.profile import rounds
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
PATIENT = {"unavailable_timeout_ms": 30_000}
# What the role had in hand when Redis died comes back when its claim is over: soon, here.
SOON = {
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL": "2000",
    "ANGARIUM_CONVERSATIONS__MAX_PENDING_TTL_MARGIN": "500",
    "ANGARIUM_CONVERSATIONS__AWAITED_MESSAGES_INTERVAL": "500",
    "ANGARIUM_CONVERSATIONS__AWAITED_FIRST_TURN": "1000",
}


async def test_the_role_sends_again_after_every_restart_of_redis() -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        async with (
            sample_runtime(
                server.url,
                durability="local",
                redis=PATIENT,
                conversations={"max_pending_ttl": 2_000},
            ) as runtime,
            receiver() as client,
        ):
            env = {
                **SOON,
                "ANGARIUM_REDIS_URL": server.url,
                "ANGARIUM_PREFIX": runtime.settings.prefix,
                "ANGARIUM_DURABILITY": "local",
                "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
            }
            manager = MessageSyncManager(
                ConversationStore(runtime), runtime.settings.group(ConversationsSettings)
            )
            async with RoleProcess(["serve", "conversations"], env) as role:
                for number in range(rounds(2, 20)):
                    name = f"c{number}"
                    await manager.create_conversation_register("web", name, name)
                    for index in range(3):
                        await manager.mark_pending_conversation_register(
                            "", name, name, task(callback_url=client.url), "", f"{name}.{index}"
                        )
                    # Before some of them left, perhaps: what was accepted must leave anyway.
                    server.kill()
                    await asyncio.to_thread(server.restart)
                    wanted = [f"{name}.{index}" for index in range(3)]
                    await client.wait_for_all(wanted)
                    first = dict.fromkeys(each for each in client.ids if each in wanted)
                    assert list(first) == wanted
                assert role.alive
                assert role.terminate() == 0
