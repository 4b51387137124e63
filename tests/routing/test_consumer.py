"""One instance: retries, dead letters, responses, loss of keys and new registration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from angarium.redis.options import RedisOptions
from angarium.routing import keys
from angarium.routing.consumer import ConsumerOptions, Handle, InstanceConsumer
from angarium.routing.errors import ItemInvalid
from angarium.routing.items import InboundMessage, decode_response, encode_inbound
from angarium.routing.listing_store import RoutingListing
from angarium.routing.store import RoutingRules, RoutingStore, StoredDeadLetter
from angarium.runtime.errors import OutcomeUnknown, RedisUnavailable
from angarium.runtime.limits import MIB
from angarium.runtime.runtime import Runtime, RuntimeOptions
from tests.kit.clock import FakeClock
from tests.kit.eventually import Signal, eventually
from tests.routing.harness import counts, events, owner, post, routing, subjects

DEADLINE_S = 40.0


@asynccontextmanager
async def running(
    store: RoutingStore, handle: Handle, uid: str = "a", clock: FakeClock | None = None, **more: Any
) -> AsyncIterator[InstanceConsumer]:
    consumer = InstanceConsumer(store, uid, handle, ConsumerOptions(**more), clock=clock)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop(10)


async def settled(runtime: Runtime) -> bool:
    return await counts(runtime) == {}


class RecordingHandler:
    """A handler that records its messages, and fails as often as `failures` says."""

    def __init__(self, failures: dict[bytes, int] | None = None) -> None:
        self.got: list[bytes] = []
        self.failures = failures or {}
        self.came = Signal()

    async def __call__(self, message: InboundMessage) -> bytes:
        left = self.failures.get(message.payload, 0)
        if left:
            self.failures[message.payload] = left - 1
            raise ValueError(f"not yet {message.payload!r}")
        self.got.append(message.payload)
        self.came.fire()
        return b"answer to " + message.payload


@pytest.mark.parametrize("layout", ["native", "acapy"])
async def test_messages_of_a_key_are_handled_in_order_and_failures_are_retried(
    redis_url: str, layout: str
) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        take = RecordingHandler({b"2": 2})
        async with running(store, take) as consumer:
            await post(store, "k", b"1", b"2", b"3")
            await eventually(lambda: take.got == [b"1", b"2", b"3"], DEADLINE_S)
            await eventually(lambda: settled(runtime), DEADLINE_S)
            assert consumer.metrics.failed == 2
            assert consumer.claimed_keys == 0


async def test_a_message_that_always_fails_becomes_a_dead_letter_and_the_next_is_handled(
    any_redis_url: str,
) -> None:
    async with routing(any_redis_url) as (runtime, store):
        take = RecordingHandler({b"poison": 100})
        async with running(store, take, attempts_max=2) as consumer:
            await post(store, "k", b"1", b"poison", b"2")
            await eventually(lambda: take.got == [b"1", b"2"], DEADLINE_S)
            await eventually(lambda: settled(runtime), DEADLINE_S)
            assert consumer.metrics.dead == 1
        (dead,) = await events(runtime, "dead")
        assert "not yet" in str(dead.detail)
        names = [event.event for event in await events(runtime)]
        assert names.count("accepted") == names.count("handled") + names.count("dead") == 3


@pytest.mark.parametrize("layout", ["native", "acapy"])
async def test_revived_dead_letters_are_handled_after_the_handler_was_repaired(
    redis_url: str, layout: str
) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        take = RecordingHandler({b"poison": 2, b"venom": 2})
        listing = RoutingListing(runtime)
        async with running(store, take, attempts_max=2) as consumer:
            await post(store, "k", b"poison", b"1", b"venom")
            await eventually(lambda: consumer.metrics.dead == 2, DEADLINE_S)
            await eventually(lambda: settled(runtime), DEADLINE_S)
            raw = await listing.dead_inbound(10)
            letters = [StoredDeadLetter(json.loads(each)["id"], "k", each) for each in raw]
            # Two operators at once, and one more after them.
            both = await asyncio.gather(store.revive(letters), store.revive(letters))
            assert sorted(map(tuple, both)) == [("queued", "queued"), ("unknown", "unknown")]
            assert await store.revive(letters) == ["unknown", "unknown"]
            await eventually(lambda: take.got == [b"1", b"poison", b"venom"], DEADLINE_S)
            await eventually(lambda: settled(runtime), DEADLINE_S)
        assert await listing.dead_inbound(10) == []
        names = [event.event for event in await events(runtime)]
        assert (names.count("accepted"), names.count("handled"), names.count("dead")) == (5, 3, 2)


async def test_a_revived_dead_letter_waits_for_an_instance_like_any_message(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        name = runtime.keyspace.name(keys.INBOUND_DEAD)
        item = encode_inbound(b"late", "http", None, "0" * 32)
        entry = {"id": "0" * 32, "recip_key": "k", "reason": "no", "message": item, "at_ms": 1}
        dead = [StoredDeadLetter("0" * 32, "k", json.dumps(entry).encode())]
        for message in ("damaged", None):
            raw = json.dumps({**entry, "message": message}).encode()
            dead.append(StoredDeadLetter("0" * 32, "k", raw))
        dead.append(StoredDeadLetter("0" * 32, "other", dead[0].raw))
        await runtime.redis.call("RPUSH", name, *(each.raw for each in dead[:3]), key=name)
        assert await store.revive(dead) == ["unreadable" if at else "kept" for at in range(4)]
        assert await runtime.redis.call("LLEN", name, key=name) == 2
        take = RecordingHandler()
        async with running(store, take):
            await eventually(lambda: take.got == [b"late"], DEADLINE_S)


async def test_a_message_that_the_handler_can_not_read_is_not_retried(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):

        async def handle(message: InboundMessage) -> None:
            raise ItemInvalid("no such wallet")

        async with running(store, handle) as consumer:
            await post(store, "k", b"1")
            await eventually(lambda: settled(runtime), DEADLINE_S)
            assert (consumer.metrics.failed, consumer.metrics.dead) == (0, 1)


async def test_a_damaged_item_becomes_a_dead_letter(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        take = RecordingHandler()
        async with running(store, take):
            await post(store, "k", b"1")
            await eventually(lambda: take.got == [b"1"], DEADLINE_S)
            await eventually(lambda: settled(runtime), DEADLINE_S)
            name = f"{runtime.settings.prefix}acapy_inbound_k"
            await runtime.redis.call("RPUSH", name, b"\xff damaged", key=name)
            await post(store, "k", b"2")
            await eventually(lambda: take.got == [b"1", b"2"], DEADLINE_S)
            await eventually(lambda: settled(runtime), DEADLINE_S)
            assert len(await subjects(runtime, "dead")) == 1


async def test_a_result_that_can_not_be_encoded_does_not_end_the_handlers(
    redis_url: str,
) -> None:
    async with routing(redis_url) as (runtime, store):
        got: list[bytes] = []

        async def handle(message: InboundMessage) -> object:
            got.append(message.payload)
            return object()

        async with running(store, handle, handlers=2) as consumer:
            for number in range(6):
                await store.process_payload_recip_key("k", b"%d" % number, "http", "relay1.7")
            await eventually(lambda: settled(runtime), DEADLINE_S)
            assert consumer.metrics.handled == 6
        assert got == [b"0", b"1", b"2", b"3", b"4", b"5"], "none is handled again for it"


async def test_a_handler_that_raises_cancelled_error_counts_as_failed(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        take = RecordingHandler()

        async def handle(message: InboundMessage) -> Any:
            if message.payload == b"cancelled":
                raise asyncio.CancelledError
            return await take(message)

        async with running(store, handle, handlers=2, attempts_max=2) as consumer:
            for number in range(4):
                await post(store, f"c{number}", b"cancelled")
            await post(store, "k", b"1")
            await eventually(lambda: take.got == [b"1"], DEADLINE_S)
            await eventually(lambda: settled(runtime), DEADLINE_S)
            assert consumer.metrics.dead == 4


async def test_keys_of_a_lost_claim_are_claimed_again_even_if_the_next_call_fails(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis ran the claim, the reply was lost, and at the next look Redis was away."""
    async with routing(redis_url) as (runtime, store):
        faults: list[Exception] = [OutcomeUnknown("lost"), RedisUnavailable("away")]
        claim = store.claim

        async def faulty(uid: str, partition: int, keys_max: int, *, again: bool = False) -> Any:
            if not faults or not (again or await counts(runtime)):
                return await claim(uid, partition, keys_max, again=again)
            if isinstance(faults[0], OutcomeUnknown):
                found = await claim(uid, partition, keys_max, again=again)
                assert found is not None
                if not found.fresh:
                    return found
            raise faults.pop(0)

        take = RecordingHandler()
        async with running(store, take):
            monkeypatch.setattr(store, "claim", faulty)
            await post(store, "k", b"1")
            await eventually(lambda: take.got == [b"1"], DEADLINE_S)
            assert faults == []


async def test_slow_keys_in_layout_acapy_do_not_hide_the_others(redis_url: str) -> None:
    async with routing(redis_url, layout="acapy") as (_, store):
        go, got = asyncio.Event(), Signal()

        async def handle(message: InboundMessage) -> None:
            if message.recip_key.startswith("slow"):
                await go.wait()
            else:
                got.fire()

        async with running(store, handle, keys_max=4):
            for key in ("slow1", "slow2"):
                await post(store, key, b"x")
            await post(store, "quick", b"x")
            await got.wait(1, DEADLINE_S)
            go.set()


async def test_a_deleted_list_does_not_keep_its_key_pending_for_ever(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        await store.touch("a")
        await post(store, "k", b"1", b"2")
        name = f"{runtime.settings.prefix}acapy_inbound_k"
        await runtime.redis.call("DEL", name, key=name)
        take = RecordingHandler()
        async with running(store, take, "a"):
            await eventually(lambda: settled(runtime), DEADLINE_S)
            await post(store, "k", b"3")
            await eventually(lambda: take.got == [b"3"], DEADLINE_S)


async def test_different_keys_are_handled_at_the_same_time(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        held, others = asyncio.Event(), Signal()

        async def handle(message: InboundMessage) -> None:
            if message.recip_key == "slow":
                await held.wait()
            else:
                others.fire()

        async with running(store, handle, handlers=2):
            await post(store, "slow", b"1", b"2")
            for number in range(20):
                await post(store, f"k{number}", b"x")
            await others.wait(20, DEADLINE_S)
            assert (await store.show("slow")).pending == 2
            held.set()
            await eventually(lambda: settled(runtime), DEADLINE_S)


async def test_stopping_finishes_messages_in_handlers_and_gives_back_the_others(
    redis_url: str,
) -> None:
    async with routing(redis_url) as (runtime, store):
        begun, go = Signal(), asyncio.Event()

        async def handle(message: InboundMessage) -> None:
            begun.fire()
            await go.wait()

        consumer = InstanceConsumer(store, "a", handle, ConsumerOptions(handlers=1))
        await consumer.start()
        await post(store, "k", b"1", b"2")
        await post(store, "l", b"1")
        await begun.wait(1, DEADLINE_S)
        stopping = asyncio.ensure_future(consumer.stop(10))
        await asyncio.sleep(0)
        go.set()
        await stopping
        assert begun.count == 1
        assert sum((await counts(runtime)).values()) == 2
        take = RecordingHandler()
        async with running(store, take, "b"):
            await eventually(lambda: settled(runtime), DEADLINE_S)
            assert sorted(take.got) == [b"1", b"2"]


async def test_an_instance_that_was_removed_registers_again_by_itself(redis_url: str) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock) as (runtime, store):
        take = RecordingHandler()
        async with running(store, take, "a", clock) as consumer:
            await post(store, "k", b"1")
            await eventually(lambda: take.got == [b"1"], DEADLINE_S)
            await eventually(lambda: settled(runtime), DEADLINE_S)
            # Its beats come from the same clock, so only a jump makes it silent.
            clock.jump(60_000)
            await store.touch("b")
            await post(store, "k", b"2", b"3")
            assert await owner(store, "k") == "b"
            assert await subjects(runtime, "removed") == ["a"]

            async def back() -> bool:
                await clock.advance(0.5)
                return len((await store.instances())[0]) == 2

            await eventually(back, DEADLINE_S)
            assert consumer.metrics.registered == 2
            assert await owner(store, "k") == "b", "it came back without its old keys"


async def test_after_a_long_pause_an_instance_releases_its_keys_before_it_handles_anything(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock) as (runtime, store):
        begun, go = Signal(), asyncio.Event()
        got: list[bytes] = []

        async def handle(message: InboundMessage) -> None:
            got.append(message.payload)
            begun.fire()
            await go.wait()

        async with running(store, handle, "a", clock) as consumer:
            await post(store, "k", b"1", b"2", b"3")
            await begun.wait(1, DEADLINE_S)
            # As after SIGSTOP: time has passed, and the instance has sent no heartbeat.
            clock.stall(20)
            await store.touch("b")
            await store.sweep()
            assert await owner(store, "k") == "b"
            go.set()

            async def released() -> bool:
                await clock.advance(1)
                return consumer.metrics.released > 0

            await eventually(released, DEADLINE_S)
            assert got == [b"1"], "nothing more was begun"
            assert await counts(runtime) == {"b_k": 3}


async def test_direct_responses_reach_the_relay(redis_url: str) -> None:
    async with routing(redis_url) as (_, store):
        take = RecordingHandler()
        async with running(store, take):
            await store.process_payload_recip_key("k", b"1", "http", "relay1.7")
            await take.came.wait(1, DEADLINE_S)
            found = await eventually(lambda: store.take_responses("relay1"), DEADLINE_S)
        assert decode_response(found[0]).body == b"answer to 1"


async def test_a_runtime_from_options_handles_messages_too(any_redis_url: str) -> None:
    """What the ACA-Py plugin runs on, beside the runtime of everything else."""
    async with routing(any_redis_url) as (runtime, store):
        options = RuntimeOptions(
            RedisOptions(any_redis_url), runtime.keyspace, 256 * MIB, runtime.options.limits
        )
        take = RecordingHandler()
        async with Runtime.open(options, actor="plain") as other:
            plain = RoutingStore(other, RoutingRules())
            async with running(plain, take, "plain"):
                for number in range(30):
                    await post(store, f"k{number}", b"%d" % number)
                await runtime.redis.call_each_node("SCRIPT", "FLUSH")
                await eventually(lambda: len(take.got) == 30, DEADLINE_S)
                await eventually(lambda: settled(runtime), DEADLINE_S)
