"""Quotas of owners: starts in a second, and bytes that their transactions have in Redis."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from angarium.runtime.errors import SettingInvalid
from angarium.settings import load
from angarium.transactions.archiver import Archiver
from angarium.transactions.errors import QuotaExceeded
from angarium.transactions.keys import OWNER_QUOTA
from tests.kit.clock import FakeClock
from tests.transactions.api_client import api
from tests.transactions.harness import Harness, harness


async def _started(here: Harness, owner: str, count: int, data: str = "") -> int:
    """How many of the starts were accepted."""
    found = Counter[bool]()
    for _ in range(count):
        try:
            await here.start("one", data, owner=owner)
            found[True] += 1
        except QuotaExceeded:
            found[False] += 1
    return found[True]


async def _stored(here: Harness, owner: str) -> dict[bytes, bytes]:
    name = here.runtime.keyspace.name(OWNER_QUOTA, 0, owner)
    reply = await here.runtime.redis.call("HGETALL", name, key=name)
    return dict(zip(reply[::2], reply[1::2], strict=True))


async def test_an_owner_starts_no_more_than_its_quota_and_another_is_not_held_up(
    redis_url: str,
) -> None:
    clock = FakeClock()
    settings = {"quota_starts_per_s": 10, "quotas": ("large=20/0", "free=0/0")}
    async with harness(redis_url, clock=clock, transactions=settings) as here:
        assert await _started(here, "small", 30) == 10
        assert await _started(here, "large", 30) == 20
        assert await _started(here, "free", 30) == 30
        clock.jump(500)
        assert await _started(here, "small", 30) == 5
        clock.jump(60_000)
        assert await _started(here, "small", 30) == 10, "what was not used is not saved"
        assert await _stored(here, "free") == {}


async def test_a_refused_start_changes_nothing_and_a_repeat_is_answered(redis_url: str) -> None:
    clock = FakeClock()
    async with harness(redis_url, clock=clock, transactions={"quota_starts_per_s": 1}) as here:
        first = await here.start("one", owner="a", external_id="x")
        assert await here.start("one", owner="a", external_id="x") == first
        with pytest.raises(QuotaExceeded):
            await here.start("one", owner="a", external_id="y")
        clock.jump(1_000)
        second = await here.start("one", owner="a", external_id="y")
        assert (await here.state(second)).status == "queued"


async def test_stored_bytes_are_free_again_when_a_transaction_is_archived(redis_url: str) -> None:
    settings = {"quota_stored_bytes": 1_000, "delay_before_archiving": 0}
    async with harness(redis_url, transactions=settings) as here:
        assert await _started(here, "a", 20, "x" * 98) == 10
        assert await _started(here, "b", 1, "x" * 998) == 1
        for taken in await here.take(count=20):
            await here.store.complete(taken, "success", b"{}")
        assert await _started(here, "a", 5, "x" * 98) == 0, "it is still in Redis"
        archiver = Archiver(here.runtime, here.client.archive)
        await archiver.run_once(0)
        await archiver.run_once(0)  # reports what the first one stored
        assert await _stored(here, "b") == {}
        assert await _started(here, "a", 20, "x" * 98) == 10


async def test_a_start_past_its_quota_is_answered_with_429(redis_url: str) -> None:
    async with (
        harness(redis_url, http={"port": 0}, transactions={"quota_stored_bytes": 10}) as here,
        api(here.runtime) as http,
    ):
        small, large = {"pipeline": "one"}, {"pipeline": "one", "data": {"text": "x" * 20}}
        status, body = await http.request("POST", "/v1/transactions", large)
        assert (status, body["code"]) == (429, "quota_exceeded")
        status, body = await http.request("PUT", "/datp/1.0/tx/start/one", {"data": "x" * 20})
        assert (status, body["code"]) == (429, "quota_exceeded")
        both = {"transactions": [large, small]}
        status, body = await http.request("POST", "/v1/transactions/batch", both)
        refused, started = body["transactions"]
        assert (status, refused["problem"]["code"]) == (200, "quota_exceeded")
        assert (await here.state(started["id"])).status == "queued"


def test_a_quota_that_can_not_be_read_is_named(no_settings: Path) -> None:
    with pytest.raises(SettingInvalid, match="'acme' is no quota"):
        load(transactions={"quotas": ["acme"]})
