"""Invalid input from clients and broken parts: a defined error; other replies are still sent."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.conversations import keys
from angarium.conversations.errors import AckUnknown, IdRefused, RequestUnknown
from angarium.conversations.instance import ConversationsInstance
from angarium.conversations.model import (
    MinMessageInfo,
    OutgoingReply,
    TaskItem,
    read_message,
    read_task,
)
from angarium.conversations.script_values import read_infos
from angarium.conversations.senders import read_ack_id
from angarium.runtime.application import Application
from tests.conversations.harness import DEADLINE_S, Client, Harness, info, instance, task
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime

QUICK = {"awaited_first_turn": 1_000, "awaited_messages_interval": 50}


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_in_our_keys_are_read_or_skipped(data: bytes) -> None:
    read_infos([data])
    assert read_ack_id(data) is None or isinstance(read_ack_id(data), str)
    # These errors are what the store expects of a task that it can't read.
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        assert isinstance(read_task(data), TaskItem)


@given(st.text(max_size=50), st.text(max_size=50), st.text(max_size=50))
def test_a_member_is_read_back_and_spelled_the_same(rq: str, rs: str, cn: str) -> None:
    member = MinMessageInfo(rq, rs, cn)
    assert MinMessageInfo.read(member.key()) == member
    assert MinMessageInfo.read(member.key()).key() == member.key()


def test_an_empty_hash_is_no_message() -> None:
    assert read_message([]) is None


async def test_an_unknown_ack_is_refused_and_changes_nothing(any_redis_url: str) -> None:
    client = Client(ack=True)
    async with instance(any_redis_url, client.app) as bridge:
        for wrong in ("never", "never", "ack-a1"):
            with pytest.raises(AckUnknown):
                await bridge.acknowledge(wrong)
        with pytest.raises(IdRefused):
            await bridge.acknowledge("")
        with pytest.raises(IdRefused):
            await bridge.acknowledge("x" * 513)


async def test_one_ack_id_for_two_replies_ends_the_first_and_time_ends_the_other(
    redis_url: str,
) -> None:
    app, sent = Application(), list[str]()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> str:
        sent.append(reply.response_id)
        return "same"

    quick = {**QUICK, "sent_message_ttl": 500}
    async with instance(redis_url, app, conversations=quick) as bridge:
        for name in ("x", "y"):
            await bridge.request(name, name, "whatsapp")
            await bridge.reply(name, name, f"{name}1", task())
            await bridge.reply(name, name, f"{name}2", task())
        await eventually(lambda: sorted(sent) == ["x1", "x2", "y1", "y2"], DEADLINE_S)
        await settled(bridge)
        assert [each for each in sent if each[0] == "x"] == ["x1", "x2"]
        assert [each for each in sent if each[0] == "y"] == ["y1", "y2"]


async def test_an_ack_that_comes_twice_is_unknown_the_second_time(any_redis_url: str) -> None:
    client = Client(ack=True)
    async with instance(any_redis_url, client.app) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task())
        await bridge.reply("c", "A", "a2", task())
        await client.wait(1)
        assert await bridge.acknowledge("ack-a1") == "delivered"
        with pytest.raises(AckUnknown):
            await bridge.acknowledge("ack-a1")
        await client.wait(2)
        assert bridge.manager.acknowledged == 1
        assert client.sent == ["a1", "a2"]


async def test_a_reply_to_no_request_or_a_repeated_reply_blocks_no_other(
    any_redis_url: str,
) -> None:
    client = Client()
    quick = {**QUICK, "message_ttl": 200}
    async with instance(any_redis_url, client.app, conversations=quick) as bridge:
        with pytest.raises(RequestUnknown):
            await bridge.reply("c", "never", "n1", task())
        await bridge.request("c", "old", "whatsapp")

        async def is_over() -> bool:
            return await bridge.store.read_request("old", "c") is None

        await eventually(is_over, DEADLINE_S)
        with pytest.raises(RequestUnknown):
            await bridge.reply("c", "old", "o1", task())
        await bridge.request("c", "A", "whatsapp")
        answers = [await bridge.reply("c", "A", "a1", task()) for _ in range(3)]
        assert [each.duplicate for each in answers] == [False, True, True]
        await bridge.reply("c", "A", "a2", task())
        await client.wait(2)
        await settled(bridge)
        assert (await bridge.reply("c", "A", "a1", task())).duplicate
        assert client.sent == ["a1", "a2"]


@pytest.mark.limit("conversation_queue_bytes_max")
async def test_a_memory_queue_full_of_large_replies_takes_no_more_until_some_are_sent(
    redis_url: str,
) -> None:
    """Replies without space wait in Redis and are sent in order when there is space."""
    gate, sent = asyncio.Event(), list[str]()
    app = Application()

    @app.reply_sender()
    async def send(reply: OutgoingReply) -> None:
        await gate.wait()
        sent.append(reply.response_id)

    small = {"conversation_queue_bytes_max": 100_000}
    async with instance(redis_url, app, conversations=QUICK, limits=small) as bridge:
        for name in ("x", "y"):
            await bridge.request(name, name, "whatsapp")
        accepted = await asyncio.gather(
            *(
                bridge.reply(name, name, f"{name}{number}", task("p" * 30_000))
                for number in range(10)
                for name in ("x", "y")
            )
        )
        assert [each.held for each in accepted] == [True] * 4 + [False] * 16
        assert 100_000 <= bridge.queue.size_bytes < 200_000
        gate.set()
        await eventually(lambda: len(sent) == 20, 2 * DEADLINE_S)
        await eventually(lambda: bridge.queue.size_bytes == 0, DEADLINE_S)
    for name in ("x", "y"):
        left = [each for each in sent if each[0] == name]
        assert left == [f"{name}{number}" for number in range(10)]


async def test_a_reply_larger_than_the_memory_limit_is_still_sent(redis_url: str) -> None:
    client, small = Client(), {"conversation_queue_bytes_max": 1}
    quick = {**QUICK, "sent_message_ttl": 200}
    async with instance(redis_url, client.app, conversations=quick, limits=small) as bridge:
        await bridge.request("c", "A", "whatsapp")
        for number in range(5):
            await bridge.reply("c", "A", f"a{number}", task("p" * 1_000))
        await client.wait(5)
        assert client.sent == [f"a{number}" for number in range(5)]


async def test_a_task_that_cannot_be_read_is_cancelled_and_the_next_is_sent(redis_url: str) -> None:
    client = Client()
    async with sample_runtime(redis_url) as runtime:
        it = Harness(runtime, FakeClock())
        await it.request("A")
        await it.request("B")
        await it.reply("A", "a1", held=False)
        await it.reply("B", "b1", held=False)
        name = it.runtime.keyspace.name(keys.CONVERSATION_RESPONSE, 0, "a1")
        await it.runtime.redis.call("HSET", name, "taskItem", "[" * 10_000)
        prefix = it.runtime.settings.prefix
    async with instance(redis_url, client.app, prefix=prefix):
        await client.wait(1)
        assert client.sent == ["b1"]


async def test_an_ack_id_that_is_too_long_counts_as_no_ack(redis_url: str) -> None:
    app = Application()

    @app.reply_sender()
    async def send(_: OutgoingReply) -> str:
        return "x" * 10_000

    async with instance(redis_url, app) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task())
        await eventually(lambda: bridge.sent == 1, DEADLINE_S)
        await settled(bridge)


async def test_a_sender_that_answers_nonsense_cancels_its_group(redis_url: str) -> None:
    app = Application()

    @app.reply_sender()
    async def send(_: OutgoingReply) -> object:
        return {"not": "an id"}

    async with instance(redis_url, app) as bridge:
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task())
        await eventually(lambda: bridge.cancelled == 1, DEADLINE_S)


async def test_nonsense_on_the_wake_channel_is_ignored(redis_url: str) -> None:
    client = Client()
    async with instance(redis_url, client.app) as bridge:
        for payload in ("", "[]", "{", '{"woken":7}', '{"woken":["nobody"]}', "[" * 5_000):
            channel = bridge.store.wake_channel
            await bridge.runtime.redis.call("PUBLISH", channel, payload)
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task())
        await client.wait(1)


async def test_clocks_that_differ_by_a_minute_change_no_order(redis_url: str) -> None:
    """Stored times come from Redis; the timestamps of callers decide nothing."""
    first, second = Client(), Client()
    async with instance(redis_url, first.app) as one:
        prefix = one.runtime.settings.prefix
        async with instance(redis_url, second.app, prefix=prefix) as other:
            await one.request("c", "G", "whatsapp")
            await other.request("c", "A", "whatsapp", request_timestamp=100_000)
            await one.request("c", "B", "whatsapp", request_timestamp=40_000)
            await one.reply("c", "B", "b1", task(), response_timestamp=40_001)
            await other.reply("c", "A", "a1", task(), response_timestamp=100_002)
            await other.reply("c", "A", "a2", task(), response_timestamp=40_000)
            left = (await one.store.snapshot("c", 10)).replies
            assert [each.response_id for each in left] == ["a1", "a2", "b1"]
            await one.reply("c", "G", "g1", task())
            await second.wait(2)
            await first.wait(2)
            assert second.sent == ["a1", "a2"]
            assert first.sent == ["g1", "b1"]


async def test_a_reply_without_a_sender_expires_with_one_event(any_redis_url: str) -> None:
    """On the real clock: Redis expires the keys, and the journal still has the end."""
    quick = {
        **QUICK,
        "message_ttl": 300,
        "awaited_message_ttl": 600,
        "awaited_retries_factor": 0.001,
    }
    async with instance(any_redis_url, Application(), conversations=quick) as bridge:
        process = Harness(bridge.runtime, FakeClock())
        await bridge.request("c", "U", "whatsapp")
        await bridge.request("c", "A", "whatsapp")
        await bridge.reply("c", "A", "a1", task(sender="nobody"))
        await settled(bridge)
        events = await process.events()
        assert events.count(("expired", "a1")) == 1
        assert events.count(("request_expired", "U")) == 1
        assert (await bridge.store.check_reply(info("A", "a1"))).status == "gone"


async def settled(bridge: ConversationsInstance) -> None:
    async def nothing_left() -> bool:
        counts = [await bridge.store.in_flight(p) for p in bridge.store.partitions]
        return all(count[:2] == (0, 0) for count in counts)

    await eventually(nothing_left, DEADLINE_S)
