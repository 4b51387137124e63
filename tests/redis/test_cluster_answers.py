"""Redirections in the middle of a pipeline, failovers: still every answer to its own command."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from angarium.redis.blocking import BlockingRedis
from angarium.redis.client import Redis
from angarium.redis.cluster import slot_of
from angarium.redis.commands import Command
from angarium.redis.connection import ReplyError
from angarium.redis.errors import OutcomeUnknown, RedisUnavailable
from angarium.redis.options import RedisOptions
from tests.kit.cluster import ClusterProcess
from tests.kit.eventually import eventually
from tests.kit.sentinel import SentinelProcess
from tests.kit.server import ServerProcess
from tests.redis.drive import drive
from tests.redis.model import Model
from tests.redis.scripted import Answer, ScriptedServer, Words, array, bulk, scripted

PATIENT_S = 30.0
COMMANDS = 20_000


def options(url: str, **changes: Any) -> RedisOptions:
    return RedisOptions(url, unavailable_timeout_s=PATIENT_S, **changes)


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[ClusterProcess]:
    """Slots are moved here, which other tests must not notice."""
    with ClusterProcess() as cluster:
        yield cluster


def other_than(cluster: ClusterProcess, node: ServerProcess) -> ServerProcess:
    return next(each for each in cluster.nodes if each is not node)


async def test_asks_in_the_middle_of_a_pipeline_are_followed_one_by_one(
    own_cluster: ClusterProcess,
) -> None:
    """Half of the keys have moved: those are answered there, the others here, all in place."""
    tag = f"{{{secrets.token_hex(4)}}}"
    names = [f"{tag}:{number}" for number in range(200)]
    async with Redis(options(own_cluster.url)) as redis:
        for name in names:
            await redis.call("SET", name, f"value of {name}", key=name)
        target = other_than(own_cluster, own_cluster.node_of(tag))
        with own_cluster.migrating(slot_of(tag), target) as move:
            move.keys(100)
            commands: list[Command] = []
            for name in names:
                commands += [("GET", name), ("ECHO", f"beside {name}"), ("INCR", name)]
            replies = await redis.execute(commands, key=tag, repeatable=False)
        assert replies[0::3] == [f"value of {name}".encode() for name in names]
        assert replies[1::3] == [f"beside {name}".encode() for name in names]
        assert {str(reply) for reply in replies[2::3]} == {
            "ERR value is not an integer or out of range"
        }
        assert all(isinstance(reply, ReplyError) for reply in replies[2::3])
        assert await redis.execute(commands, key=tag, repeatable=False) != [], "after MOVED"


async def test_nothing_of_a_pipeline_is_done_twice_while_its_slot_moves(
    own_cluster: ClusterProcess,
) -> None:
    tag = f"{{{secrets.token_hex(4)}}}"
    names = [f"{tag}:{number}" for number in range(50)]
    rounds = 0
    async with Redis(options(own_cluster.url)) as redis:
        moving = True

        async def count() -> None:
            nonlocal rounds
            while moving or rounds < 3:
                commands = [("INCR", name) for name in names]
                replies = await redis.execute(commands, key=tag, repeatable=False)
                rounds += 1
                assert replies == [rounds] * len(names)

        counting = asyncio.create_task(count())
        for _ in range(3):
            target = other_than(own_cluster, own_cluster.node_of(tag))
            await asyncio.to_thread(own_cluster.move_slot, slot_of(tag), target)
        moving = False
        await counting
        assert redis.unmatched == 0


async def test_keys_on_both_sides_are_tried_again_until_they_are_together(
    own_cluster: ClusterProcess,
) -> None:
    """TRYAGAIN: nothing was done, and the other commands of the pipeline are not repeated."""
    tag = f"{{{secrets.token_hex(4)}}}"
    one, two, counter = f"{tag}:one", f"{tag}:two", f"{tag}:counter"
    async with Redis(options(own_cluster.url)) as redis:
        for name in (one, two):
            await redis.call("SET", name, name, key=tag)
        target = other_than(own_cluster, own_cluster.node_of(tag))
        with own_cluster.migrating(slot_of(tag), target) as move:
            move.keys(1)
            commands = [("INCR", counter), ("MGET", one, two), ("ECHO", "mine")]
            asking = asyncio.create_task(redis.execute(commands, key=tag, repeatable=False))
            # The moved key, and the counter that was not anywhere before.
            question = ("CLUSTER", "COUNTKEYSINSLOT", slot_of(tag))
            await eventually(lambda: target.ask(*question) == 2)
            assert not asking.done()
        assert await asking == [1, [one.encode(), two.encode()], b"mine"]


async def test_the_model_over_a_cluster_whose_slot_moves(own_cluster: ClusterProcess) -> None:
    async with Redis(options(own_cluster.url)) as redis:
        model = Model(redis, random.Random(17))
        slot = slot_of(model.prefix)

        async def fault() -> str:
            target = other_than(own_cluster, own_cluster.owner_of(slot))
            await asyncio.to_thread(own_cluster.move_slot, slot, target)
            return "moved"

        happened = await drive(model, random.Random(17), COMMANDS, fault)
        await model.settle()
        assert happened["moved"] >= 1
        assert model.outcomes["answered"] > 100


async def test_the_model_over_the_failover_of_a_node() -> None:
    """Replication is asynchronous, so counters may lose what was answered: echoes only."""
    with ClusterProcess(replicas=True) as cluster:
        async with Redis(options(cluster.url)) as redis:
            await _echo_through(redis, lambda: cluster.failover(cluster.node_of("model")))


async def test_the_model_over_the_failover_of_a_sentinel_group() -> None:
    with SentinelProcess() as group:
        async with Redis(options(group.url)) as redis:
            await _echo_through(redis, group.failover)


async def _echo_through(redis: Redis, failover: Any) -> None:
    over = asyncio.Event()
    answered = unknown = 0

    async def caller(number: int) -> None:
        nonlocal answered, unknown
        last = 0
        while last < 5:
            last += over.is_set()
            value = f"{number}-{secrets.token_hex(8)}"
            commands = [("SET", "{model}:a", value), ("ECHO", value), ("NONSENSE", value)]
            try:
                replies = await redis.execute(commands, key="{model}", repeatable=number % 2 == 0)
            except OutcomeUnknown:
                assert number % 2, "a call that may be repeated was"
                unknown += 1
                continue
            answered += 1
            assert replies[:2] == [b"OK", value.encode()]
            assert value in str(replies[2])
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as callers:
        tasks = [callers.create_task(caller(number)) for number in range(20)]
        await eventually(lambda: answered > 100)
        await asyncio.to_thread(failover)
        over.set()
    assert all(task.done() for task in tasks)
    assert answered > 200
    assert redis.unmatched == 0


def test_the_client_without_a_loop_follows_asks_in_a_pipeline(own_cluster: ClusterProcess) -> None:
    tag = f"{{{secrets.token_hex(4)}}}"
    names = [f"{tag}:{number}" for number in range(20)]
    with BlockingRedis(options(own_cluster.url)) as redis:
        redis.ask([("SET", name, name) for name in names], key=tag)
        target = other_than(own_cluster, own_cluster.node_of(tag))
        with own_cluster.migrating(slot_of(tag), target) as move:
            move.keys(10)
            found = redis.ask([("GET", name) for name in names], key=tag)
        assert found == [name.encode() for name in names]


# Scripted clusters ------------------------------------------------------------------------------


def slots(port: int) -> bytes:
    """CLUSTER SLOTS: everything is at this port."""
    node = array(bulk(b"127.0.0.1"), b":%d\r\n" % port, bulk(b"%040d" % port))
    return array(array(b":0\r\n", b":16383\r\n", node))


async def test_a_node_that_was_cut_off_does_not_keep_the_client_for_itself() -> None:
    """It answers CLUSTER SLOTS with an old map, and every command with CLUSTERDOWN."""
    servers: dict[str, ScriptedServer] = {}

    def cut_off(number: int, words: Words) -> Answer:
        if words[0] == b"CLUSTER":
            return slots(servers["old"].port)
        return b"-CLUSTERDOWN The cluster is down\r\n" if words[0] == b"GET" else None

    def well(number: int, words: Words) -> Answer:
        return slots(servers["new"].port) if words[0] == b"CLUSTER" else None

    async with scripted(cut_off) as old, scripted(well) as new:
        servers |= {"old": old, "new": new}
        url = f"redis+cluster://127.0.0.1:{old.port},127.0.0.1:{new.port}"
        async with Redis(RedisOptions(url, unavailable_timeout_s=10)) as redis:
            assert await redis.call("GET", "a", key="a") == b"a"


NONSENSE = ["ASK", "ASK 1", "ASK 1 nowhere", "ASK 1 h:x", "ASK 1 h:99999", "MOVED", "MOVED x"]


@pytest.mark.parametrize("text", NONSENSE)
async def test_a_redirection_that_makes_no_sense_is_no_end_of_the_process(text: str) -> None:
    servers: list[ScriptedServer] = []
    refusals = 3

    def on_command(number: int, words: Words) -> Answer:
        nonlocal refusals
        if words[0] == b"CLUSTER":
            return slots(servers[0].port)
        if words[0] == b"GET" and refusals:
            refusals -= 1
            return f"-{text}\r\n".encode()
        return None

    async with scripted(on_command) as server:
        servers.append(server)
        url = f"redis+cluster://127.0.0.1:{server.port}"
        async with Redis(RedisOptions(url, unavailable_timeout_s=10)) as redis:
            assert await redis.call("GET", "a", key="a") == b"a"


@pytest.mark.parametrize("reply", [b":1\r\n", b"*1\r\n:1\r\n", b"*1\r\n*3\r\n:0\r\n:1\r\n:2\r\n"])
async def test_a_map_that_makes_no_sense_is_asked_for_elsewhere(reply: bytes) -> None:
    servers: list[ScriptedServer] = []

    def well(number: int, words: Words) -> Answer:
        return slots(servers[0].port) if words[0] == b"CLUSTER" else None

    def odd(number: int, words: Words) -> Answer:
        return reply if words[0] == b"CLUSTER" else None

    async with scripted(well) as server, scripted(odd) as other:
        servers.append(server)
        url = f"redis+cluster://127.0.0.1:{other.port},127.0.0.1:{server.port}"
        async with Redis(RedisOptions(url, unavailable_timeout_s=10)) as redis:
            assert await redis.call("GET", "a", key="a") == b"a"


@pytest.mark.parametrize("reply", [b"*-1\r\n", b":1\r\n", b"*0\r\n", b"*2\r\n:1\r\n+x\r\n"])
async def test_a_sentinel_that_makes_no_sense_is_passed_over(reply: bytes) -> None:
    async with scripted() as server:
        place = array(bulk(b"127.0.0.1"), bulk(b"%d" % server.port))
        async with (
            scripted(lambda n, words: reply if words[0] == b"SENTINEL" else None) as odd,
            scripted(lambda n, words: place if words[0] == b"SENTINEL" else None) as well,
        ):
            url = f"redis+sentinel://127.0.0.1:{odd.port},127.0.0.1:{well.port}/main"
            async with Redis(RedisOptions(url, unavailable_timeout_s=10)) as redis:
                assert await redis.call("GET", "a") == b"a"


async def test_a_node_that_is_given_up_opens_no_more_connections(
    own_cluster: ClusterProcess,
) -> None:
    async with Redis(options(own_cluster.url)) as redis:
        node = await redis._topology.node_of("a")
        await node.connection()
        await node.close()
        for opening in (node.connection, node.open):
            with pytest.raises(RedisUnavailable):
                await opening()
        with contextlib.suppress(RedisUnavailable):
            async with node.durable.take():
                raise AssertionError("a connection that nobody would close")
