"""A message that ends its process is set aside after its attempts, whoever had it."""

from __future__ import annotations

import asyncio

from angarium.routing.consumer import ConsumerOptions, InstanceConsumer
from angarium.routing.items import InboundMessage
from tests.kit.clock import FakeClock
from tests.kit.eventually import Signal
from tests.routing.harness import dead_inbound, post, routing
from tests.routing.test_attempts import handling, until
from tests.routing.test_consumer import settled


async def test_f12_a_message_that_ends_its_instance_is_set_aside_and_its_key_goes_on(
    redis_url: str,
) -> None:
    """Other messages that the instances had in hand are not dead for it."""
    clock = FakeClock()
    async with routing(redis_url, clock=clock) as (runtime, store):
        began, got = Signal(), list[bytes]()

        async def handle(message: InboundMessage) -> None:
            if message.payload == b"poison":
                began.fire()
                await asyncio.Event().wait()  # until the instance is killed
            if message.payload == b"slow":
                await clock.sleep(40)
            got.append(message.payload)

        await post(store, "k", b"1", b"poison", b"2")
        await post(store, "other", b"slow")
        for killed in range(3):
            consumer = InstanceConsumer(
                store, f"u{killed}", handle, ConsumerOptions(attempts_max=3), clock=clock
            )
            await consumer.start()
            await until(clock, lambda: began.count > killed)  # noqa: B023
            await consumer.stop(0)  # as after kill -9: it gives nothing back
            clock.jump(16_000)
        async with handling(store, handle, "last", clock, attempts_max=3):
            await until(clock, lambda: settled(runtime))
        assert began.count == 3
        assert sorted(set(got)) == [b"1", b"2", b"slow"]
        assert got.index(b"2") > got.index(b"1")
        (dead,) = (await dead_inbound(runtime, store).page()).letters
        assert (dead.recip_key, dead.tries) == ("k", 3)
        assert dead.reason == "its instance was lost"
