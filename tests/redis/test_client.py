"""Connections: every kind comes back by itself, and what surely did not run is told apart."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock, patch

import pytest
import trustme

from angarium.dispatch import keys
from angarium.redis.address import Address
from angarium.redis.client import Redis
from angarium.redis.cluster import Cluster, slot_of
from angarium.redis.connection import Credentials
from angarium.redis.node import Node, ServerUse
from angarium.redis.url import parse_redis_url
from angarium.runtime.errors import (
    NotDurable,
    OutcomeUnknown,
    RedisUnavailable,
    ScriptFailed,
    ServerUnsuitable,
    SettingInvalid,
)
from angarium.settings import load
from tests.kit.cluster import ClusterProcess
from tests.kit.eventually import eventually
from tests.kit.proxy import FaultProxy
from tests.kit.sample import SampleStore, sample_runtime, sample_settings
from tests.kit.sentinel import SentinelProcess
from tests.kit.server import ServerProcess, replica_of
from tests.kit.tcp_server import tcp_server

PATIENT = {"unavailable_timeout_ms": 20_000}
IMPATIENT = {"unavailable_timeout_ms": 200, "call_timeout_ms": 300}


async def connect(url: str, **redis_settings: int) -> Redis:
    return await Redis.connect(sample_settings(url, redis=redis_settings).redis_options())


def test_urls_are_taken_apart() -> None:
    url = parse_redis_url("rediss+sentinel://joe:p%40ss@a:1,[::1]:2/main/3?verify=false")
    assert url.kind == "sentinel"
    assert [(a.host, a.port) for a in url.addresses] == [("a", 1), ("::1", 2)]
    assert (url.username, url.password, url.primary, url.database) == ("joe", "p@ss", "main", 3)
    assert url.tls
    assert "p@ss" not in repr(url)
    assert parse_redis_url("redis://h").addresses[0].port == 6379
    assert parse_redis_url("redis+sentinel://h/m").addresses[0].port == 26379
    with pytest.raises(SettingInvalid, match="verfy"):
        parse_redis_url("rediss://h?verfy=false")


@pytest.mark.parametrize("key", ["a", "{p1}:x", "{}a", "{a", "a}b{c}d", "{p12}:{x}", "é☃"])
def test_slots_are_the_servers_own(key: str, cluster: ClusterProcess) -> None:
    assert slot_of(key) == cluster.nodes[0].client().execute_command("CLUSTER", "KEYSLOT", key)


async def test_a_refused_command_says_why(redis_url: str) -> None:
    async with await connect(redis_url) as redis:
        with pytest.raises(ScriptFailed, match="unknown command"):
            await redis.call("NONSENSE")
        assert await redis.call("PING") == b"PONG"


async def test_nobody_there_is_unavailable_in_one_line() -> None:
    with pytest.raises(RedisUnavailable, match=r"127\.0\.0\.1:1\b"):
        await connect("redis://127.0.0.1:1", **IMPATIENT)


async def test_a_lost_reply_is_unknown_unless_repeats_are_safe(redis_server: ServerProcess) -> None:
    async with (
        FaultProxy("127.0.0.1", redis_server.port) as proxy,
        await connect(proxy.url, **PATIENT) as redis,
    ):
        name = sample_settings(proxy.url).prefix + "counter"
        proxy.cut_after(0, "client")
        with pytest.raises(OutcomeUnknown):
            await redis.execute([("INCR", name)], key=None, repeatable=False)
        witness = redis_server.client()
        assert witness.get(name) == b"1", "it had happened, and was not sent twice"
        assert await redis.call("PING") == b"PONG", "a new connection, handshake and all"
        proxy.cut_after(0, "client")
        assert await redis.call("INCR", name) == 3


async def test_what_was_never_sent_is_sent_when_redis_is_back(redis_server: ServerProcess) -> None:
    async with (
        FaultProxy("127.0.0.1", redis_server.port) as proxy,
        await connect(proxy.url, **PATIENT) as redis,
    ):
        name = sample_settings(proxy.url).prefix + "counter"
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: proxy.open_connections == 0)
        calls = asyncio.gather(
            *(redis.execute([("INCR", name)], key=None, repeatable=False) for _ in range(20))
        )
        await asyncio.sleep(0)
        proxy.accept()
        assert sorted(reply for (reply,) in await calls) == list(range(1, 21))


async def test_a_silent_connection_is_given_up(redis_server: ServerProcess) -> None:
    async with (
        FaultProxy("127.0.0.1", redis_server.port) as proxy,
        await connect(proxy.url, call_timeout_ms=200) as redis,
    ):
        proxy.half_open("to_client")
        with pytest.raises(OutcomeUnknown, match="no reply in time"):
            await redis.execute([("PING",)], key=None, repeatable=False)
        proxy.heal()
        assert await redis.call("PING") == b"PONG"


async def test_a_cancelled_call_leaves_the_connection_in_step(redis_url: str) -> None:
    async with await connect(redis_url) as redis:
        calls = [asyncio.create_task(redis.call("ECHO", str(n))) for n in range(50)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[1::2] == [b"%d" % n for n in range(1, 50, 2)]
        assert await redis.call("ECHO", "after") == b"after"


async def test_a_subscription_tells_of_the_gap_and_goes_on(redis_server: ServerProcess) -> None:
    async with (
        FaultProxy("127.0.0.1", redis_server.port) as proxy,
        await connect(proxy.url) as redis,
        redis.subscribe("a", "b") as subscription,
    ):
        witness = redis_server.client()
        first = await subscription.receive()
        assert first.gap
        witness.publish("a", "1")
        witness.publish("b", "2")
        received = list((await subscription.receive()).messages)
        while len(received) < 2:
            received += (await subscription.receive()).messages
        assert [(m.channel, m.payload) for m in received] == [(b"a", b"1"), (b"b", b"2")]
        proxy.cut()
        await eventually(lambda: not subscription.subscribed.is_set())
        await subscription.subscribed.wait()
        witness.publish("a", "3")
        batch = await subscription.receive()
        assert batch.gap
        payloads = [m.payload for m in batch.messages]
        while not payloads:
            payloads += [m.payload for m in (await subscription.receive()).messages]
        assert payloads == [b"3"]


async def test_a_refused_subscription_is_told_and_works_when_it_is_allowed(
    redis_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    witness = redis_server.client()
    witness.acl_setuser(
        "mute", enabled=True, nopass=True, keys=["*"], commands=["+@all"], reset_channels=True
    )
    async with (
        await connect(f"redis://mute:any@127.0.0.1:{redis_server.port}") as redis,
        redis.subscribe("secret") as subscription,
    ):
        await eventually(lambda: "subscription_refused" in caplog.text)
        assert not subscription.subscribed.is_set()
        witness.acl_setuser("mute", enabled=True, channels=["*"])
        await subscription.subscribed.wait()


async def test_a_slow_subscriber_is_bounded_and_loses_nothing(redis_server: ServerProcess) -> None:
    async with (
        await connect(redis_server.url) as redis,
        redis.subscribe("flood", messages_max=100) as subscription,
    ):
        await subscription.subscribed.wait()
        witness = redis_server.client()
        for number in range(0, 20_000, 500):
            pipeline = witness.pipeline(transaction=False)
            for n in range(number, number + 500):
                pipeline.publish("flood", n)
            pipeline.execute()
        seen: list[int] = []
        largest = 0
        while len(seen) < 20_000:
            batch = await subscription.receive()
            largest = max(largest, len(batch.messages))
            seen += [int(m.payload) for m in batch.messages]
        assert seen == list(range(20_000))
        assert largest < 20_000, "reading stopped while nobody took the messages"


async def test_a_blocking_read_survives_a_restart() -> None:
    with ServerProcess(aof=True, fsync="always") as server:
        async with await connect(server.url, **PATIENT) as redis:
            reading = asyncio.create_task(
                redis.blocking(
                    "XREAD", "BLOCK", 60_000, "STREAMS", "s", "0", key="s", block_ms=60_000
                )
            )
            await eventually(lambda: server.client().info("clients")["blocked_clients"] == 1)
            server.kill()
            server.restart()
            server.client().xadd("s", {"a": "1"})
            ((stream, entries),) = await reading
            assert stream == b"s"
            assert entries[0][1] == [b"a", b"1"]


async def test_blocking_reads_do_not_hold_up_calls(redis_url: str) -> None:
    async with await connect(redis_url, connections_max=1) as redis:
        readers = [
            asyncio.create_task(
                redis.blocking(
                    "XREAD", "BLOCK", 30_000, "STREAMS", f"s{n}", "0", key="s", block_ms=30_000
                )
            )
            for n in range(20)
        ]
        await asyncio.sleep(0)
        assert await redis.call("PING") == b"PONG"
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


@asynccontextmanager
async def impostor(fsync: str = "everysec", **info: str) -> AsyncIterator[str]:
    """Answers INFO as a server of another kind would, for those no registry offers."""
    text = "".join(f"{name}:{value}\r\n" for name, value in info.items())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line.strip().upper() == b"SETNAME":
                writer.write(b"+OK\r\n")
            if line.strip().upper() in (b"ECHO", b"PING"):
                await reader.readline()
                writer.write(b"+" + (await reader.readline()))
            if line.strip().upper() == b"INFO":
                writer.write(f"${len(text)}\r\n{text}\r\n".encode())
            if line.strip() == b"appendfsync":
                answer = f"*2\r\n$11\r\nappendfsync\r\n${len(fsync)}\r\n{fsync}\r\n"
                writer.write(answer.encode())
        writer.close()

    async with tcp_server(serve) as port:
        yield f"redis://127.0.0.1:{port}"


async def test_a_server_that_is_too_old_is_refused() -> None:
    async with impostor(redis_version="6.2.14") as url:
        with pytest.raises(ServerUnsuitable, match=r"Redis 6\.2\.14 is too old.*7\.0"):
            await connect(url)


async def test_a_server_without_waitaof_is_local_only_if_it_always_syncs() -> None:
    lazy = impostor(redis_version="7.0.15", aof_enabled="1")
    async with lazy as url:
        with pytest.raises(ServerUnsuitable, match=r"ANGARIUM_DURABILITY.*appendfsync always"):
            await Redis.connect(load(redis_url=url, durability="local").redis_options())
    async with (
        impostor("always", redis_version="7.0.15", aof_enabled="1") as url,
        await Redis.connect(load(redis_url=url, durability="local").redis_options()) as redis,
    ):
        assert not redis.info.waitaof


async def test_a_server_that_would_evict_is_refused() -> None:
    config = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    refusal = pytest.raises(ServerUnsuitable, match=r"allkeys-lru would drop .*noeviction")
    with ServerProcess(config=config) as server, refusal:
        await connect(server.url)


async def test_durability_that_the_server_can_not_give_is_refused(redis_url: str) -> None:
    waiting = {"unavailable_timeout_ms": 100}
    with pytest.raises(ServerUnsuitable, match=r"ANGARIUM_DURABILITY.*appendonly yes"):
        await Redis.connect(
            load(redis_url=redis_url, durability="local", redis=waiting).redis_options()
        )
    with pytest.raises(ServerUnsuitable, match=r"ANGARIUM_DURABILITY.*replica"):
        await Redis.connect(
            load(redis_url=redis_url, durability="replica", redis=waiting).redis_options()
        )


async def test_a_replica_that_is_on_its_way_is_awaited() -> None:
    with ServerProcess() as primary:
        settings = load(redis_url=primary.url, durability="replica")
        connecting = asyncio.ensure_future(Redis.connect(settings.redis_options()))
        witness = primary.client()
        asked = int(witness.info("stats")["total_commands_processed"])
        await eventually(
            lambda: int(witness.info("stats")["total_commands_processed"]) > asked + 10
        )
        assert not connecting.done()
        with replica_of(primary):
            async with await connecting as redis:
                assert redis.info.replicas == 1


async def test_a_cluster_and_a_single_server_are_not_mistaken(
    redis_server: ServerProcess, cluster: ClusterProcess
) -> None:
    with pytest.raises(ServerUnsuitable, match=r"redis\+cluster://"):
        await connect(cluster.nodes[0].url)
    with pytest.raises(ServerUnsuitable, match="not part of a cluster"):
        await connect(f"redis+cluster://127.0.0.1:{redis_server.port}")


async def test_users_and_passwords(redis_server: ServerProcess) -> None:
    witness = redis_server.client()
    witness.acl_setuser(
        "alice", enabled=True, passwords=["+s3cret"], keys=["*"], commands=["+@all"]
    )
    url = f"redis://alice:s3cret@127.0.0.1:{redis_server.port}/2"
    async with await connect(url) as redis:
        assert await redis.call("ACL", "WHOAMI") == b"alice"
        assert b"db=2" in await redis.call("CLIENT", "INFO")
    wrong = url.replace("s3cret", "wr0ng")
    with pytest.raises(SettingInvalid, match="check user, password") as caught:
        await connect(wrong)
    assert "wr0ng" not in str(caught.value)


async def test_tls_with_a_certificate_of_ones_own(
    redis_server: ServerProcess, tmp_path: Path
) -> None:
    """Behind a TLS terminator, because not every build of the server speaks TLS itself."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", redis_server.port)
        await asyncio.gather(_copy(reader, inner[1]), _copy(inner[0], writer))

    async with tcp_server(serve, ssl=context) as port:
        url = f"rediss://127.0.0.1:{port}"
        async with await connect(f"{url}?ca={tmp_path}/ca.pem") as redis:
            assert await redis.call("PING") == b"PONG"
        async with await connect(f"{url}?verify=false") as redis:
            assert await redis.call("PING") == b"PONG"
        with pytest.raises(RedisUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await connect(url, **IMPATIENT)
        with pytest.raises(SettingInvalid, match="TLS file"):
            await connect(f"{url}?ca={tmp_path}/none.pem")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_a_moved_slot_is_followed_in_the_middle_of_the_work() -> None:
    with ClusterProcess() as cluster:
        async with sample_runtime(cluster.url, redis=PATIENT) as runtime:
            store = SampleStore(runtime)
            ids = [f"id{n}" for n in range(400)]
            for item in ids[:100]:
                assert await store.accept(item) == "accepted"
            for partition in range(runtime.settings.partitions):
                slot = slot_of(f"{{p{partition}}}:")
                owner = cluster.owner_of(slot)
                target = next(node for node in cluster.nodes if node is not owner)
                with cluster.migrating(slot, target) as move:
                    # Half moved: scripts see MOVED, ASK and TRYAGAIN until it is over.
                    move.keys(1)
                    begin = 100 + partition * 50
                    working = asyncio.gather(*(store.accept(i) for i in ids[begin : begin + 50]))
                    await asyncio.sleep(0)
                assert set(await working) == {"accepted"}
            for item in ids[300:]:
                assert await store.accept(item) == "accepted"
            assert sorted(await store.all_ids()) == sorted(ids)


async def test_a_redirection_that_can_not_be_followed_yet_is_tried_again() -> None:
    """The slot moved, and just then nobody can say where to: a wait, not an error."""
    with ClusterProcess() as cluster:
        async with sample_runtime(cluster.url, redis=PATIENT) as runtime:
            store = SampleStore(runtime)
            item = next(f"id{n}" for n in range(99) if runtime.keyspace.partition_of(f"id{n}") == 0)
            slot = slot_of("{p0}:")
            owner = cluster.owner_of(slot)
            target = next(node for node in cluster.nodes if node is not owner)
            await runtime.redis.call("PING", key="{p0}:")
            cluster.move_slot(slot, target)
            # The old owner still answers, with MOVED; the map can be had from nobody.
            known = runtime.redis._topology
            assert isinstance(known, Cluster)
            refusing = AsyncMock(side_effect=RedisUnavailable("nobody answers"))
            with patch.object(known, "_ask", refusing):
                waiting = asyncio.create_task(store.accept(item))
                await eventually(lambda: refusing.await_count >= 3)
                assert not waiting.done()
            assert await waiting == "accepted"


async def test_a_cluster_node_that_dies_is_replaced_by_its_replica() -> None:
    with ClusterProcess(replicas=True) as cluster:
        async with sample_runtime(cluster.url, redis=PATIENT) as runtime:
            store = SampleStore(runtime)
            assert await store.accept("before") == "accepted"
            victim = cluster.owner_of(slot_of("{p0}:"))
            await asyncio.to_thread(cluster.failover, victim)
            results = await asyncio.gather(*(store.accept(f"after{n}") for n in range(50)))
            assert set(results) == {"accepted"}


async def test_a_sentinel_failover_is_followed() -> None:
    with SentinelProcess() as sentinels:
        async with sample_runtime(sentinels.url, redis=PATIENT) as runtime:
            store = SampleStore(runtime)
            async with runtime.redis.subscribe("news") as subscription:
                assert (await subscription.receive()).gap
                assert await store.accept("before") == "accepted"
                promoted = await asyncio.to_thread(sentinels.failover)
                assert await store.accept("after") == "accepted"
                assert (await subscription.receive()).gap
                promoted.client().publish("news", "hello")
                batch = await subscription.receive()
                assert batch.messages[-1].payload == b"hello"


async def test_an_acknowledged_write_at_replica_is_on_the_replica() -> None:
    with ServerProcess() as primary, replica_of(primary) as replica:
        async with sample_runtime(primary.url, durability="replica") as runtime:
            store = SampleStore(runtime)
            payloads = runtime.keyspace.name(keys.MESSAGES_PAYLOADS)
            for number in range(20):
                await store.accept(f"id{number}")
                assert replica.client().hexists(payloads, f"id{number}")
            replica.pause()
            with pytest.raises(NotDurable, match="replica"):
                await store.accept("unconfirmed")
            replica.resume()
            assert await store.accept("unconfirmed") == "duplicate", "it had been written"


async def test_a_server_that_is_given_up_does_not_cancel_those_who_wait_for_it() -> None:
    async def never() -> Address:
        await asyncio.Event().wait()
        raise AssertionError

    node = Node(never, ServerUse(Credentials(), 1))
    async with asyncio.TaskGroup() as group:

        async def call() -> str:
            try:
                await node.connection()
            except RedisUnavailable:
                return "unavailable"
            return "connected"

        waiting = [group.create_task(call()) for _ in range(2)]
        await eventually(lambda: node._opening is not None)
        await node.close()
    assert [task.result() for task in waiting] == ["unavailable", "unavailable"]
