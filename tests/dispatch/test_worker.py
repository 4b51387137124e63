"""The worker role: functions, results, window, stop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from angarium.dispatch.frames import FrameReader
from angarium.dispatch.protocol import Hello, encode_hello
from tests.dispatch.harness import dispatch_services


def frames_in(data: bytearray) -> list[tuple[int, bytes]]:
    return FrameReader(1 << 20).feed(bytes(data))


async def test_a_message_that_is_not_json_reaches_the_worker_and_becomes_a_dead_letter(
    redis_url: str,
) -> None:
    async with dispatch_services(redis_url, deliveries_max=3, retry_delay_ms=10) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker()
        await ours.publish(b"{no json")
        await ours.wait_until(lambda: _is(ours.dead(), 1))
        (letter,) = await ours.store.dead_letters(0, 10)
        assert letter.payload == b"{no json"
        assert letter.deliveries == 3
        assert len(letter.reasons) == 3
        assert all(worker.consumer in reason for reason in letter.reasons)
        assert await ours.pending() == 0
        await ours.publish(b'{"n":1}')
        assert len(await ours.wait_for_results(1)) == 1


async def test_a_message_whose_function_fails_goes_to_another_worker(redis_url: str) -> None:
    failures: list[str] = []

    async def moody(message: dict[str, Any]) -> dict[str, Any]:
        if not failures:
            failures.append("once")
            raise RuntimeError("not today")
        return message

    async with dispatch_services(redis_url, retry_delay_ms=10) as ours:
        dispatcher = await ours.add_dispatcher()
        await ours.add_worker(moody)
        await ours.publish(b'{"n":1}')
        assert len(await ours.wait_for_results(1)) == 1
        assert dispatcher.metrics.rejected == 1


@pytest.mark.parametrize("result", ["text", 3, [1], {1: 2}, {str(n): n for n in range(1_001)}])
async def test_a_function_that_returns_no_dict_fails_its_message(
    redis_url: str, result: Any
) -> None:
    async with dispatch_services(redis_url, deliveries_max=1) as ours:
        await ours.add_dispatcher()

        async def wrong(_: Any) -> Any:
            return result

        await ours.add_worker(wrong)
        await ours.publish(b'{"n":1}')
        await ours.wait_until(lambda: _is(ours.dead(), 1))
        (letter,) = await ours.store.dead_letters(0, 10)
        assert "TypeError" in letter.reasons[0] or "ValueError" in letter.reasons[0]


async def test_a_stream_key_of_another_type_fails_messages_and_not_the_worker(
    redis_url: str,
) -> None:
    async with dispatch_services(redis_url, retry_delay_ms=10, deliveries_max=100) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker()
        name = ours.stream_name(0)
        await ours.runtime.redis.call("SET", name, "in the way", key=name)
        await ours.publish(b'{"n":1}')
        await ours.wait_until(lambda: worker.metrics.failed >= 1)
        await ours.runtime.redis.call("DEL", name, key=name)
        assert len(await ours.wait_for_results(1)) == 1


async def test_large_results_are_written_in_several_batches(redis_url: str) -> None:
    async def grow(message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "text": "x" * 600_000}

    async with dispatch_services(redis_url, ack_timeout_ms=30_000) as ours:
        await ours.add_dispatcher()
        await ours.add_worker(grow)
        await ours.publish(*[b'{"n":%d}' % n for n in range(20)])
        assert len(await ours.wait_for_results(20)) == 20


async def test_plain_functions_run_in_threads_concurrently(redis_url: str) -> None:
    together = threading.Barrier(4, timeout=30)

    def meet(message: dict[str, Any]) -> dict[str, Any]:
        together.wait()
        return message

    async with dispatch_services(redis_url, ack_timeout_ms=30_000) as ours:
        await ours.add_dispatcher()
        await ours.add_worker(meet, options={"concurrency": 4})
        await ours.publish(*[b'{"n":%d}' % n for n in range(8)])
        assert len(await ours.wait_for_results(8)) == 8


async def test_a_worker_never_gets_more_than_its_window(redis_url: str) -> None:
    gate = asyncio.Event()
    held: list[int] = []

    async def wait(message: dict[str, Any]) -> dict[str, Any]:
        held.append(message["n"])
        await gate.wait()
        return message

    async with dispatch_services(redis_url, ack_timeout_ms=30_000) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker(wait, options={"window": 5})
        await ours.publish(*[b'{"n":%d}' % n for n in range(20)])
        await ours.wait_until(lambda: len(held) == 5)
        await ours.wait_until(lambda: dispatcher.metrics.accepted == 20)
        assert worker.metrics.received == 5
        gate.set()
        assert len(await ours.wait_for_results(20)) == 20


async def test_a_worker_that_stops_finishes_started_messages_and_gives_back_the_others(
    redis_url: str,
) -> None:
    gate = asyncio.Event()
    began: list[int] = []

    async def wait(message: dict[str, Any]) -> dict[str, Any]:
        began.append(message["n"])
        await gate.wait()
        return message

    async with dispatch_services(redis_url, ack_timeout_ms=30_000) as ours:
        dispatcher = await ours.add_dispatcher()
        first = await ours.add_worker(wait, options={"concurrency": 2})
        await ours.publish(*[b'{"n":%d}' % n for n in range(10)])
        await ours.wait_until(lambda: first.metrics.received == 10 and len(began) == 2)
        await first.quiet()
        second = await ours.add_worker()
        await ours.wait_until(lambda: _is(ours.result_count(), 8))
        gate.set()
        await first.stop(10)
        results = await ours.wait_for_results(10)
        assert len(results) == 10
        assert sum(each["consumer_id"] == second.consumer for each in results) == 8
        assert first.consumer not in await ours.store.consumers()
        assert dispatcher.metrics.dead == 0


async def test_a_worker_whose_connection_breaks_stores_its_result(
    redis_url: str,
) -> None:
    gate = asyncio.Event()
    calls: list[int] = []

    async def wait(message: dict[str, Any]) -> dict[str, Any]:
        calls.append(message["n"])
        await gate.wait()
        return message

    async with dispatch_services(redis_url, ack_timeout_ms=30_000) as ours:
        dispatcher = await ours.add_dispatcher()
        worker = await ours.add_worker(wait)
        await ours.publish(b'{"n":1}')
        await ours.wait_until(lambda: calls == [1])
        for connection in dispatcher.workers.connections:
            connection.close()
        gate.set()
        assert len(await ours.wait_for_results(1)) == 1
        await ours.publish(b'{"n":2}')
        results = await ours.wait_for_results(2)
        assert sorted(each["n"] for each in results) == ["1", "2"]
        assert worker.metrics.completed == 2


async def _is(value: Any, expected: int) -> bool:
    return bool(await value == expected)


async def test_f8_a_worker_closes_connections_beyond_its_limit(redis_url: str) -> None:
    async with dispatch_services(redis_url, limits={"worker_connections_max": 2}) as ours:
        worker = await ours.add_worker()
        writers = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.ports["worker"])
            writer.write(encode_hello(Hello()))
            writers.append(writer)
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1_000):
                    continue
        await ours.wait_until(lambda: worker.dispatchers == 2)
        for each in writers:
            each.close()
