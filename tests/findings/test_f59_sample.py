"""F59: a failed transaction stays a notice while others succeed."""

from __future__ import annotations

from angarium.transactions.overview import FAILURE_SHOWN_MS, TransactionsSampler
from tests.transactions.harness import harness
from tests.transactions.test_dead_letters import die


async def test_a_failure_stays_a_notice_however_many_succeed_after_it(redis_url: str) -> None:
    async with harness(redis_url) as here:
        sampler = TransactionsSampler(here.runtime)

        async def failed(now_ms: int) -> int:
            return (await sampler.sample({"node"}, now_ms)).facts["failed"]

        taken = await here.taken()
        await here.store.complete(taken, "failed", b"{}", "no luck")
        await die(here, "ValueError")  # a dead letter, which has a notice of its own
        assert await failed(0) == 1
        await here.completed(1_100)  # more than a sample reads
        assert await failed(FAILURE_SHOWN_MS - 1) == 1
        assert await failed(FAILURE_SHOWN_MS) == 0
