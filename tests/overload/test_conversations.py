"""The limits of conversations: replies in Redis, in the memory queue, and sends that hang."""

from __future__ import annotations

import asyncio

import pytest

from angarium.conversations.model import OutgoingReply
from angarium.conversations.script_values import NewReply
from angarium.runtime.application import Application
from angarium.runtime.errors import Overloaded
from tests.conversations.harness import DEADLINE_S, harness, instance, task
from tests.kit.eventually import eventually


@pytest.mark.limit("conversation_replies_max")
async def test_a_conversation_full_of_replies_takes_more_when_some_have_ended(
    redis_url: str,
) -> None:
    async with harness(redis_url, limits={"conversation_replies_max": 2}) as it:
        await it.request("A")
        replies = [await it.reply("A", name) for name in ("a1", "a2")]
        with pytest.raises(Overloaded, match="conversation_replies_max"):
            await it.store.accept_reply(NewReply("c", "A", "a3", 2, b"{}", "corr", "near"))
        assert await it.manager.cancel_group(replies[0], "no") == 2
        await it.request("B")
        await it.reply("B", "b1")


class GatedSender:
    """Sends replies once its gate is open."""

    def __init__(self) -> None:
        self.app = Application()
        self.gate = asyncio.Event()
        self.begun: list[str] = []
        self.sent: list[str] = []
        self.app.reply_sender()(self.send)

    async def send(self, reply: OutgoingReply) -> None:
        self.begun.append(reply.response_id)
        await self.gate.wait()
        self.sent.append(reply.response_id)


@pytest.mark.limit("conversation_queue_replies_max")
async def test_a_full_memory_queue_leaves_replies_in_redis(redis_url: str) -> None:
    sender, names = GatedSender(), [f"c{number}" for number in range(20)]
    few = {"conversation_queue_replies_max": 5}
    async with instance(redis_url, sender.app, limits=few) as service:
        for name in names:
            await service.request(name, name, "whatsapp")
        accepted = [await service.reply(name, name, f"r-{name}", task()) for name in names]
        assert [each.held for each in accepted] == [True] * 5 + [False] * 15
        assert len(service.queue) == 5
        sender.gate.set()
        await eventually(lambda: len(sender.sent) == 20, DEADLINE_S)
    assert sorted(sender.sent) == sorted(f"r-{name}" for name in names)


@pytest.mark.limit("conversation_slow_sends_max")
async def test_sends_that_hang_beyond_the_limit_keep_their_place(redis_url: str) -> None:
    """Two hang beside the two that may run; others wait until the client answers."""
    sender, names = GatedSender(), [f"c{number}" for number in range(10)]
    rules = {"concurrent": 2, "concurrent_factor": 1.0}
    few = {"conversation_slow_sends_max": 2}
    async with instance(redis_url, sender.app, conversations=rules, limits=few) as service:
        for name in names:
            await service.request(name, name, "whatsapp")
            await service.reply(name, name, f"r-{name}", task())
        await eventually(lambda: len(sender.begun) == 4, DEADLINE_S)
        await eventually(lambda: service.queue.metrics.slow == 2, DEADLINE_S)
        assert len(sender.begun) == 4
        sender.gate.set()
        await eventually(lambda: len(sender.sent) == 10, DEADLINE_S)
