"""Order at full size: replies of one moment, replies far apart, and a very long conversation.

Two processes' worth of the role share a client, so that one list tells in which order everything
left. Nothing may depend on which of them holds a reply.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import OutgoingReply
from angarium.runtime.application import Application
from tests.conversations.harness import DEADLINE_S, Client, Harness, instance, task
from tests.faults.profile import rounds
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

OF_ONE_MOMENT = rounds(1_000, 10_000)
LONG_CONVERSATION = rounds(2_000, 100_000)
APART_MS = rounds(1_000, 11_000)
QUICK = {"awaited_first_turn": 1_000, "awaited_messages_interval": 50}


@asynccontextmanager
async def pair(
    redis_url: str, app: Application, **more: int
) -> AsyncIterator[tuple[ConversationsInstance, ConversationsInstance]]:
    quick = {**QUICK, **more}
    async with instance(redis_url, app, conversations=quick) as one:
        prefix = one.runtime.settings.prefix
        async with instance(redis_url, app, prefix=prefix, conversations=quick) as other:
            yield one, other


async def test_replies_of_one_moment_are_sent_in_the_order_they_were_made(
    any_redis_url: str,
) -> None:
    client = Client()
    async with pair(any_redis_url, client.app, message_ttl=600_000) as both:
        await both[0].request("c", "G", "whatsapp")
        await both[1].request("c", "A", "whatsapp")
        began = time.monotonic()
        for number, bridge in zip(range(OF_ONE_MOMENT), itertools.cycle(both), strict=False):
            await bridge.reply("c", "A", f"a{number}", task(), response_timestamp=1_000)
        assert client.sent == []
        await both[0].reply("c", "G", "g", task(), response_timestamp=1_000)
        await eventually(lambda: len(client.sent) > OF_ONE_MOMENT, 10 * DEADLINE_S)
        assert client.sent == ["g", *(f"a{number}" for number in range(OF_ONE_MOMENT))]
        took_s = time.monotonic() - began
    print(f"\n{OF_ONE_MOMENT} replies of one moment left in order, {took_s:.1f} s in all")


@pytest.mark.parametrize("gate", [True, False])
async def test_replies_a_millisecond_and_eleven_seconds_apart_are_sent_in_order(
    any_redis_url: str, gate: bool
) -> None:
    """By Redis' own clock. Behind a gate they all wait; without one each leaves when it is made."""
    client = Client()
    more = {"message_ttl": 60_000} if gate else {}
    async with pair(any_redis_url, client.app, **more) as (one, other):
        for request in "GAB" if gate else "A":
            await one.request("c", request, "whatsapp")
        if gate:
            await other.reply("c", "B", "b", task())
        pauses_ms = [0, 1, APART_MS, 1]
        for number, (pause_ms, bridge) in enumerate(zip(pauses_ms, [one, other] * 2, strict=True)):
            await past(one, pause_ms)
            await bridge.reply("c", "A", f"a{number}", task())
        if gate:
            assert client.sent == []
            await other.reply("c", "G", "g", task())
        made = [f"a{number}" for number in range(4)]
        expected = ["g", *made, "b"] if gate else made
        await client.wait(len(expected))
        assert client.sent == expected


async def past(bridge: ConversationsInstance, ms: int) -> None:
    """Until so much of Redis' time is over."""

    async def now_ms() -> int:
        seconds, micros = await bridge.runtime.redis.call("TIME", key="c")
        return int(seconds) * 1000 + int(micros) // 1000

    until_ms = await now_ms() + ms

    async def is_over() -> bool:
        return await now_ms() >= until_ms

    await eventually(is_over, DEADLINE_S)


class Probe:
    """Other people's conversations: one request and one reply each, and how long that takes."""

    def __init__(self) -> None:
        self.app = Application()
        self.sent: list[str] = []
        self._left = asyncio.Event()
        self._numbers = itertools.count()
        self.app.reply_sender()(self.send)

    async def send(self, reply: OutgoingReply) -> None:
        if reply.origin == "probe":
            self._left.set()
        else:
            self.sent.append(reply.response_id)

    async def ask(self, bridge: ConversationsInstance) -> float:
        name = f"probe{next(self._numbers)}"
        self._left.clear()
        began = time.monotonic()
        await bridge.request(name, name, "probe")
        await bridge.reply(name, name, name, task())
        async with asyncio.timeout(DEADLINE_S):
            await self._left.wait()
        return (time.monotonic() - began) * 1000


def summary(times_ms: list[float]) -> str:
    ordered = sorted(times_ms)
    p99 = ordered[int(len(ordered) * 0.99)]
    return f"{len(ordered)} asked, median {statistics.median(ordered):.1f} ms, p99 {p99:.1f} ms"


async def test_a_long_conversation_keeps_its_order_and_does_not_slow_others(redis_url: str) -> None:
    probe = Probe()
    async with pair(redis_url, probe.app, message_ttl=600_000) as both:
        one, other = both
        process = Harness(one.runtime, FakeClock())
        alone = [await probe.ask(one) for _ in range(200)]
        await one.request("long", "G", "whatsapp")
        await one.request("long", "L", "whatsapp")
        for start in range(0, LONG_CONVERSATION, 500):
            await asyncio.gather(
                *(process.reply("L", f"l{start + n}", "long", held=False) for n in range(500))
            )
        # Everything of the long one waits for its gate, and memories hold only its beginning.
        await eventually(lambda: len(one.queue) + len(other.queue) > 0, DEADLINE_S)
        waiting = [await probe.ask(one) for _ in range(200)]
        assert len(one.queue) + len(other.queue) <= 64 + 1  # a probe may not be reported yet
        assert probe.sent == []
        began = time.monotonic()
        await one.reply("long", "G", "g", task())
        leaving: list[float] = []
        while len(probe.sent) <= LONG_CONVERSATION:
            leaving.append(await probe.ask(one))
            assert time.monotonic() - began < 10 * DEADLINE_S
        took_s = time.monotonic() - began
    assert probe.sent == ["g", *(f"l{n}" for n in range(LONG_CONVERSATION))]
    print(
        f"\n{LONG_CONVERSATION} replies of one conversation left in order in {took_s:.1f} s"
        f"\nothers, without it: {summary(alone)}"
        f"\nothers, while it waits: {summary(waiting)}"
        f"\nothers, while it leaves: {summary(leaving)}"
    )
