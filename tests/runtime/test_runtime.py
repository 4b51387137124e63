"""The runtime as modules see it: agreement on the layout, durability that is what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from angarium.redis.embedded.server import find_server
from angarium.runtime import keys
from angarium.runtime.errors import LayoutMismatch, ServerUnsuitable
from angarium.runtime.runtime import Runtime, new_actor
from angarium.settings import load
from tests.kit.eventually import eventually
from tests.kit.sample import SampleStore, sample_runtime, sample_settings
from tests.kit.server import ServerProcess


async def test_other_partitions_than_redis_holds_are_refused(redis_url: str) -> None:
    async with sample_runtime(redis_url, partitions=2) as runtime:
        prefix = runtime.settings.prefix
        assert await SampleStore(runtime).accept("a") == "accepted"
    with pytest.raises(LayoutMismatch, match=r"ANGARIUM_PARTITIONS: .* 2 partitions.*set it to 2"):
        async with sample_runtime(redis_url, partitions=3, prefix=prefix):
            pytest.fail("a mixed layout was let in")
    async with sample_runtime(redis_url, partitions=2, prefix=prefix) as runtime:
        assert await SampleStore(runtime).accept("a") == "duplicate"


async def test_another_layout_version_is_refused(redis_server: ServerProcess) -> None:
    settings = sample_settings(redis_server.url)
    record = f"{settings.prefix}angarium:layout"
    redis_server.client().hset(record, mapping={"layout_version": 99, "partitions": 1})
    with pytest.raises(LayoutMismatch, match=r"layout 99.*ANGARIUM_PREFIX"):
        async with Runtime.open(settings):
            pytest.fail("a future layout was let in")


async def test_many_processes_that_start_first_agree_on_the_layout(redis_url: str) -> None:
    prefix = sample_settings(redis_url).prefix

    async def start(partitions: int) -> int:
        try:
            async with sample_runtime(redis_url, partitions=partitions, prefix=prefix):
                return partitions
        except LayoutMismatch:
            return 0

    winners = set(await asyncio.gather(*(start(1 + n % 3) for n in range(12)))) - {0}
    assert len(winners) == 1


async def test_prefixes_separate_keyspaces_and_are_listed(redis_server: ServerProcess) -> None:
    async with sample_runtime(redis_server.url) as one, sample_runtime(redis_server.url) as two:
        assert await SampleStore(one).accept("same id") == "accepted"
        assert await SampleStore(two).accept("same id") == "accepted"
        known = redis_server.client().smembers(one.keyspace.global_name(keys.KEYSPACES))
        assert {one.settings.prefix.encode(), two.settings.prefix.encode()} <= known


async def test_keys_have_the_hash_tag_only_when_there_are_partitions(
    redis_server: ServerProcess,
) -> None:
    async with (
        sample_runtime(redis_server.url) as one,
        sample_runtime(redis_server.url, partitions=2) as two,
    ):
        await SampleStore(one).accept("a")
        for number in range(20):
            await SampleStore(two).accept(f"id{number}")
        witness = redis_server.client(decode_responses=True)
        assert witness.exists(f"{one.settings.prefix}messages:pending:payloads") == 1
        for partition in (0, 1):
            name = f"{{p{partition}}}:{two.settings.prefix}messages:pending:payloads"
            assert witness.exists(name) == 1


needs_waitaof = pytest.mark.skipif(
    find_server().version < (7, 2, 0), reason="this server has no WAITAOF; the wheel's has"
)


@pytest.mark.parametrize("fsync", ["always", pytest.param("everysec", marks=needs_waitaof)])
async def test_what_was_acknowledged_at_local_survives_kill_9(
    fsync: Literal["always", "everysec"],
) -> None:
    with ServerProcess(aof=True, fsync=fsync) as server:
        async with sample_runtime(server.url, durability="local") as runtime:
            store = SampleStore(runtime)
            acknowledged = []
            for number in range(3):
                ids = [f"{number}-{n}" for n in range(50)]
                await asyncio.gather(*(store.accept(i) for i in ids))
                acknowledged += ids
                server.kill()
                server.restart()
                assert sorted(await store.all_ids()) == sorted(acknowledged)


@needs_waitaof
async def test_a_duplicate_is_as_durable_as_the_first() -> None:
    """The second caller's answer rests on the first's write, so it waits for the disk too."""
    with ServerProcess(aof=True, config={"appendfsync": "no"}) as server:
        async with sample_runtime(server.url) as quick:
            await SampleStore(quick).accept("a")
            prefix = quick.settings.prefix
            async with sample_runtime(server.url, durability="local", prefix=prefix) as runtime:
                repeating = asyncio.create_task(SampleStore(runtime).accept("a"))
                witness = server.client(decode_responses=True)
                await eventually(lambda: witness.info("clients")["blocked_clients"] == 1)
                assert not repeating.done()
                witness.config_set("appendfsync", "always")
                witness.set("any", "write")
                assert await repeating == "duplicate"


@needs_waitaof
async def test_one_batch_waits_for_the_disk_once() -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        async with sample_runtime(server.url, durability="local") as runtime:
            store = SampleStore(runtime)
            await store.accept("warm")
            witness = server.client(decode_responses=True)

            def waits() -> int:
                return int(witness.info("commandstats")["cmdstat_waitaof"]["calls"])

            before = waits()
            await asyncio.gather(*(store.accept(f"id{n}") for n in range(20)))
            assert waits() - before == 1
            await asyncio.gather(*(store.accept(f"more{n}") for n in range(200)))
            assert waits() - before <= 3, "many leave in two halves, and each half waits once"


async def test_the_embedded_server_keeps_what_was_stored(tmp_path: Path) -> None:
    settings = load(home=tmp_path / "home", durability="local")
    async with Runtime.open(settings) as runtime:
        assert await SampleStore(runtime).accept("kept") == "accepted"
    async with Runtime.open(settings) as runtime:
        assert await SampleStore(runtime).accept("kept") == "duplicate"


async def test_a_refused_start_changes_nothing() -> None:
    config = {"maxmemory": "50mb", "maxmemory-policy": "volatile-ttl"}
    with ServerProcess(config=config) as server:
        with pytest.raises(ServerUnsuitable):
            async with sample_runtime(server.url):
                pytest.fail("let in")
        assert server.client().dbsize() == 0


def test_no_two_actors_are_the_same() -> None:
    assert len({new_actor() for _ in range(100)}) == 100
