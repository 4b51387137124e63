"""The client without an event loop, against servers that come, go and move."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path

import pytest
import trustme

from angarium.redis.blocking import BlockingRedis
from angarium.redis.errors import SettingInvalid
from angarium.redis.options import RedisOptions
from angarium.runtime.errors import RedisUnavailable, ScriptFailed
from tests.kit.cluster import ClusterProcess, slot_of
from tests.kit.eventually import wait_until
from tests.kit.sentinel import SentinelProcess
from tests.kit.server import ServerProcess
from tests.kit.tcp_server import tcp_server


def connect(url: str, wait_s: float = 60.0) -> BlockingRedis:
    return BlockingRedis(RedisOptions(url, unavailable_timeout_s=wait_s))


def test_commands_sent_together_come_back_in_order(any_redis_url: str) -> None:
    with connect(any_redis_url) as redis:
        for name in ("lc:a", "lc:b", "lc:c"):
            commands = [("SET", name, name), ("GET", name), ("STRLEN", name)]
            assert redis.ask(commands, key=name) == [b"OK", name.encode(), 4]
        with pytest.raises(ScriptFailed, match="unknown command"):
            redis.call("NOSUCH")


def test_a_server_that_was_away_is_waited_for() -> None:
    with ServerProcess(aof=True, fsync="always") as server, connect(server.url) as redis:
        redis.call("SET", "a", "1")
        server.kill()
        answers: list[bytes] = []
        thread = threading.Thread(target=lambda: answers.append(redis.call("GET", "a")))
        thread.start()
        server.restart()
        thread.join(60)
        assert answers == [b"1"]


def test_a_server_that_stays_away_is_an_error_that_says_so() -> None:
    with ServerProcess() as server:
        url = server.url
    with connect(url, 0.2) as redis, pytest.raises(RedisUnavailable, match="waited"):
        redis.call("PING")


def test_a_slot_that_moves_is_followed(cluster: ClusterProcess) -> None:
    name = "lc:moving"
    with connect(cluster.url) as redis:
        redis.call("SET", name, "1", key=name)
        before = cluster.node_of(name)
        other = next(node for node in cluster.nodes if node is not before)
        with cluster.migrating(slot_of(name), other) as move:
            assert redis.call("GET", name, key=name) == b"1"
            while move.keys():
                pass
            assert redis.call("GET", name, key=name) == b"1"
        assert redis.call("GET", name, key=name) == b"1"
        cluster.move_slot(slot_of(name), before)


def test_sentinels_are_asked_for_the_primary() -> None:
    with SentinelProcess() as group, connect(group.url) as redis:
        assert redis.call("SET", "a", "1") == b"OK"
        group.failover()

        def wrote() -> bool:
            return bool(redis.call("SET", "a", "2") == b"OK")

        assert wait_until(wrote, 60)


def test_the_embedded_server_is_started_and_released(tmp_path: Path) -> None:
    options = RedisOptions("embedded", home=tmp_path / "home")
    with BlockingRedis(options) as redis:
        assert redis.call("PING") == b"PONG"


def test_a_user_with_few_rights(redis_server: ServerProcess) -> None:
    redis_server.ask("ACL", "SETUSER", "lake", "on", ">secret", "~s:*", "+xrange", "+ping")
    url = f"redis://lake:secret@127.0.0.1:{redis_server.port}"
    with connect(url) as redis:
        assert redis.call("XRANGE", "s:1", "-", "+") == []
        with pytest.raises(SettingInvalid, match="NOPERM"):
            redis.call("GET", "s:1")
    with connect(url.replace("secret", "wr0ng")) as redis:
        with pytest.raises(SettingInvalid, match="check user, password") as caught:
            redis.call("PING")
        assert "wr0ng" not in str(caught.value)


async def test_tls_with_a_certificate_of_ones_own(
    redis_server: ServerProcess, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", redis_server.port)
        await asyncio.gather(copy(reader, inner[1]), copy(inner[0], writer))

    def ping(url: str) -> bytes:
        with connect(url, 0.1) as redis:
            return bytes(redis.call("PING"))

    async with tcp_server(serve, ssl=context) as port:
        url = f"rediss://127.0.0.1:{port}"
        assert await asyncio.to_thread(ping, f"{url}?ca={tmp_path}/ca.pem") == b"PONG"
        assert await asyncio.to_thread(ping, f"{url}?verify=false") == b"PONG"
        with pytest.raises(RedisUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(ping, url)


@pytest.mark.parametrize("url", ["", "embedded", "http://a", "redis://"])
def test_an_address_that_can_not_be_used_is_refused(url: str) -> None:
    with pytest.raises(SettingInvalid, match="url"):
        connect(url)
