"""The cluster and the sentinels are real: slots move, replicas take over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import redis
from tests.kit.cluster import SLOTS, ClusterProcess, slot_of
from tests.kit.sentinel import SentinelProcess
from tests.kit.server import ServerProcess


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterProcess]:
    with ClusterProcess() as started:
        yield started


def refusal(server: ServerProcess, *command: str) -> str:
    """What the server itself answers, before any client follows it."""
    with pytest.raises(redis.ResponseError) as caught:
        server.ask(*command)
    return type(caught.value).__name__


def other_than(cluster: ClusterProcess, node: ServerProcess) -> ServerProcess:
    return next(candidate for candidate in cluster.nodes if candidate is not node)


def test_all_slots_are_served_by_three_nodes(cluster: ClusterProcess) -> None:
    assert cluster.url.count("127.0.0.1:") == 3
    assert cluster.url.startswith("redis+cluster://")
    owners = {cluster.owner_of(slot).port for slot in (0, SLOTS // 2, SLOTS - 1)}
    assert owners == {node.port for node in cluster.nodes}
    witness = cluster.client(decode_responses=True)
    for number in range(100):
        witness.set(f"spread:{number}", number)
    assert [witness.get(f"spread:{number}") for number in range(100)] == [
        str(number) for number in range(100)
    ]
    assert all(node.client().dbsize() > 0 for node in cluster.nodes)
    witness.close()


def test_a_key_is_found_at_its_node_and_moved_from_the_others(cluster: ClusterProcess) -> None:
    owner = cluster.node_of("{p1}:x")
    owner.ask("SET", "{p1}:x", "1")
    assert cluster.node_of("{p1}:y") is owner
    assert refusal(other_than(cluster, owner), "GET", "{p1}:x") == "MovedError"


def test_a_slot_on_its_way_answers_ask_and_then_moved(cluster: ClusterProcess) -> None:
    slot, source = slot_of("{p2}"), cluster.node_of("{p2}")
    target = other_than(cluster, source)
    names = [f"{{p2}}:{number}" for number in range(120)]
    source.client().mset({name: name for name in names})
    with cluster.migrating(slot, target) as move:
        assert refusal(source, "GET", "{p2}:absent") == "AskError"
        assert refusal(target, "GET", "{p2}:1") == "MovedError"
        assert move.keys(10) == 10
    assert cluster.owner_of(slot) is target
    assert refusal(source, "GET", "{p2}:1") == "MovedError"
    assert target.client(decode_responses=True).mget(names) == names


def test_a_replica_takes_over_from_a_killed_primary_of_the_cluster() -> None:
    with ClusterProcess(replicas=True) as cluster:
        primary = cluster.node_of("key")
        client = primary.client()
        client.set("key", "1")
        assert client.wait(1, 5_000) == 1
        heir = cluster.failover(primary)
        assert heir in cluster.replicas
        assert cluster.node_of("key") is heir
        assert heir.ask("GET", "key") == "1"
        primary.restart()
        primary.wait_for("role:slave", lambda info: info["role"] == "slave")


def test_sentinels_make_the_replica_primary_and_the_lost_one_follows() -> None:
    with SentinelProcess() as group:
        old, heir = group.primary, group.replica
        assert group.url.endswith("/mymaster")
        assert group.url.count("127.0.0.1:") == 3
        client = old.client()
        client.set("key", "1")
        assert client.wait(1, 5_000) == 1
        assert group.failover() is heir
        assert group.primary is heir
        assert heir.client().get("key") == b"1"
        assert group.rejoin() is old
        with pytest.raises(redis.ReadOnlyError):
            old.client().set("key", "2")


def test_one_sentinel_is_enough_to_be_asked() -> None:
    with SentinelProcess(sentinels=1) as group:
        assert group.primary_port(group.sentinels[0]) == group.primary.port
        assert group.url == f"redis+sentinel://127.0.0.1:{group.sentinels[0].port}/mymaster"
