"""Everything that is stored has a limit and an end: queues, versions, archive, webhooks."""

from __future__ import annotations

import pytest

from angarium.runtime.transition import Transition
from angarium.transactions.errors import PipelineUnknown
from tests.kit.clock import FakeClock
from tests.transactions.harness import harness

DAY_S = 86_400


async def test_an_old_version_ends_when_no_transaction_can_have_it(redis_url: str) -> None:
    clock = FakeClock()
    settings = {"pipeline_versions_max": 2, "dead_letter_retention": DAY_S}
    async with harness(redis_url, clock=clock, transactions=settings) as here:
        for number in range(4):
            await here.define("p", {"type": "echo", "parameters": {"n": number}})
        assert sorted(await here.pipelines.versions("p")) == [1, 2, 3, 4], "they may be in use"
        await clock.advance(3 * DAY_S)
        await here.define("p", {"type": "echo", "parameters": {"n": 9}})
        assert sorted(await here.pipelines.versions("p")) == [4, 5]
        with pytest.raises(PipelineUnknown):
            await here.start("p", version=1)


# Webhooks


def test_every_transition_of_the_module_is_loaded() -> None:
    from angarium.transactions import (
        leases,
        maintenance,
        pages,
        pipeline_store,
        queries,
        transitions,
    )

    files = (leases, maintenance, pages, pipeline_store, queries, transitions)
    found = [each for file in files for each in vars(file).values() if isinstance(each, Transition)]
    assert len({each.name for each in found}) >= 25
    assert all(each.script.source for each in found)
