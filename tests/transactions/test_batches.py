"""Batches whose items have different numbers of arguments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from angarium.transactions import keys
from angarium.transactions.errors import PipelineUnknown
from angarium.transactions.model import TransactionStart, TransactionStarted
from tests.transactions.harness import harness

HOOK = "https://example.org/hook"


@pytest.mark.parametrize("more", [{}, {"metadata": b'{"a":1}'}, {"webhook": HOOK}])
async def test_an_end_clears_the_checkpoint(redis_url: str, more: dict[str, Any]) -> None:
    async with harness(redis_url) as here:
        first = await here.taken("two", **more)
        await here.store.checkpoint(first.id, first.run, 1, b'1 0 {"n":1}')
        assert await here.store.return_to_queue(first.id, first.run) == "returned"
        (taken,) = await here.take()
        assert (taken.checkpoint, "f" in taken.flags) == (b'1 0 {"n":1}', True)
        assert ("w" in taken.flags) == ("webhook" in more)
        assert await here.store.complete(taken, "success", b"{}", "") == "completed"
        name = here.store.keys.state(0, taken.id)
        assert not await here.runtime.redis.call("HGET", name, "frame", key=name)


async def test_a_transaction_of_the_admin_queue_returns_to_it(redis_url: str) -> None:
    async with harness(redis_url) as here:
        taken = await here.taken(admin=True)
        await here.start()
        assert await here.store.return_to_queue(taken.id, taken.run) == "returned"
        (again,) = await here.take(count=1)
        assert again.id == taken.id
        name = here.runtime.keyspace.name(keys.QUEUE_ADMIN, 0, "default")
        assert await here.runtime.redis.call("EXISTS", name, key=name) == 0


async def test_plain_starts_and_others_share_a_batch(any_redis_url: str) -> None:
    starts = [
        TransactionStart("one"),
        TransactionStart("one", external_id="x", metadata=b'{"a":1}'),
        TransactionStart("none"),
        TransactionStart("two", owner="ann", webhook=HOOK, poll_cancels_webhook=True),
        TransactionStart("one", external_id="x"),
        TransactionStart("two", b'{"n":5}', version=1),
        TransactionStart("two", version=9),
    ]
    async with harness(any_redis_url) as here:
        answers = await asyncio.gather(
            *(here.store.start(each) for each in starts), return_exceptions=True
        )
        refused = [type(each) for each in answers if isinstance(each, BaseException)]
        assert refused == [PipelineUnknown, PipelineUnknown]
        one, named, _, hooked, again, versioned, _ = answers
        assert isinstance(one, TransactionStarted)
        assert isinstance(named, TransactionStarted)
        assert isinstance(hooked, TransactionStarted)
        assert isinstance(versioned, TransactionStarted)
        assert again == TransactionStarted(named.transaction_id, duplicate=True)
        state = await here.state(named.transaction_id)
        assert (state.external_id, bytes(state.metadata)) == ("x", b'{"a":1}')
        state = await here.state(hooked.transaction_id)
        assert (state.owner, state.webhook, state.external_id) == ("ann", HOOK, None)
        assert bytes((await here.state(versioned.transaction_id)).data) == b'{"n":5}'
        assert len(await here.take()) == 4
