"""Instances and keys that nobody uses have an end, and restarts leave nothing behind."""

from __future__ import annotations

from angarium.routing import keys
from angarium.routing.consumer import ConsumerOptions, InstanceConsumer
from angarium.routing.items import InboundMessage
from angarium.runtime.runtime import Runtime
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.routing.harness import events, post, routing
from tests.routing.test_consumer import DEADLINE_S, settled

RESTARTS = rounds(300, 10_000)


async def stored(runtime: Runtime) -> dict[str, int]:
    """How many fields and members the maps of the module have."""
    found = {}
    for key in (keys.UID_LAST_ACCESS, keys.SESSIONS, keys.RECIP_KEY_UID, keys.PENDING_COUNTS):
        name = runtime.keyspace.name(key)
        found[key.name] = await runtime.redis.call("HLEN", name, key=name)
    name = runtime.keyspace.name(keys.UID_RECIP_KEYS)
    found["keys"] = await runtime.redis.call("ZCARD", name, key=name)
    return found


async def test_f11_clean_restarts_leave_nothing_behind(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):

        async def handle(message: InboundMessage) -> None: ...

        for number in range(RESTARTS):
            consumer = InstanceConsumer(store, f"u{number}", handle, ConsumerOptions(handlers=2))
            await consumer.start()
            await post(store, f"k{number % 7}")
            await eventually(lambda: settled(runtime), DEADLINE_S)
            await consumer.stop(10)
        await store.touch("last")
        while (await store.sweep()).again:
            pass
        assert [each.uid for each in (await store.instances())[0]] == ["last"]
        assert set((await stored(runtime)).values()) <= {0, 1}


async def test_f11_a_sweep_over_many_instances_costs_little(redis_url: str) -> None:
    """Each call looks at some of them, so its number of commands does not grow."""
    async with routing(redis_url) as (runtime, store):
        access, owned = (
            runtime.keyspace.name(key) for key in (keys.UID_LAST_ACCESS, keys.UID_RECIP_KEYS)
        )
        for number in range(1, 8_191):
            pairs = (f"u{number}", f"9999999999999:{number}")
            await runtime.redis.call("HSET", access, *pairs, key=access)
            await runtime.redis.call("ZADD", owned, number, f"k{number}", key=owned)
        await store.touch("live")

        async def commands() -> int:
            text = (await runtime.redis.call("INFO", "commandstats")).decode()
            lines = [line for line in text.splitlines() if line.startswith("cmdstat_")]
            return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines)

        before = await commands()
        await store.sweep()
        assert await commands() - before < 1_000
        assert len(await events(runtime, "removed")) == 0
