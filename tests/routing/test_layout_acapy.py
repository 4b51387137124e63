"""Layout `acapy`: a client of the published encodings and ours read what the other wrote."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest

from angarium.routing import keys
from angarium.routing.consumer import ConsumerOptions, InstanceConsumer
from angarium.routing.items import DirectResponse, InboundMessage
from angarium.routing.store import RoutingRules, RoutingStore
from tests.kit.clock import FakeClock
from tests.kit.eventually import eventually
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess
from tests.routing.harness import counts, events, owner, post, routing
from tests.routing.published_plugin import PublishedInstance, publish, read_keys, write_keys

DEADLINE_S = 40.0


def now_of(clock: FakeClock) -> datetime:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC).replace(microsecond=0)


async def test_a_published_instance_gets_keys_and_messages_from_us(
    redis_server: ServerProcess,
) -> None:
    clock = FakeClock()
    async with routing(redis_server.url, layout="acapy", clock=clock) as (runtime, store):
        theirs = PublishedInstance(redis_server.client(), runtime.settings.prefix, "published")
        theirs.register()
        for number in range(5):
            assert await post(store, f"key{number}", b"\xff%d" % number) == ["queued"]
        assert sorted(theirs.owned()) == [f"key{number}" for number in range(5)]
        assert [theirs.pending(key) for key in theirs.owned()] == [1] * 5
        items = theirs.pop(now_of(clock))
        payloads = sorted(base64.urlsafe_b64decode(item["payload"]) for item in items)
        assert payloads == [b"\xff%d" % number for number in range(5)]
        assert {tuple(item) for item in items} == {("payload", "transport_type")}
        assert await counts(runtime) == {}
        (seen,) = (await store.instances())[0]
        assert (seen.uid, seen.silent_ms, seen.keys) == ("published", 0, 5)


async def test_a_full_list_of_a_key_takes_no_more(redis_server: ServerProcess) -> None:
    async with sample_runtime(redis_server.url) as runtime:
        store = RoutingStore(runtime, RoutingRules("acapy", key_messages_max=2))
        await store.touch("ours")
        assert await post(store, "key", b"1", b"2", b"3") == ["queued", "queued", "full"]
        assert await counts(runtime) == {"ours_key": 2}


async def test_encodings_are_those_of_the_published_code_byte_for_byte(
    redis_server: ServerProcess,
) -> None:
    clock = FakeClock()
    async with routing(redis_server.url, layout="acapy", clock=clock) as (runtime, store):
        client, prefix = redis_server.client(), runtime.settings.prefix
        await store.touch("ours")
        assert client.hget(f"{prefix}uid_recip_keys_map", "ours").decode() == write_keys([])
        assert PublishedInstance(client, prefix, "ours").last_access() == now_of(clock)
        for names in (["k"], ["k", "did:key:z6Mk/x+y"], ["k", "did:key:z6Mk/x+y", 'q"\\']):
            await store.assign_recip_key_to_new_uid(names)
            stored = client.hget(f"{prefix}uid_recip_keys_map", "ours")
            assert stored.decode() == write_keys(names)
        assert client.hgetall(f"{prefix}recip_key_uid_map")[b"k"] == b"ours"
        assert client.hget(f"{prefix}uid_recip_key_pending_msg_count", "ours_k") == b"0"
        assert client.type(f"{prefix}round_robin_iterator") == b"string"
        await store.post_response(DirectResponse("relay.1", "application/json", b"{}"))
        (answer,) = client.lrange(f"{prefix}acapy_inbound_direct_resp", 0, -1)
        assert json.loads(answer) == {
            "txn_id": "relay.1",
            "response_data": {"content-type": "application/json", "response": "e30="},
        }


@pytest.mark.parametrize("size", [0, 1, 2, 3, 50])
async def test_lists_of_any_length_come_through_both_ways(
    redis_server: ServerProcess, size: int
) -> None:
    async with routing(redis_server.url, layout="acapy") as (runtime, store):
        client, prefix = redis_server.client(), runtime.settings.prefix
        names = [f"{'k' * (number % 5)}é{number}" for number in range(size)]
        client.hset(f"{prefix}uid_recip_keys_map", "theirs", write_keys(names))
        await store.assign_recip_key_to_new_uid(["one more"])
        assert read_keys(client.hget(f"{prefix}uid_recip_keys_map", "theirs")) == [
            *names,
            "one more",
        ]


async def test_keys_of_any_characters_are_written_as_json_dumps_does(
    redis_server: ServerProcess,
) -> None:
    names = ["did:sov:a/b", 'quo"te', "back\\slash", "ключ", "鍵", "🔑", "naïve, “two”"]
    async with routing(redis_server.url, layout="acapy") as (runtime, store):
        await store.touch("a")
        assert await store.assign_recip_key_to_new_uid(names) == ["a"] * len(names)
        place = f"{runtime.settings.prefix}uid_recip_keys_map"
        encoded = redis_server.client().hget(place, "a")
        assert encoded == write_keys(names).encode()
        assert await store.assign_recip_key_to_new_uid(names) == ["a"] * len(names)
        await post(store, "🔑", b"x")
        claim = await store.claim("a", 0, 10)
        assert claim is not None
        assert [*claim.again, *claim.fresh] == ["🔑"]


async def test_dates_are_right_for_centuries(redis_server: ServerProcess) -> None:
    moment = datetime(1999, 12, 28, 23, 59, 58, tzinfo=UTC)
    async with routing(redis_server.url, layout="acapy", clock=FakeClock(0)) as (runtime, _):
        place = runtime.keyspace.name(keys.UID_LAST_ACCESS)
        client = redis_server.client()
        for days in (0, 1, 2, 3, 4, 62, 63, 64, 65, 400, 36_525, 36_584, 36_585, 100_000):
            at = moment + timedelta(days=days)
            clock = FakeClock(int(at.timestamp() * 1000))
            async with routing(
                redis_server.url, layout="acapy", clock=clock, prefix=runtime.settings.prefix
            ) as (_, store):
                await store.touch("u")
                assert client.hget(place, "u").decode() == at.strftime("%Y-%m-%dT%H:%M:%SZ")
                (seen,) = (await store.instances())[0]
                assert seen.silent_ms == 0
                await store.retire("u")


async def test_our_inbox_handles_what_a_published_relay_queued(redis_server: ServerProcess) -> None:
    async with routing(redis_server.url, layout="acapy") as (runtime, store):
        client, prefix = redis_server.client(), runtime.settings.prefix
        got: list[bytes] = []

        async def handle(message: InboundMessage) -> None:
            got.append(message.payload)

        box = InstanceConsumer(store, "ours", handle, ConsumerOptions())
        await box.start()
        await store.assign_recip_key_to_new_uid(["k"])
        for number in range(5):
            publish(client, prefix, "k", b"%d" % number)
        publish(client, prefix, "k", b"4")  # the same bytes once more are another message
        await eventually(lambda: got == [b"0", b"1", b"2", b"3", b"4", b"4"], DEADLINE_S)

        async def empty() -> bool:
            return await counts(runtime) == {} and client.llen(f"{prefix}acapy_inbound_k") == 0

        await eventually(empty, DEADLINE_S)
        await box.stop(5)
        names = [event.event for event in await events(runtime)]
        assert names.count("accepted") == names.count("handled") == 6


async def test_keys_move_from_a_published_instance_to_ours_by_the_rule(
    redis_server: ServerProcess,
) -> None:
    clock = FakeClock()
    async with routing(redis_server.url, layout="acapy", clock=clock) as (runtime, store):
        client, prefix = redis_server.client(), runtime.settings.prefix
        theirs = PublishedInstance(client, prefix, "published")
        theirs.register()
        await post(store, "k", b"1")
        theirs.pop(now_of(clock))
        await store.touch("ours")
        clock.jump(60_000)
        await store.touch("ours")
        await post(store, "k", b"2")
        assert await owner(store, "k") == "published", "idle is not stale"
        await post(store, "k", b"3")
        assert await owner(store, "k") == "ours"
        assert theirs.owned() == []
        assert client.hexists(f"{prefix}uid_recip_keys_map", "published") == 0
        assert await counts(runtime) == {"ours_k": 2}


async def test_a_damaged_list_of_an_instance_does_not_stop_the_others(
    redis_server: ServerProcess,
) -> None:
    async with routing(redis_server.url, layout="acapy") as (runtime, store):
        client, prefix = redis_server.client(), runtime.settings.prefix
        client.hset(f"{prefix}uid_recip_keys_map", "broken", "!!! not base64 !!!")
        client.hset(f"{prefix}uid_last_access_map", "broken", "yesterday")
        await store.touch("ours")
        for number in range(4):
            assert await post(store, f"k{number}") == ["queued"]
        assert sum(each.keys for each in (await store.instances())[0]) == 4
