"""The limits of transactions, filled through the API and a node as users use them."""

from __future__ import annotations

from typing import Any

import pytest

from angarium.runtime.errors import LimitExceeded
from angarium.transactions.long_polls import LongPolls
from angarium.transactions.service import TransactionsService
from tests.kit.eventually import eventually
from tests.transactions.api_client import api
from tests.transactions.harness import harness, running_node

HTTP: dict[str, Any] = {"http": {"port": 0}}


@pytest.mark.limit("transaction_data_bytes_max")
async def test_data_over_the_limit_is_refused(redis_url: str) -> None:
    limits = {"transaction_data_bytes_max": 1_000}
    async with harness(redis_url, limits=limits, **HTTP) as here, api(here.runtime) as http:
        start = {"pipeline": "one", "data": {"text": "x" * 1_000}, "external_id": "a"}
        status, body = await http.request("POST", "/v1/transactions", start)
        assert (status, body["code"]) == (413, "limit_exceeded")
        assert "transaction_data_bytes_max" in body["detail"]
        start["data"] = {"text": "x" * 900}
        assert (await http.request("POST", "/v1/transactions", start))[0] == 201


@pytest.mark.limit("transaction_batch_items_max")
async def test_a_batch_over_the_limit_starts_nothing(redis_url: str) -> None:
    limits = {"transaction_batch_items_max": 3}
    async with harness(redis_url, limits=limits, **HTTP) as here, api(here.runtime) as http:
        path, one = "/v1/transactions/batch", {"pipeline": "one"}
        status, body = await http.request("POST", path, {"transactions": [one] * 4})
        assert (status, body["code"]) == (413, "limit_exceeded")
        assert await here.take() == []
        status, body = await http.request("POST", path, {"transactions": [one] * 3})
        assert status == 200
        assert len(await here.take()) == 3


@pytest.mark.limit("transaction_children_items_max")
async def test_a_step_with_too_many_children_fails_and_starts_none(redis_url: str) -> None:
    limits = {"transaction_children_items_max": 3}
    async with harness(redis_url, limits=limits) as here, running_node(here.runtime):
        await here.define("child", {"type": "echo"})
        await here.define("fan", {"pipeline": "child", "for_each": "items"})
        ended = await here.ended(await here.start("fan", {"items": [{}] * 4}))
        assert ended.status == "internal-error"
        assert "4 children are too many" in (ended.note or "")
        assert sum(each.event == "started" for each in await here.events()) == 1
        ended = await here.ended(await here.start("fan", {"items": [{}] * 3}))
        assert ended.status == "success"


@pytest.mark.limit("transaction_depth_items_max")
async def test_pipelines_that_call_too_deeply_fail(redis_url: str) -> None:
    limits = {"transaction_depth_items_max": 2}
    async with harness(redis_url, limits=limits) as here, running_node(here.runtime):
        await here.define("level3", {"type": "echo"})
        for level in (2, 1, 0):
            await here.define(f"level{level}", {"pipeline": f"level{level + 1}"})
        assert (await here.ended(await here.start("level0"))).status != "success"
        notes = [each.detail for each in await here.events()]
        assert any("too deeply" in str(note) for note in notes), notes
        assert (await here.ended(await here.start("level1"))).status == "success"


@pytest.mark.limit("transaction_switches_items_max")
async def test_a_transaction_full_of_switches_refuses_the_next_one_and_sets_its_own(
    redis_url: str,
) -> None:
    async with harness(redis_url, limits={"transaction_switches_items_max": 2}) as here:
        id = await here.start()
        for name in ("a", "b"):
            assert await here.store.set_switch(id, name, "1") == "set"
        with pytest.raises(LimitExceeded, match="transaction_switches_items_max"):
            await here.store.set_switch(id, "c", "1")
        assert await here.store.set_switch(id, "a", "2") == "set"
        assert await here.store.set_switch(await here.start(), "c", "1") == "set"


@pytest.mark.limit("transaction_stream_events_max")
async def test_a_stream_that_nobody_reads_keeps_its_newest_events(redis_url: str) -> None:
    """The client of an event stream stops reading while the transaction reports progress."""
    limits = {"transaction_stream_events_max": 5}
    async with harness(redis_url, limits=limits) as here:
        service = TransactionsService(here.runtime)
        polls = LongPolls(here.runtime, service)
        await polls.start()
        id = await here.start()
        events = polls.follow(id)
        assert (await anext(events))[0] == "state"
        (stream,) = polls._streams[id]
        for _ in range(200):
            await here.runtime.redis.call("PUBLISH", service.events_channel, f"progressed {id}")
        await here.runtime.redis.call("PUBLISH", service.events_channel, f"moved {id}")
        await eventually(lambda: stream.events and stream.events[-1] == b"moved", 10)
        assert len(stream.events) == 5
        assert [(await anext(events))[0] for _ in range(5)] == ["progressed"] * 4 + ["moved"]
        await events.aclose()  # type: ignore[attr-defined]
        await polls.stop(5)
