"""The fault proxy: each fault does what it says, and healing ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest

from tests.kit.eventually import eventually
from tests.kit.proxy import FaultProxy, ThreadedFaultProxy
from tests.kit.server import ServerProcess

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PING, PONG = b"PING\r\n", b"+PONG\r\n"


@contextlib.asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def proxied() -> AsyncIterator[FaultProxy]:
    async with echo_server() as port, FaultProxy("127.0.0.1", port) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def wire(proxy: FaultProxy) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def say(connection: Wire, text: bytes, deadline_s: float = 5.0) -> bytes:
    reader, writer = connection
    writer.write(text)
    async with asyncio.timeout(deadline_s):
        return await reader.readexactly(len(text))


async def test_bytes_pass_unchanged_and_are_counted() -> None:
    async with proxied() as proxy, wire(proxy) as connection:
        text = bytes(range(256)) * 2_000
        assert await say(connection, text) == text
        assert proxy.connections == proxy.open_connections == 1
        assert proxy.bytes_passed == {"server": len(text), "client": len(text)}


async def test_a_close_passes_and_the_connection_is_forgotten() -> None:
    async with proxied() as proxy:
        async with wire(proxy) as (reader, writer):
            writer.write(b"last")
            writer.write_eof()
            assert await reader.read() == b"last"
        await eventually(lambda: proxy.open_connections == 0)


async def test_a_delay_adds_to_both_ways_and_ends_when_healed() -> None:
    async with proxied() as proxy, wire(proxy) as connection:
        proxy.delay(0.05)
        start = time.monotonic()
        await say(connection, b"slow")
        assert 0.1 <= time.monotonic() - start < 2.0
        proxy.delay(60.0)
        waiting = asyncio.create_task(say(connection, b"held"))
        await eventually(lambda: proxy.bytes_passed["server"] == 4)
        proxy.heal()
        assert await waiting == b"held"


async def test_a_delay_does_not_narrow_the_stream() -> None:
    async with proxied() as proxy, wire(proxy) as connection:
        proxy.delay(0.1)
        text = b"x" * 2_000_000
        start = time.monotonic()
        assert await say(connection, text) == text
        assert time.monotonic() - start < 2.0


async def test_cut_resets_every_connection_and_new_ones_work() -> None:
    async with proxied() as proxy:
        async with wire(proxy) as first, wire(proxy) as second:
            await say(first, b"a")
            await say(second, b"b")
            proxy.cut()
            for reader, _ in (first, second):
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
        async with wire(proxy) as third:
            assert await say(third, b"c") == b"c"


async def test_refuse_turns_new_connections_away_and_keeps_the_old() -> None:
    async with proxied() as proxy, wire(proxy) as old:
        await say(old, b"a")
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await say(old, b"b") == b"b"
        proxy.accept()
        async with wire(proxy) as new:
            assert await say(new, b"c") == b"c"


async def test_half_open_swallows_bytes_while_the_connection_stands() -> None:
    async with proxied() as proxy, wire(proxy) as connection:
        await say(connection, b"before")
        proxy.half_open()
        with pytest.raises(TimeoutError):
            await say(connection, b"during", deadline_s=0.1)
        assert not connection[0].at_eof()
        assert proxy.bytes_swallowed == 6
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            await connection[0].read(1)


async def test_half_open_in_one_direction_lets_the_other_pass() -> None:
    async with proxied() as proxy, wire(proxy) as connection:
        await say(connection, b"before")
        proxy.half_open("to_client")
        connection[1].write(b"request")
        await eventually(lambda: proxy.bytes_swallowed == 7)
        assert proxy.bytes_passed == {"server": 13, "client": 6}


async def test_a_connection_that_lost_nothing_survives_half_open() -> None:
    async with proxied() as proxy, wire(proxy) as connection:
        await say(connection, b"before")
        proxy.half_open()
        proxy.heal()
        assert await say(connection, b"after") == b"after"


async def test_the_server_does_not_learn_that_the_client_left_while_half_open() -> None:
    async with proxied() as proxy:
        async with wire(proxy) as connection:
            await say(connection, b"before")
            proxy.half_open("to_server")
        async with wire(proxy) as second:  # time for the close of the first to arrive
            second[1].write(b"x")
            await eventually(lambda: proxy.bytes_swallowed == 1)
        assert proxy.open_connections == 2
        proxy.heal()
        await eventually(lambda: proxy.open_connections == 0)


async def test_throttle_holds_the_rate() -> None:
    async with proxied() as proxy, wire(proxy) as connection:
        proxy.throttle(100_000)
        start = time.monotonic()
        await say(connection, b"x" * 20_000)
        assert 0.18 <= time.monotonic() - start < 3.0


@pytest.mark.parametrize("count", [0, 1, 5])
async def test_cut_after_passes_exactly_so_many_bytes_once(count: int) -> None:
    async with proxied() as proxy:
        proxy.cut_after(count, "client")
        async with wire(proxy) as (reader, writer):
            writer.write(b"0123456789")
            assert await reader.read() == b"0123456789"[:count]
        assert proxy.bytes_passed == {"server": 10, "client": count}
        async with wire(proxy) as again:
            assert await say(again, b"0123456789") == b"0123456789"


async def test_cut_after_towards_the_server_stops_the_request() -> None:
    async with proxied() as proxy:
        proxy.cut_after(4, "server")
        async with wire(proxy) as (reader, writer):
            writer.write(b"0123456789")
            with contextlib.suppress(ConnectionResetError):
                assert len(await reader.read()) <= 4
        assert proxy.bytes_passed["server"] == 4


async def test_a_dead_target_resets_and_a_new_target_is_used() -> None:
    async with echo_server() as port, FaultProxy("127.0.0.1", 1) as proxy:
        async with wire(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        proxy.retarget(port)
        async with wire(proxy) as connection:
            assert await say(connection, b"a") == b"a"


async def test_the_answer_can_be_lost_after_redis_did_the_work(redis_server: ServerProcess) -> None:
    async with FaultProxy("127.0.0.1", redis_server.port) as proxy:
        proxy.cut_after(0, "client")
        async with wire(proxy) as (reader, writer):
            writer.write(b"SET kit:unknown 1\r\n")
            assert await reader.read() == b""
    assert redis_server.ask("GETDEL", "kit:unknown") == "1"


async def test_the_test_s_own_error_comes_out_as_it_is() -> None:
    async def failing_test() -> None:
        async with proxied() as proxy, wire(proxy):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing_test()


def test_the_threaded_proxy_serves_tests_without_a_loop(redis_server: ServerProcess) -> None:
    with ThreadedFaultProxy("127.0.0.1", redis_server.port) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
            connection.settimeout(5)
            connection.sendall(PING)
            assert connection.recv(100) == PONG
            assert proxy.do(lambda p: p.open_connections) == 1
            proxy.do(lambda p: p.cut())
            with pytest.raises(ConnectionResetError):
                connection.recv(100)
        proxy.do(lambda p: p.refuse())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", proxy.port))
