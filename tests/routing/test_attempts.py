"""Attempts at a message: stored in Redis, by the policy of the function, over lost instances."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from angarium.routing.consumer import ConsumerOptions, InstanceConsumer
from angarium.routing.errors import InstanceSuperseded
from angarium.routing.finished_keys import FailedAttempt, FinishedKey
from angarium.routing.handling import Handle
from angarium.routing.items import InboundMessage, id_of
from angarium.routing.store import RoutingStore
from angarium.routing.transitions import TriedMessage
from angarium.runtime.retry_policy import DoNotRetry, RetryPolicy
from tests.kit.clock import FakeClock
from tests.kit.eventually import Signal, eventually
from tests.routing.harness import counts, dead_inbound, events, owner, post, routing
from tests.routing.test_consumer import DEADLINE_S, running, settled

LAYOUTS = pytest.mark.parametrize("layout", ["native", "acapy"])


async def tried(store: RoutingStore, uid: str, key: str) -> TriedMessage:
    (found,) = await store.take(uid, store.partition_of(key), [key], 5)
    assert isinstance(found, TriedMessage)
    return found


async def until(clock: FakeClock, condition: Callable[[], Any]) -> None:
    async def advanced() -> Any:
        await clock.advance(0.5)
        found = condition()
        return await found if asyncio.iscoroutine(found) else found

    await eventually(advanced, DEADLINE_S)


@asynccontextmanager
async def handling(
    store: RoutingStore, handle: Handle, uid: str, clock: FakeClock, **more: Any
) -> AsyncIterator[InstanceConsumer]:
    """An instance whose end the clock does not delay."""
    consumer = InstanceConsumer(store, uid, handle, ConsumerOptions(**more), clock=clock)
    await consumer.start()
    try:
        yield consumer
    finally:
        stopping = asyncio.ensure_future(consumer.stop(600))
        await until(clock, stopping.done)


@LAYOUTS
async def test_a_failure_is_stored_with_its_reason_until_the_message_is_handled(
    redis_url: str, layout: str
) -> None:
    clock = FakeClock()
    async with routing(redis_url, layout=layout, clock=clock) as (_, store):
        await store.touch("a")
        await post(store, "k", b"1", b"2")
        await store.claim("a", 0, 10)
        (taken,) = await store.take("a", 0, ["k"], 1)
        assert not isinstance(taken, (str, TriedMessage))
        name = id_of(taken.messages[0])
        failed = FailedAttempt(name, 1, 5_000, "ValueError('no: 1')")
        assert await store.finish("a", 0, [FinishedKey("k", (), 0, failed)]) == ["more"]
        await store.touch("b")
        found = await tried(store, "a", "k")
        assert (found.id, found.attempts, found.wait_ms) == (name, 1, 5_000)
        assert found.reason == "ValueError('no: 1')"
        clock.jump(6_000)
        assert (await tried(store, "a", "k")).wait_ms == 0
        assert not await store.begin("b", "k", name, 2), "only the owner counts"
        assert await store.begin("a", "k", name, 2)
        assert (await tried(store, "a", "k")).attempts == 2
        done = FinishedKey("k", [(name, "")], 2)
        assert await store.finish("a", 0, [done]) == ["more"]
        (rest,) = await store.take("a", 0, ["k"], 5)
        assert not isinstance(rest, (str, TriedMessage)), "the next message has no attempts"


@LAYOUTS
async def test_messages_in_hand_of_a_lost_instance_are_counted_and_others_are_not(
    redis_url: str, layout: str
) -> None:
    clock = FakeClock()
    async with routing(redis_url, layout=layout, clock=clock) as (_, store):
        await store.touch("a")
        await post(store, "held", b"1", b"2")
        await store.claim("a", 0, 10)
        await post(store, "waiting", b"1")
        clock.jump(16_000)
        await store.touch("b")
        await store.sweep()
        assert await owner(store, "held") == await owner(store, "waiting") == "b"
        found = await tried(store, "b", "held")
        assert (found.attempts, found.id, found.reason) == (1, "", "its instance was lost")
        (other,) = await store.take("b", 0, ["waiting"], 5)
        assert not isinstance(other, (str, TriedMessage))


@LAYOUTS
async def test_a_restarted_instance_of_the_same_uid_takes_over_and_the_old_one_is_refused(
    redis_url: str, layout: str
) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        await store.touch("a", "first", starting=True)
        await post(store, "k", b"1", b"2")
        assert await store.claim("a", 0, 10, session="first") is not None
        (taken,) = await store.take("a", 0, ["k"], 1, "first")
        assert not isinstance(taken, (str, TriedMessage))
        assert not await store.touch("a", "second", starting=True), "it is the same instance"
        with pytest.raises(InstanceSuperseded):
            await store.touch("a", "first")
        done = [FinishedKey("k", [(id_of(taken.messages[0]), "")])]
        assert await store.finish("a", 0, done, "first") == ["not_owner"]
        assert not await store.begin("a", "k", "x", 1, "first")
        assert await store.claim("a", 0, 10, session="first") is None
        assert await store.take("a", 0, ["k"], 1, "first") == ["not_owner"]
        await store.retire("a", "first")
        assert await counts(runtime) == {"a_k": 2}
        claim = await store.claim("a", 0, 10, session="second")
        assert claim is not None
        assert [*claim.again, *claim.fresh] == ["k"]
        (again,) = await store.take("a", 0, ["k"], 5, "second")
        assert isinstance(again, TriedMessage)
        await store.retire("a", "second")
        assert not await store.touch("a", "first"), "nobody else is the instance now"


async def test_handlers_slower_than_every_time_out_handle_each_message_once_and_in_order(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock) as (runtime, store):
        got: dict[str, list[bytes]] = {}

        async def handle(message: InboundMessage) -> None:
            got.setdefault(message.recip_key, []).append(message.payload)
            await clock.sleep(20)

        async with (
            handling(store, handle, "a", clock),
            handling(store, handle, "b", clock),
            handling(store, handle, "c", clock),
        ):
            for number in range(9):
                await post(store, f"k{number}", b"1", b"2", b"3")
            await until(clock, lambda: settled(runtime))
        assert got == {f"k{number}": [b"1", b"2", b"3"] for number in range(9)}
        assert await events(runtime, "reassigned") == []


async def test_a_retried_message_blocks_its_own_key_only(redis_url: str) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock) as (runtime, store):
        got: list[bytes] = []

        async def handle(message: InboundMessage) -> None:
            got.append(message.payload)
            if message.payload == b"bad" and got.count(b"bad") < 3:
                raise ValueError("not yet")

        retry = RetryPolicy(delay_s=20, delay_s_max=20, backoff="fixed")
        async with handling(store, handle, "a", clock, handlers=1, retry=retry) as consumer:
            await post(store, "k", b"bad", b"after")
            await until(clock, lambda: got == [b"bad"])
            for number in range(5):
                await post(store, f"o{number}", b"%d" % number)
            await until(clock, lambda: len(got) == 6)
            assert b"after" not in got
            await until(clock, lambda: settled(runtime))
            assert consumer.metrics.failed == 2
        assert [each for each in got if not each.isdigit()] == [b"bad", b"bad", b"bad", b"after"]


@pytest.mark.parametrize(
    ("policy", "error", "calls"),
    [
        (RetryPolicy(retries=0), ValueError("x"), 1),
        (RetryPolicy(retries=2, delay_s=0.01), ValueError("x"), 3),
        (RetryPolicy(retries=2, delay_s=0.01, retry_on=KeyError), ValueError("x"), 1),
        (RetryPolicy(retries=2, delay_s=0.01), DoNotRetry("never"), 1),
        (RetryPolicy(delay_s=0.01), SystemError("x"), 4),
    ],
    ids=["no retries", "two retries", "another error", "do not retry", "the setting"],
)
async def test_the_policy_of_the_function_is_followed(
    redis_url: str, policy: RetryPolicy, error: Exception, calls: int
) -> None:
    async with routing(redis_url) as (runtime, store):
        called = Signal()

        async def handle(message: InboundMessage) -> None:
            called.fire()
            raise error

        async with running(store, handle, attempts_max=4, retry=policy):
            await post(store, "k", b"1")
            await eventually(lambda: settled(runtime), DEADLINE_S)
        assert called.count == calls
        (dead,) = (await dead_inbound(runtime, store).page()).letters
        assert (dead.reason, dead.tries) == (repr(error), calls)


async def test_an_attempt_that_takes_too_long_is_failed(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        called = Signal()

        async def handle(message: InboundMessage) -> None:
            called.fire()
            await asyncio.Event().wait()

        retry = RetryPolicy(retries=1, delay_s=0.01, timeout_s=0.05)
        async with running(store, handle, retry=retry):
            await post(store, "k", b"1")
            await eventually(lambda: settled(runtime), DEADLINE_S)
        assert called.count == 2
        (dead,) = (await dead_inbound(runtime, store).page()).letters
        assert "TimeoutError" in dead.reason


async def test_an_instance_takes_no_more_than_it_can_handle(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        began, go = Signal(), asyncio.Event()

        async def handle(message: InboundMessage) -> None:
            began.fire()
            await go.wait()

        async with running(store, handle, handlers=3) as consumer:
            for number in range(12):
                await post(store, f"k{number}")
            await began.wait(3, DEADLINE_S)
            assert consumer.claimed_keys == 3
            go.set()
            await eventually(lambda: settled(runtime), DEADLINE_S)
        assert began.count == 12
