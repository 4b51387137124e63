"""Each script of the module, called directly: its success and each of its refusals."""

from __future__ import annotations

import json

import pytest

from angarium.routing import keys
from angarium.routing.errors import InstancesFull, RecipientUnknown
from angarium.routing.finished_keys import FinishedKey
from angarium.routing.items import DirectResponse, decode_response, id_of
from angarium.routing.transitions import TakenInbound
from angarium.runtime.errors import NotFound
from angarium.runtime.keyspace import Key
from angarium.runtime.runtime import Runtime
from tests.kit.clock import FakeClock
from tests.routing.harness import counts, events, handle_all, owner, post, routing, subjects, take

LAYOUTS = pytest.mark.parametrize("layout", ["native", "acapy"])


async def field(runtime: Runtime, key: Key, name: str) -> bytes | None:
    place = runtime.keyspace.name(key)
    found: bytes | None = await runtime.redis.call("HGET", place, name, key=place)
    return found


@LAYOUTS
async def test_keys_are_assigned_in_turn_and_the_turn_wraps(redis_url: str, layout: str) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        assert await store.get_new_valid_uid() == []
        for uid in ("a", "b", "c"):
            assert await store.touch(uid)
            assert not await store.touch(uid)
        assert sorted(await store.get_new_valid_uid(0, 3)) == ["a", "b", "c"]
        turns = await store.get_new_valid_uid(0, 7)
        assert turns[:3] == turns[3:6]
        iterator = runtime.keyspace.name(keys.ROUND_ROBIN_ITERATOR)
        assert int(await runtime.redis.call("GET", iterator)) in (0, 1, 2)
        await runtime.redis.call("SET", iterator, 3)  # where the published code may leave it
        assert len(await store.get_new_valid_uid(0, 3)) == 3


@LAYOUTS
async def test_a_key_is_assigned_once_and_the_reply_names_its_owner(
    redis_url: str, layout: str
) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        assert await store.assign_recip_key_to_new_uid(["k"]) == [None]
        await store.touch("a")
        await store.touch("b")
        first = await store.assign_recip_key_to_new_uid(["k", "l"])
        assert sorted(map(str, first)) == ["a", "b"]
        assert await store.assign_recip_key_to_new_uid(["l", "k"]) == first[::-1]
        assert await field(runtime, keys.PENDING_COUNTS, f"{first[0]}_k") == b"0"
        assert await subjects(runtime, "assigned") == ["k", "l"]


@LAYOUTS
async def test_reassigning_moves_the_count_and_removes_an_emptied_instance(
    redis_url: str, layout: str
) -> None:
    clock = FakeClock()
    async with routing(redis_url, layout=layout, clock=clock) as (runtime, store):
        await store.touch("a")
        await post(store, "k", b"1", b"2")
        assert await store.reassign_recip_key_to_uid("a", "k") is None, "there is no other instance"
        await store.touch("b")
        assert await store.reassign_recip_key_to_uid("b", "k") is None, "not the owner"
        assert await store.reassign_recip_key_to_uid("a", "k") == "b"
        assert await counts(runtime) == {"b_k": 2}
        assert [each.uid for each in (await store.instances())[0]] == ["b"]
        assert await subjects(runtime, "removed") == ["a"]
        assert len(await handle_all(store, "b", "k")) == 2


@LAYOUTS
async def test_a_message_is_kept_until_an_instance_registers(redis_url: str, layout: str) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        assert await post(store, "k", b"1", b"2") == ["kept", "kept"]
        assert (await store.sweep()).assigned == 0
        _, unowned = await store.instances()
        assert unowned == 1
        await store.touch("a")
        assert (await store.sweep()).assigned == 1
        assert await counts(runtime) == {"a_k": 2}
        assert len(await handle_all(store, "a", "k")) == 2
        assert (await store.instances())[1] == 0


@LAYOUTS
async def test_a_silent_instance_with_messages_loses_all_keys_with_their_counts(
    redis_url: str, layout: str
) -> None:
    clock = FakeClock()
    async with routing(redis_url, layout=layout, clock=clock) as (runtime, store):
        await store.touch("a")
        await store.assign_recip_key_to_new_uid(["idle"])
        await post(store, "k", b"1")
        clock.jump(15_000)
        await store.touch("b")
        await post(store, "k", b"2")
        assert await owner(store, "k") == "a", "15 s are not more than 15 s"
        clock.jump(1_000)
        await post(store, "k", b"3")
        assert await owner(store, "k") == "b"
        assert await owner(store, "idle") == "b", "its other keys went with it"
        assert await counts(runtime) == {"b_k": 3}
        assert await subjects(runtime, "removed") == ["a"]
        assert await store.touch("a"), "the one that was removed registers again by itself"


@LAYOUTS
async def test_a_silent_instance_without_messages_keeps_its_keys(
    redis_url: str, layout: str
) -> None:
    clock = FakeClock()
    async with routing(redis_url, layout=layout, clock=clock) as (_, store):
        await store.touch("a")
        await post(store, "k")
        await handle_all(store, "a", "k")
        clock.jump(60_000)
        await store.touch("b")
        await post(store, "k")
        assert await owner(store, "k") == "a", "no other message waits yet"
        assert (await store.sweep()).moved == 1, "and then there is some"
        assert await owner(store, "k") == "b"


@LAYOUTS
async def test_an_instance_without_a_heartbeat_is_not_stale(redis_url: str, layout: str) -> None:
    clock = FakeClock()
    async with routing(redis_url, layout=layout, clock=clock) as (runtime, store):
        await store.touch("a")
        await post(store, "k", b"1")
        place = runtime.keyspace.name(keys.UID_LAST_ACCESS)
        await runtime.redis.call("HDEL", place, "a", key=place)
        clock.jump(60_000)
        await store.touch("b")
        assert await post(store, "k", b"2") == ["queued"]
        assert await owner(store, "k") == "a"
        assert await counts(runtime) == {"a_k": 2}


async def test_two_idle_instances_stay_registered_after_four_posts(redis_url: str) -> None:
    """What leaves one of two published instances removed for ever."""
    clock = FakeClock()
    async with routing(redis_url, clock=clock) as (_, store):
        for uid in ("a", "b"):
            await store.touch(uid)
        clock.jump(60_000)
        for uid in ("a", "b"):
            await store.touch(uid)  # idle, and alive
        for _ in range(4):
            await post(store, "k")
        instances, _ = await store.instances()
        assert sorted((each.uid, each.live) for each in instances) == [("a", True), ("b", True)]


async def test_a_stale_instance_gets_no_key_while_a_live_one_is_there(redis_url: str) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock) as (_, store):
        for uid in ("a", "b", "c"):
            await store.touch(uid)
        clock.jump(20_000)
        await store.touch("b")
        found = await store.assign_recip_key_to_new_uid([f"k{n}" for n in range(10)])
        assert set(found) == {"b"}
        clock.jump(20_000)
        assert await store.assign_recip_key_to_new_uid(["last"]) != [None], (
            "a stale instance is better than none"
        )


async def test_the_keys_of_a_stale_instance_move_in_pieces(redis_url: str) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock, moves_max=10) as (_, store):
        await store.touch("a")
        names = [f"k{number}" for number in range(35)]
        await store.assign_recip_key_to_new_uid(names)
        await post(store, "k7")
        clock.jump(16_000)
        await store.touch("b")
        sweep = await store.sweep()
        assert (sweep.moved, sweep.again) == (10, True)
        assert await owner(store, "k7") == "b", "the key with a message moves first"
        assert await post(store, "k30") == ["queued"]
        assert await owner(store, "k30") == "b", "a key that is written to moves at once"
        while (await store.sweep()).again:
            pass
        assert [(each.uid, each.keys) for each in (await store.instances())[0]] == [("b", 35)]


@LAYOUTS
async def test_a_clock_set_back_does_not_keep_the_keys_of_a_dead_instance(
    redis_url: str, layout: str
) -> None:
    clock = FakeClock()
    async with routing(redis_url, layout=layout, clock=clock) as (_, store):
        await store.touch("dead")
        await post(store, "k", b"1", b"2")
        clock.jump(-3_600_000)
        await store.touch("b")
        await store.sweep()
        assert await owner(store, "k") == "dead", "its heartbeat is in the future"
        clock.jump(16_000)
        await store.touch("b")
        await store.sweep()
        assert await owner(store, "k") == "b"


async def test_an_instance_that_returns_during_a_move_keeps_its_remaining_keys(
    redis_url: str,
) -> None:
    clock = FakeClock()
    async with routing(redis_url, clock=clock, moves_max=10) as (_, store):
        await store.touch("a")
        await store.assign_recip_key_to_new_uid([f"k{number}" for number in range(35)])
        await post(store, "k7")
        clock.jump(16_000)
        await store.touch("b")
        await store.sweep()
        assert not await store.touch("a")
        assert (await store.sweep()).moved == 0
        found = {each.uid: each.keys for each in (await store.instances())[0]}
        assert found == {"a": 25, "b": 10}


@LAYOUTS
async def test_a_retired_instance_loses_its_keys_when_a_message_waits(
    redis_url: str, layout: str
) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        await store.touch("a")
        await store.retire("a")
        assert (await store.instances())[0] == [], "without keys there is nothing to keep"
        await store.retire("a")  # unknown: nothing happens
        await store.touch("a")
        await post(store, "k")
        await store.retire("a")
        await store.touch("b")
        assert (await store.sweep()).moved == 1
        assert await owner(store, "k") == "b"
        assert await subjects(runtime, "retired", "removed") == ["a", "a", "a"]


@LAYOUTS
async def test_taken_messages_stay_until_they_are_finished(redis_url: str, layout: str) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        assert await store.claim("a", 0, 10) is None, "not registered"
        await store.touch("a")
        await post(store, "k", b"1", b"2", b"3")
        claim = await store.claim("a", 0, 10)
        assert claim is not None
        assert [*claim.again, *claim.fresh] == ["k"]
        if layout == "native":
            second = await store.claim("a", 0, 10)
            assert second is not None
            assert (second.again, second.fresh) == ([], []), "named once"
            third = await store.claim("a", 0, 10, again=True)
            assert third is not None
            assert third.again == ["k"]
        items = await take(store, "a", "k", 2)
        assert (await store.show("k")).waiting == 3
        done = FinishedKey("k", [(id_of(item), "") for item in items])
        assert await store.finish("a", 0, [done]) == ["more"]
        assert await counts(runtime) == {"a_k": 1}
        assert await store.finish("a", 0, [done]) == ["more"], "a second time changes nothing"
        assert await counts(runtime) == {"a_k": 1}
        assert len(await handle_all(store, "a", "k")) == 1


@LAYOUTS
async def test_only_the_owner_takes_and_finishes(redis_url: str, layout: str) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        await store.touch("a")
        await post(store, "k")
        items = await take(store, "a", "k", 5)
        done = FinishedKey("k", [(id_of(items[0]), "")])
        assert await store.take("b", 0, ["k"], 5) == ["not_owner"]
        assert await store.finish("b", 0, [done]) == ["not_owner"]
        assert await counts(runtime) == {"a_k": 1}
        assert await subjects(runtime, "handled") == []


@LAYOUTS
async def test_a_message_finished_with_a_reason_becomes_a_dead_letter(
    redis_url: str, layout: str
) -> None:
    async with routing(redis_url, layout=layout) as (runtime, store):
        await store.touch("a")
        await post(store, "k", b"1", b"2")
        items = await take(store, "a", "k", 5)
        ends = [(id_of(items[0]), "poison"), (id_of(items[1]), "")]
        assert await store.finish("a", 0, [FinishedKey("k", ends)]) == ["finished"]
        place = runtime.keyspace.name(keys.INBOUND_DEAD)
        (dead,) = await runtime.redis.call("LRANGE", place, 0, -1, key=place)
        found = json.loads(dead)
        assert (found["reason"], found["recip_key"]) == ("poison", "k")
        assert found["message"].encode() == items[0]
        assert [event.detail for event in await events(runtime, "dead")] == ["poison"]
        assert len(await subjects(runtime, "handled")) == 1


async def test_a_large_message_comes_alone_and_the_others_later(redis_url: str) -> None:
    async with routing(redis_url, limits={"batch_bytes_max": 1_000}) as (_, store):
        await store.touch("a")
        await post(store, "big", b"x" * 5_000)
        await post(store, "small", b"1", b"2")
        big, later = await store.take("a", 0, ["big", "small"], 10)
        assert isinstance(big, TakenInbound)
        assert len(big.messages) == 1
        assert later == "later"
        small, big_later = await store.take("a", 0, ["small", "big"], 10)
        assert isinstance(small, TakenInbound)
        assert len(small.messages) == 2
        assert big_later == "later"


async def test_rebalancing_moves_idle_keys_to_instances_with_fewer(any_redis_url: str) -> None:
    async with routing(any_redis_url, moves_max=7) as (runtime, store):
        await store.touch("a")
        names = [f"k{number}" for number in range(60)]
        await store.assign_recip_key_to_new_uid(names)
        for name in names[:5]:
            await post(store, name)
        assert await store.rebalance() == 0
        await store.touch("b")
        await store.touch("c")
        assert await store.rebalance() > 30
        assert all([await owner(store, name) == "a" for name in names[:5]]), (
            "keys with messages stay"
        )
        sizes = sorted(each.keys for each in (await store.instances())[0])
        spread = 1 if runtime.settings.partitions == 1 else 6
        assert sizes[-1] - sizes[0] <= spread
        assert await store.rebalance() == 0


@LAYOUTS
async def test_a_response_goes_to_the_relay_of_its_call(redis_url: str, layout: str) -> None:
    async with routing(redis_url, layout=layout) as (_, store):
        for relay in ("aaaa", "bbbb", "aaaa"):
            assert await store.post_response(DirectResponse(f"{relay}.1", "text/plain", b"x"))
        assert len(await store.take_responses("aaaa")) == 2
        assert await store.take_responses("aaaa") == []
        (item,) = await store.take_responses("bbbb")
        assert decode_response(item) == DirectResponse("bbbb.1", "text/plain", b"x")


async def test_a_key_without_any_message_is_unknown(any_redis_url: str) -> None:
    async with routing(any_redis_url) as (_, store):
        with pytest.raises(RecipientUnknown) as error:
            await store.show("never")
        assert isinstance(error.value, NotFound)


async def test_the_number_of_instances_is_limited(redis_url: str) -> None:
    async with routing(redis_url) as (runtime, store):
        place = runtime.keyspace.name(keys.UID_LAST_ACCESS)
        for start in range(1, 8_192, 500):
            pairs = [
                text
                for number in range(start, min(8_192, start + 500))
                for text in (f"u{number}", f"1:{number}")
            ]
            await runtime.redis.call("HSET", place, *pairs, key=place)
        with pytest.raises(InstancesFull):
            await store.touch("one more")
        await store.sweep()  # silent ones without keys go
        assert await store.touch("one more")


async def test_keys_of_several_partitions_have_their_own_owners(any_redis_url: str) -> None:
    async with routing(any_redis_url) as (runtime, store):
        for uid in ("a", "b"):
            await store.touch(uid)
        names = [f"k{number}" for number in range(40)]
        for name in names:
            await post(store, name)
        instances, _ = await store.instances()
        assert sum(each.keys for each in instances) == 40
        assert sum((await counts(runtime)).values()) == 40
        for name in names:
            found = await owner(store, name)
            assert found is not None
            assert len(await handle_all(store, found, name)) == 1
        assert await counts(runtime) == {}


def test_every_script_of_the_module_is_declared() -> None:
    from pathlib import Path

    import angarium.routing

    folder = Path(angarium.routing.__file__).parent
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    for path in folder.glob("lua/*.lua"):
        assert f'"{path.stem}"' in text, path.name
