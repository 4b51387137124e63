"""Operators list and retry dead letters of routing, and empty queues of pickup."""

from __future__ import annotations

import time
from pathlib import Path

from angarium.pickup.archive import MessageArchive
from angarium.pickup.deduplicated_add import NewMessage
from angarium.pickup.model import StoredMessage
from angarium.pickup.queues import COUNT_WAIT_S
from angarium.pickup.service import COUNT_S_MIN, PickupService
from angarium.routing import keys as routing_keys
from angarium.routing.outbound_store import OutboundStore
from angarium.runtime import keys as runtime_keys
from angarium.runtime.runtime import Runtime
from tests.kit.clock import FakeClock
from tests.kit.sample import sample_runtime
from tests.server.harness import running_api


async def _add_dead_letters(runtime: Runtime) -> None:
    name = runtime.keyspace.name
    dead, inbound = name(routing_keys.OUTBOUND_DEAD), name(routing_keys.INBOUND_DEAD)
    await runtime.redis.call(
        "RPUSH",
        dead,
        b'{"id":"m1","reason":"500","message":"{\\"id\\":\\"m1\\",\\"retries\\": 5}","at_ms":1}',
        b'{"id":"m2","reason":"answered 500","message":"{\\"retries\\":5}","at_ms":2}',
        b'{"id":"m3","reason":"not an item","message":"nonsense","at_ms":3}',
        b"not a dead letter",
        key=dead,
    )
    await runtime.redis.call(
        "RPUSH",
        inbound,
        b'{"id":"i1","recip_key":"did:key:z","reason":"ValueError: no","message":"{}","at_ms":4}',
        key=inbound,
    )


async def test_one_dead_delivery_is_retried_and_the_others_stay(
    redis_url: str, no_settings: object
) -> None:
    async with running_api(redis_url) as (runtime, call):
        await _add_dead_letters(runtime)
        path = "/v1/routing/dead-deliveries/{}/retry"
        assert await call("POST", path.format("m2")) == (200, {"id": "m2", "status": "retried"})
        status, problem = await call("POST", path.format("m2"))
        assert (status, problem["code"]) == (404, "dead_letter_unknown")
        status, problem = await call("POST", path.format("m3"))
        assert (status, problem["code"]) == (409, "dead_letter_unusable")
        (loan,) = await OutboundStore(runtime, "native").take(0, 10)
        assert loan.item == b'{"retries":0}'
        left = runtime.keyspace.name(routing_keys.OUTBOUND_DEAD)
        assert await runtime.redis.call("LLEN", left, key=left) == 3
        assert (await call("POST", path.format("m1")))[0] == 200
        found = await runtime.redis.call(
            "XREVRANGE", runtime.keyspace.name(runtime_keys.JOURNAL), "+", "-"
        )
        assert b'"e":"outbound_accepted","s":"m1"' in found[0][1][-1]


async def test_dead_inbound_messages_are_listed(redis_url: str, no_settings: object) -> None:
    async with running_api(redis_url) as (runtime, call):
        assert await call("GET", "/v1/routing/dead") == (200, {"letters": [], "next": None})
        await _add_dead_letters(runtime)
        status, found = await call("GET", "/v1/routing/dead")
        (dead_letter,) = found["letters"]
        assert status == 200
        assert (dead_letter["recip_key"], dead_letter["reason"]) == ("did:key:z", "ValueError: no")


async def test_dead_inbound_messages_are_retried_and_unreadable_ones_are_listed(
    redis_url: str, no_settings: object
) -> None:
    async with running_api(redis_url) as (runtime, call):
        await _add_dead_letters(runtime)
        inbound = runtime.keyspace.name(routing_keys.INBOUND_DEAD)
        for dead_letter in (
            b"\xff",
            b'{"id":"i2","recip_key":"k","message":"{}","reason":"","at_ms":5}',
        ):
            await runtime.redis.call("RPUSH", inbound, dead_letter, key=inbound)
        path = "/v1/routing/dead"
        status, found = await call("GET", path)
        assert (status, [each["id"] for each in found["letters"]]) == (200, ["i1", "", "i2"])
        assert (await call("GET", "/v1/routing/dead-deliveries"))[0] == 200
        # The one without an id is not named by an empty path.
        assert (await call("DELETE", f"{path}/"))[0] == 404
        retried = await call("POST", f"{path}/i1/retry")
        assert retried == (200, {"id": "i1", "status": "retried"})
        assert (await call("POST", f"{path}/i1/retry"))[0] == 404
        assert await call("POST", f"{path}/retry") == (200, {"retried": 1, "unusable": 1})
        assert await call("POST", f"{path}/retry") == (200, {"retried": 0, "unusable": 1})
        assert await runtime.redis.call("LRANGE", inbound, 0, -1, key=inbound) == [b"\xff"]


async def test_emptying_a_queue_is_answered_at_once_if_no_gateway_ever_ran(
    redis_url: str, no_settings: object
) -> None:
    async with running_api(redis_url) as (runtime, call):
        began_s = time.monotonic()
        assert await call("DELETE", "/v1/pickup/connections/x") == (200, {"removed": 0})
        await PickupService(runtime).add(NewMessage("x", b"{}", "r1"))
        status, problem = await call("DELETE", "/v1/pickup/connections/x")
        assert (status, problem["code"]) == (503, "database_unavailable")
        assert "angarium serve gateway" in problem["detail"]
        # It would have waited this long for each.
        assert time.monotonic() - began_s < 2 * COUNT_WAIT_S


async def test_the_database_is_not_counted_at_each_call(redis_url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    async with sample_runtime(redis_url, clock=clock) as runtime:
        archive = await MessageArchive.open(
            f"sqlite:///{tmp_path}/pickup.db", runtime.settings.prefix
        )
        try:
            pickup = PickupService(runtime, archive=archive)
            assert (await pickup.overview()).archived == 0
            message = StoredMessage("m1", 1, 1, "did:x", b"{}")
            await archive.store(0, 1, {"default:anna": [message]})
            assert (await pickup.overview()).archived == 0
            await clock.advance(COUNT_S_MIN)
            found = await pickup.overview()
            assert found.archived == 1
            assert found.archived_bytes > 0
        finally:
            await archive.close()
