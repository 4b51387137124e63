"""Failures of worker functions: the retry policy, its back-off, and errors that end a task."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from typing import Any

import pytest

from angarium.runtime.retry_policy import DoNotRetry
from tests.dispatch.harness import DispatchServices, dispatch_services


async def test_a_poison_message_uses_its_tries_and_disturbs_no_neighbour(redis_url: str) -> None:
    runs: Counter[int] = Counter()

    async def fragile(message: dict[str, Any]) -> dict[str, Any]:
        runs[message["n"]] += 1
        if message["n"] == 7:
            raise ValueError(f"poison, try {runs[7]}")
        return message

    async with dispatch_services(redis_url, retry_delay_ms=10) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker(fragile, options={"retries": 3})
        await ours.publish(*[b'{"n":%d}' % n for n in range(20)])
        await ours.wait_until(lambda: ours_dead(ours, 1))
        await ours.wait_for_results(19)
        assert runs == Counter({**dict.fromkeys(range(20), 1), 7: 4})
        (letter,) = await ours.store.dead_letters(0, 10)
        assert letter.payload == b'{"n":7}'
        assert letter.deliveries == 4
        reasons = [f"{worker.consumer}: ValueError: poison, try {n}" for n in range(1, 5)]
        assert letter.reasons == reasons
        assert (worker.metrics.failed, worker.metrics.dead) == (4, 1)


async def ours_dead(ours: Any, count: int) -> bool:
    return bool(await ours.dead() == count)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"retries": 0}, ValueError("no")),
        ({"retry_on": OSError}, ValueError("no")),
        ({}, DoNotRetry("no")),
    ],
)
async def test_an_error_that_allows_no_further_try_makes_a_dead_letter_at_once(
    redis_url: str, options: dict[str, Any], error: Exception
) -> None:
    async def fail(_: Any) -> None:
        raise error

    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.add_worker(fail, options=options)
        await ours.publish(b"1")
        await ours.wait_until(lambda: ours_dead(ours, 1))
        (letter,) = await ours.store.dead_letters(0, 10)
        assert letter.deliveries == 1
        assert letter.reasons[0].endswith(f"{type(error).__name__}: no")


async def test_a_failed_message_waits_its_back_off_in_redis(redis_url: str) -> None:
    """The worker holds nothing meanwhile, and another worker may take the next try."""

    async def fail(_: Any) -> None:
        raise ValueError("no")

    async with dispatch_services(redis_url, retry_delay_ms=60_000) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker(fail, options={"backoff": "fixed"})
        await ours.publish(b"1")
        await ours.wait_until(lambda: worker.metrics.failed == 1 and len(worker._held) == 0)
        assert await ours.pending() == 1
        assert (await ours.store.status(0)).oldest_ms == 0, "its time is to come"


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("is_async", [True, False])
async def test_f5_an_error_that_ends_a_task_fails_only_its_message(
    redis_url: str, error: type[BaseException], is_async: bool
) -> None:
    def plain(message: dict[str, Any]) -> dict[str, Any]:
        if message["n"] < 3:
            raise error
        return message

    async def coroutine(message: dict[str, Any]) -> dict[str, Any]:
        return plain(message)

    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        options = {"retries": 0, "concurrency": 1}
        await ours.add_worker(coroutine if is_async else plain, options=options)
        await ours.publish(*[b'{"n":%d}' % n for n in range(6)])
        assert len(await ours.wait_for_results(3)) == 3
        letters = await ours.store.dead_letters(0, 10)
        assert len(letters) == 3
        assert all(error.__name__ in each.reasons[0] for each in letters)


@pytest.mark.parametrize("waits", [True, False])
async def test_f5_a_function_that_cancels_its_own_task_fails_only_its_message(
    redis_url: str, waits: bool
) -> None:
    """The only slot goes on, whether the cancellation reaches this message or comes after it."""

    async def function(message: dict[str, Any]) -> dict[str, Any]:
        task = asyncio.current_task()
        if message["n"] < 3 and task is not None:
            task.cancel()
            if waits:
                await asyncio.Event().wait()
        return message

    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        await ours.add_worker(function, options={"retries": 0, "concurrency": 1})
        for n in range(6):
            await ours.publish(b'{"n":%d}' % n)
            await ours.wait_until(lambda: _settled(ours, n + 1))  # noqa: B023
        letters = await ours.store.dead_letters(0, 10)
        assert len(letters) == (3 if waits else 0)
        assert all("cancelled its own task" in each.reasons[0] for each in letters)


async def _settled(ours: DispatchServices, count: int) -> bool:
    dead, results = await ours.dead(), await ours.results()
    return dead + len(results) == count


async def test_a_coroutine_that_exceeds_its_time_is_cancelled_and_tried_again(
    redis_url: str,
) -> None:
    runs: list[str] = []

    async def hang_once(message: dict[str, Any]) -> dict[str, Any]:
        runs.append("began")
        if len(runs) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                runs.append("cancelled")
        return message

    async with dispatch_services(redis_url, retry_delay_ms=10) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker(hang_once, options={"timeout_s": 0.2, "concurrency": 1})
        await ours.publish(b'{"n":1}')
        assert len(await ours.wait_for_results(1)) == 1
        assert runs == ["began", "cancelled", "began"]
        assert worker.metrics.failed == 1


async def test_a_plain_function_that_exceeds_its_time_fails_and_keeps_its_thread(
    redis_url: str,
) -> None:
    gate = threading.Event()

    def hang(_: Any) -> None:
        assert gate.wait(60)

    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        options = {"timeout_s": 0.2, "retries": 0, "concurrency": 1}
        worker = await ours.add_worker(hang, options=options)
        await ours.publish(b"1", b"2")
        await ours.wait_until(lambda: ours_dead(ours, 1))
        (letter,) = await ours.store.dead_letters(0, 10)
        assert "more than 0.2 s" in letter.reasons[0]
        assert len(worker._held) == 1, "the second message waits for the only thread"
        gate.set()
        await ours.wait_for_results(1)


async def test_f54_a_kind_of_error_is_logged_with_its_traceback_once(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Any) -> None:
        raise ValueError("no such customer")

    async with dispatch_services(redis_url) as ours:
        await ours.add_dispatcher()
        worker = await ours.add_worker(fail, options={"retries": 0})
        with caplog.at_level(logging.WARNING):
            await ours.publish(*[b"1"] * 30)
            await ours.wait_until(lambda: ours_dead(ours, 30))
        assert worker.metrics.failed == 30
        traced = [each for each in caplog.records if "function_failed" in each.getMessage()]
        assert len(traced) == 1
        assert traced[0].exc_info or "exc_info" in traced[0].getMessage()
