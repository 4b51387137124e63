"""F2: the ACA-Py plugin uses the Redis client and the limits of every other process.

The plugin can't read the settings, so it follows what the roles recorded in Redis. Its own section
`redis_queue` wins over the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from angarium.redis.embedded.server import find_server
from angarium.redis.errors import ServerUnsuitable, SettingInvalid
from angarium.routing import keys as routing_keys
from angarium.routing.acapy.config import PluginConfig, read_config
from angarium.routing.acapy.plugin_runtime import JOURNAL_BYTES_MAX, PluginRuntime
from angarium.runtime import keys as runtime_keys
from angarium.runtime.limits import MIB
from angarium.server.app import compose
from angarium.settings import Settings
from tests.kit.eventually import eventually
from tests.kit.sample import sample_settings
from tests.kit.sentinel import SentinelProcess
from tests.kit.server import ServerProcess

needs_waitaof = pytest.mark.skipif(
    find_server().version < (7, 2, 0), reason="this server has no WAITAOF; the wheel's has"
)


@asynccontextmanager
async def plugin(url: str, prefix: str, **section: Any) -> AsyncIterator[PluginRuntime]:
    """What an agent with one transport holds while it runs."""
    link = PluginRuntime(PluginConfig(url, prefix=prefix, **section))
    await link.enter()
    try:
        yield link
    finally:
        await link.leave()


async def run_a_role(settings: Settings) -> None:
    async with compose(["deliverer"], settings):
        pass


async def push(link: PluginRuntime) -> Any:
    return await (await link.outbound()).push("http://receiver.example/", b"x", {})


async def test_the_plugin_follows_the_record_of_the_roles(redis_url: str) -> None:
    settings = sample_settings(redis_url, journal={"bytes_max": 512 * MIB})
    async with plugin(redis_url, settings.prefix) as link:
        options = (await link.runtime()).options
        assert options.journal_bytes_max == JOURNAL_BYTES_MAX
        assert options.redis.durability == "memory"
    await run_a_role(settings)
    async with plugin(redis_url, settings.prefix) as link:
        assert (await link.runtime()).options.journal_bytes_max == 512 * MIB
    async with plugin(redis_url, settings.prefix, journal_bytes_max=64 * MIB) as link:
        assert (await link.runtime()).options.journal_bytes_max == 64 * MIB


@pytest.mark.parametrize("recorded_mib", [None, 512])
async def test_the_plugin_trims_the_journal_only_at_the_recorded_limit(
    redis_server: ServerProcess, recorded_mib: int | None
) -> None:
    """The script trims by the journal's own counters, so the test moves them to 304 MiB."""
    settings = sample_settings(redis_server.url)
    if recorded_mib is not None:
        journal = {"bytes_max": recorded_mib * MIB}
        await run_a_role(sample_settings(redis_server.url, prefix=settings.prefix, journal=journal))
    witness = redis_server.client(decode_responses=True)
    async with plugin(redis_server.url, settings.prefix) as link:
        name = (await link.runtime()).keyspace.name
        stream, meta = name(runtime_keys.JOURNAL, 0), name(runtime_keys.JOURNAL_META, 0)
        for _ in range(16):
            await push(link)
        witness.hset(meta, "bytes", 304 * MIB - 1)
        await push(link)
        assert witness.xlen(stream) == (17 if recorded_mib else 14)
        assert witness.hget(meta, "dropped_entries") == (None if recorded_mib else "3")


async def test_the_plugin_writes_no_journal_when_the_roles_write_none(
    redis_server: ServerProcess,
) -> None:
    settings = sample_settings(redis_server.url, journal={"enabled": False})
    await run_a_role(settings)
    async with plugin(redis_server.url, settings.prefix) as link:
        await push(link)
        name = (await link.runtime()).keyspace.name
        witness = redis_server.client()
        assert witness.llen(name(routing_keys.OUTBOUND, 0)) == 1
        assert witness.exists(name(runtime_keys.JOURNAL, 0)) == 0


async def test_the_plugin_refuses_a_server_that_evicts_keys() -> None:
    config = {"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"}
    with ServerProcess(config=config) as server:
        with pytest.raises(ServerUnsuitable, match=r"redis_queue\.connection.*allkeys-lru"):
            async with plugin(server.url, "f2:"):
                pytest.fail("the plugin started")
        assert server.client().dbsize() == 0


@needs_waitaof
@pytest.mark.parametrize("told_by", ["record", "section"])
async def test_the_plugin_waits_for_the_disk_at_durability_local(told_by: str) -> None:
    with ServerProcess(aof=True, config={"appendfsync": "no"}) as server:
        settings = sample_settings(server.url, durability="local")
        section: dict[str, Any] = {}
        if told_by == "record":
            await run_a_role(settings)
        else:
            section["durability"] = "local"
        witness = server.client(decode_responses=True)
        async with plugin(server.url, settings.prefix, **section) as link:
            pushing = asyncio.create_task(push(link))
            await eventually(lambda: witness.info("clients")["blocked_clients"] == 1)
            assert not pushing.done()
            witness.config_set("appendfsync", "always")
            witness.set("any", "write")
            assert await pushing == b"queued"


async def test_the_plugin_follows_sentinels_to_the_next_primary() -> None:
    with SentinelProcess() as group:
        async with plugin(group.url, "f2:") as link:
            assert await push(link) == b"queued"
            group.failover()
            store = await link.routing()
            assert await store.touch("instance")
            assert group.primary.client().hexists("f2:uid_last_access_map", "instance")


async def test_a_recorded_durability_of_a_newer_version_is_named(
    redis_server: ServerProcess,
) -> None:
    record = "f2-newer:angarium:layout"
    redis_server.client().hset(record, "durability", "two_regions")
    with pytest.raises(SettingInvalid, match=r"redis_queue\.durability.*two_regions"):
        async with plugin(redis_server.url, "f2-newer:"):
            pytest.fail("the plugin started")


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"durability": "disk"}, r"redis_queue\.durability.*'disk'.*memory, local, replica"),
        ({"journal_bytes_max": 0}, r"redis_queue\.journal_bytes_max.*1 or more"),
        ({"journal_bytes_max": "much"}, r"redis_queue\.journal_bytes_max.*'much'"),
        ({"partitions": "-1"}, r"redis_queue\.partitions.*'-1'"),
    ],
)
def test_a_section_with_a_bad_value_is_refused(section: dict[str, Any], problem: str) -> None:
    connection = {"connection_url": "redis://localhost"}
    settings = {"plugin_config": {"redis_queue": {"connection": connection, **section}}}
    with pytest.raises(SettingInvalid, match=problem):
        read_config(settings)


def test_a_section_may_set_durability_and_journal_size() -> None:
    section = {
        "connection": {"connection_url": "redis://localhost"},
        "journal-bytes-max": "1048576",
    }
    found = read_config({"plugin_config": {"redis_queue": {**section, "durability": "local"}}})
    assert (found.durability, found.journal_bytes_max) == ("local", MIB)
