"""Replies are added to pickup once, and their removal there acknowledges them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from angarium.client import Client
from angarium.client.application import Angarium
from angarium.conversations.model import MessageOptions, OutgoingReply, TaskItem
from angarium.conversations.service import ConversationService
from angarium.conversations.store import ConversationStore
from angarium.pickup.store import PickupStore
from angarium.runtime import keys
from angarium.runtime.journal import Journal, decode_entry
from angarium.runtime.runtime import Runtime
from angarium.server.reply_to_pickup import (
    AckFollower,
    PickupSender,
    Removal,
    build,
    reply_message_id,
)
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime

DEADLINE_S = 30.0
# A removal is waited for, so long that no reply counts as delivered without it during a test.
NO_ACK_TIMEOUT: dict[str, Any] = {
    "conversations": {"sent_message_ttl": 600_000, "pickup_delivered": "removed"}
}


async def events(runtime: Runtime, module: str) -> list[tuple[str, str, str | None]]:
    """Event, subject and status, in the order of the journal of each partition."""
    journal, found = Journal(runtime), []
    for partition in range(runtime.settings.partitions):
        for entry_id, fields in await journal.read(partition, entries_max=100_000):
            entry = decode_entry(entry_id, fields)
            if entry.module == module:
                found += [(each.event, each.subject, each.status) for each in entry.events]
    return found


async def mark_archive_counted(runtime: Runtime) -> None:
    """As a starting gateway does: record that the database has no messages."""
    store = PickupStore(runtime)
    for partition in store.partitions:
        await store.moves.write_counts(partition, [], last=True)


@asynccontextmanager
async def conversations_role(
    redis_url: str, **overrides: Any
) -> AsyncIterator[tuple[Runtime, Client]]:
    async with sample_runtime(redis_url, **{**NO_ACK_TIMEOUT, **overrides}) as runtime:
        await mark_archive_counted(runtime)
        instance = build(runtime, Angarium())
        await instance.start()
        client = Client(runtime=runtime)
        try:
            yield runtime, client
        finally:
            await client.close()
            await instance.stop(5)


async def test_a_reply_waits_in_pickup_and_its_removal_lets_the_next_one_go(
    any_redis_url: str, no_settings: object
) -> None:
    async with conversations_role(any_redis_url) as (runtime, client):
        await client.conversations.request("anna", "q")
        for number in ("1", "2"):
            status = await client.conversations.reply("anna", "q", number, {"text": number})
            assert status == "accepted"

        async def arrived() -> list[Any]:
            return await client.pickup.take("anna")

        (first,) = await eventually(arrived, DEADLINE_S)
        assert first.payload == b'{"text":"1"}'
        assert first.id == reply_message_id(runtime.settings.prefix, "anna", "1")
        assert await client.pickup.count("anna") == 0  # the second waits for the ACK
        assert await client.pickup.remove("anna", [first.id]) == 1
        (second,) = await eventually(arrived, DEADLINE_S)
        assert second.payload == b'{"text":"2"}'
        assert ("delivered", "1", "acknowledged") in await events(runtime, "conversations")


async def test_a_reply_that_is_sent_twice_is_queued_once(any_redis_url: str) -> None:
    """Its process died, or lost the response, between adding the reply and recording it."""
    async with sample_runtime(any_redis_url, **NO_ACK_TIMEOUT) as runtime:
        await mark_archive_counted(runtime)
        send, client = PickupSender(runtime), Client(runtime=runtime)
        reply = OutgoingReply("anna", "q", "r", "pickup", TaskItem(MessageOptions({"n": 1})), 0, 0)
        ack_id = await send(reply)
        assert ack_id is not None
        assert await send(reply) == ack_id
        (message,) = await client.pickup.take("anna")
        assert message.id == ack_id
        await client.pickup.remove("anna", [ack_id])
        # Read and removed meanwhile: there is no ACK to come, and nothing to be put in again.
        assert await send(reply) is None
        assert await client.pickup.count("anna") == 0
        accepted = [each for each in await events(runtime, "pickup") if each[0] == "accepted"]
        assert len(accepted) == 1
        await client.close()


async def test_an_ack_survives_a_killed_process(any_redis_url: str, no_settings: object) -> None:
    """Removed while nobody followed the journal: whoever follows next acknowledges."""
    async with sample_runtime(any_redis_url, **NO_ACK_TIMEOUT) as runtime:
        await mark_archive_counted(runtime)
        client, send = Client(runtime=runtime), PickupSender(runtime)
        await client.conversations.request("anna", "q")
        await client.conversations.reply("anna", "q", "r", "hello")
        store = ConversationStore(runtime)
        _, (taken,), _ = await ConversationService(runtime, store).claim_awaited(1)
        info = taken.info
        ack_id = await send(taken.reply)
        assert ack_id is not None
        await store.report_sent(info, ack_id)
        await client.pickup.remove("anna", [ack_id])
        assert await store.find_ack(ack_id, None) is not None  # this is where it was killed
        instance = build(runtime, Angarium())
        await instance.start()

        async def heard() -> bool:
            return await store.find_ack(ack_id, None) is None

        await eventually(heard, DEADLINE_S)
        found = await events(runtime, "conversations")
        assert found.count(("delivered", "r", "acknowledged")) == 1
        await instance.stop(5)
        await client.close()


@asynccontextmanager
async def follower_of_a_removal(
    redis_url: str, clock: FakeClock, hear: Callable[[Removal], Awaitable[bool]]
) -> AsyncIterator[tuple[AckFollower, str]]:
    """A follower that finds one removed message; the clock is the test's."""
    async with sample_runtime(redis_url) as runtime:
        await mark_archive_counted(runtime)
        client = Client(runtime=runtime)
        message_id = await client.pickup.add("anna", {"n": 1}, key="k")
        await client.pickup.remove("anna", [message_id])
        runtime.clock = clock
        yield AckFollower(runtime, 0, hear), message_id
        await client.close()


async def test_a_removal_before_the_reply_is_recorded_as_sent_acknowledges_it(
    redis_url: str,
) -> None:
    clock = FakeClock()
    heard: list[str] = []
    known = False

    async def hear(removal: Removal) -> bool:
        heard.append(removal.ack_id)
        return known

    async with follower_of_a_removal(redis_url, clock, hear) as (follower, message_id):
        await follower.run_once()
        await follower.run_once()
        assert heard == [message_id]
        known = True
        await clock.advance(0.05)
        await follower.run_once()
        await clock.advance(1)
        await follower.run_once()
        assert heard == [message_id, message_id]


async def test_an_unknown_ack_is_tried_a_few_times_only(redis_url: str) -> None:
    clock = FakeClock()
    heard: list[str] = []

    async def hear(removal: Removal) -> bool:
        heard.append(removal.ack_id)
        return False

    async with follower_of_a_removal(redis_url, clock, hear) as (follower, message_id):
        for _ in range(10):
            await follower.run_once()
            await clock.advance(0.3)
        assert heard == [message_id] * 3


async def test_one_process_follows_at_a_time_and_another_after_its_release(redis_url: str) -> None:
    async def hear(_: Removal) -> bool:
        return True

    async with sample_runtime(redis_url) as runtime:
        one, other = AckFollower(runtime, 0, hear), AckFollower(runtime, 0, hear)
        await one.run_once()
        await other.run_once()
        lock = runtime.keyspace.name(keys.FOLLOWER_LOCK, 0, "acks")
        first = await runtime.redis.call("GET", lock, key=lock)
        await one.release()
        await asyncio.sleep(0)
        third = AckFollower(runtime, 0, hear)
        await third.run_once()
        assert await runtime.redis.call("GET", lock, key=lock) not in (None, first)


@pytest.mark.parametrize(
    "address",
    [
        {"recipients": "x"}, "nowhere", {"connectionId": "a b"}, {"connection": "other"},
        {"connection_id": "one", "connectionId": "other"},
    ],
)  # fmt: skip
async def test_a_reply_that_can_never_be_delivered_cancels_its_group(
    redis_url: str, no_settings: object, address: Any
) -> None:
    async with conversations_role(redis_url) as (runtime, client):
        await client.conversations.request("anna", "q")
        await client.conversations.reply("anna", "q", "r", "x", address=address)

        async def cancelled() -> bool:
            return "dead" in [each[0] for each in await events(runtime, "conversations")]

        await eventually(cancelled, DEADLINE_S)


@pytest.mark.parametrize("name", ["connection_id", "connectionId"])
async def test_a_reply_goes_to_the_connection_that_its_address_names(
    redis_url: str, no_settings: object, name: str
) -> None:
    address = {name: "phone", "recipients": ["did:example:anna"], "tenant": "acme"}
    async with conversations_role(redis_url) as (_, client):
        await client.conversations.request("anna", "q")
        await client.conversations.reply("anna", "q", "r", "hello", address=address)

        async def arrived() -> list[Any]:
            return await client.pickup.take("phone", recipient="did:example:anna", tenant="acme")

        (found,) = await eventually(arrived, DEADLINE_S)
        assert found.payload == b'"hello"'
        assert await client.pickup.count("anna") == 0
