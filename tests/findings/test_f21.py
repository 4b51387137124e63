"""An open transaction is found by its externalId, also after the uniqueness period."""

from __future__ import annotations

from angarium.transactions import keys
from angarium.transactions.archiver import Archiver
from tests.transactions.harness import harness
from tests.transactions.test_bounds import DAY_S


async def test_f21_an_open_transaction_is_found_by_its_external_id_after_its_period(
    any_redis_url: str,
) -> None:
    period = {"externalid_uniqueness_period": 1}
    async with harness(any_redis_url, transactions=period) as here:
        first = await here.start(owner="ann", external_id="x")
        name = here.runtime.keyspace.name
        key = name(keys.EXTERNAL_ID, here.store.partition_of(first), "ann|x")
        ttl_ms = await here.runtime.redis.call("PTTL", key, key=key)
        assert ttl_ms > DAY_S * 1000 - 60_000, "as long as the transaction may be open"
        state = here.state_key(first)
        await here.runtime.redis.call("HINCRBY", state, "created", -2_000, key=state)
        assert (await here.client.get_by_external_id("ann", "x")).id == first
        second = await here.start(owner="ann", external_id="x")
        assert second != first, "it is no longer unique"
        assert (await here.client.get_by_external_id("ann", "x")).id == second
        assert await here.start(owner="ann", external_id="x") == second


async def test_f21_an_archived_transaction_gives_its_external_id_free_after_its_period(
    redis_url: str,
) -> None:
    async with harness(redis_url, transactions={"delay_before_archiving": 0}) as here:
        (id,) = await here.completed(owner="ann", external_id="x")
        archiver = Archiver(here.runtime, here.client.archive)
        await archiver.run_once(0)
        await archiver.run_once(0)
        assert await here.store.find(id) is None
        key = here.runtime.keyspace.name(keys.EXTERNAL_ID, 0, "ann|x")
        ttl_ms = await here.runtime.redis.call("PTTL", key, key=key)
        assert 0 < ttl_ms <= 21_600_000
        assert await here.start(owner="ann", external_id="x") == id, "still unique"
