"""One runner for a lake: who has it, who waits, and what becomes of it in an outage."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from angarium.lake import keys
from angarium.lake.runner_lease import RunnerLease
from angarium.redis.blocking import BlockingRedis
from angarium.redis.options import RedisOptions
from angarium.runtime.keyspace import Keyspace
from tests.kit.eventually import wait_until

LAKE = "6c8de113"
WAIT_S = 20.0


@pytest.fixture
def redis(redis_url: str) -> Iterator[BlockingRedis]:
    with BlockingRedis(RedisOptions(redis_url)) as found:
        yield found


def lease(url: str, prefix: str, lake: str = LAKE, lease_ms: int = 15_000) -> RunnerLease:
    return RunnerLease(
        RedisOptions(url), Keyspace(prefix, 1), lake, f"/lakes/{lake}", lease_ms=lease_ms
    )


def test_a_second_runner_is_told_who_has_the_lake(redis_url: str, prefix: str) -> None:
    with lease(redis_url, prefix) as first, lease(redis_url, prefix) as second:
        assert first.acquire()
        assert not second.acquire()
        assert second.holder == first.holder
    with lease(redis_url, prefix) as third:
        assert third.acquire(), "it was given back"
        assert third.term is not None
        assert first.term is not None
        assert third.term > first.term


def test_a_second_runner_waits_until_the_first_has_ended(redis_url: str, prefix: str) -> None:
    gained, stop = threading.Event(), threading.Event()
    with lease(redis_url, prefix, lease_ms=600) as second:

        def wait() -> None:
            if second.wait(stop):
                gained.set()

        with lease(redis_url, prefix) as first:
            assert first.acquire()
            thread = threading.Thread(target=wait)
            thread.start()
            wait_until(lambda: second.holder == first.holder, WAIT_S)
            assert not gained.is_set()
        assert gained.wait(WAIT_S)
        thread.join()


def test_one_that_waits_can_be_stopped(redis_url: str, prefix: str) -> None:
    stop = threading.Event()
    stop.set()
    with lease(redis_url, prefix) as first, lease(redis_url, prefix) as second:
        assert first.acquire()
        assert not second.wait(stop)


def test_two_lakes_on_one_redis_have_a_runner_each(
    redis: BlockingRedis, redis_url: str, prefix: str
) -> None:
    with lease(redis_url, prefix, "one") as first, lease(redis_url, prefix, "two") as second:
        assert first.acquire()
        assert second.acquire()
        name = Keyspace(prefix, 1).name(keys.LAKES)
        found = redis.call("HGETALL", name, key=name)
        assert sorted(found) == [b"/lakes/one", b"/lakes/two", b"one", b"two"]


def test_it_is_kept_for_longer_than_its_time(redis_url: str, prefix: str) -> None:
    with lease(redis_url, prefix, lease_ms=300) as first, lease(redis_url, prefix) as second:
        assert first.acquire()
        first._ended.wait(1.0)  # three times as long; nothing is asserted of when
        assert not second.acquire()
        assert not first.lost.is_set()


def test_one_whose_lease_another_took_is_told_so(
    redis: BlockingRedis, redis_url: str, prefix: str
) -> None:
    name = Keyspace(prefix, 1).name(keys.LAKE_RUNNER, 0, LAKE)
    with lease(redis_url, prefix, lease_ms=300) as first, lease(redis_url, prefix) as second:
        assert first.acquire()
        wait_until(lambda: _taken_from(redis, name, second), WAIT_S)
        assert first.lost.wait(WAIT_S)
        assert second.term is not None
        assert not second.lost.is_set()


def test_a_lease_that_ended_while_redis_was_away_is_had_again(
    redis: BlockingRedis, redis_url: str, prefix: str
) -> None:
    name = Keyspace(prefix, 1).name(keys.LAKE_RUNNER, 0, LAKE)
    with lease(redis_url, prefix, lease_ms=300) as first:
        assert first.acquire()
        term = first.term
        redis.call("DEL", name, key=name)  # as it is after an outage: nobody has it
        wait_until(lambda: first.term != term, WAIT_S)
        assert not first.lost.is_set()
    with lease(redis_url, prefix) as first, lease(redis_url, prefix) as other:
        assert first.acquire()
        redis.call("DEL", name, key=name)
        with lease(redis_url, prefix) as between:
            assert between.acquire()
        assert not first._renew(first._redis), "somebody had it in between"
        assert not other.acquire()


def _taken_from(redis: BlockingRedis, name: str, taker: RunnerLease) -> bool:
    """The lock may be renewed between the two calls; then it is not taken, and tried again."""
    redis.call("DEL", name, key=name)
    return taker.acquire()
