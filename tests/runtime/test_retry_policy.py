"""Retries by declaration: the delays, the errors, and what a decorator refuses."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from angarium import Angarium
from angarium.runtime.application import Caller, HandlerExit
from angarium.runtime.retry_policy import DoNotRetry, RetryPolicy


def longest(_: float, full: float) -> float:
    return full


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ("exponential", [1.0, 2.0, 4.0, 8.0, 10.0]),
        ("linear", [1.0, 2.0, 3.0, 4.0, 5.0]),
        ("fixed", [1.0] * 5),
    ],
)
def test_the_delay_follows_the_number_of_failures(backoff: Any, delays: list[float]) -> None:
    policy = RetryPolicy(backoff=backoff, delay_s_max=10)
    assert [policy.next_delay_s(n, longest) for n in range(1, 6)] == delays
    assert policy.next_delay_s(10**9, longest) <= 10


def test_delays_are_spread_over_the_second_half() -> None:
    drawn = {RetryPolicy(delay_s=8).next_delay_s(1) for _ in range(200)}
    assert min(drawn) >= 4
    assert max(drawn) <= 8
    assert len(drawn) > 100


def test_only_the_named_errors_are_retried() -> None:
    policy = RetryPolicy(retry_on=(TimeoutError, ConnectionError))
    assert policy.retries_error(ConnectionResetError())
    assert not policy.retries_error(ValueError())
    assert not RetryPolicy().retries_error(DoNotRetry("the card is stolen"))
    assert RetryPolicy().retries_error(HandlerExit("SystemExit(0)"))


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"backoff": "sometimes"},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"delay_s": -1},
        {"delay_s": 10, "delay_s_max": 5},
        {"retry_on": "Timeout"},
        {"retry_on": (KeyboardInterrupt,)},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        RetryPolicy(**options)


def test_decorators_take_the_policy() -> None:
    app = Angarium()

    @app.step("charge", retries=5, backoff="linear", retry_on=(TimeoutError,), timeout_s=30)
    def charge() -> None: ...

    @app.worker(retries=0)
    def work() -> None: ...

    @app.inbox(timeout_s=3)
    def read() -> None: ...

    steps = app.handlers("step")
    assert steps["charge"].retry == RetryPolicy(5, "linear", retry_on=(TimeoutError,), timeout_s=30)
    assert app.handler("worker", "worker").retry == RetryPolicy(retries=0)
    assert app.handler("inbox", "inbox").retry == RetryPolicy(timeout_s=3)


class OwnExit(BaseException):
    """As `outcomes.Exit` of pytest or `Cancelled` of trio."""


@pytest.mark.parametrize(
    "raised",
    [SystemExit(0), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), OwnExit()],
)
async def test_what_would_end_a_process_or_a_task_is_a_failure_of_the_call(
    raised: BaseException,
) -> None:
    app = Angarium()

    @app.step("plain")
    def plain() -> None:
        raise raised

    @app.step("coroutine")
    async def coroutine() -> None:
        raise raised

    caller = Caller(1)
    try:
        for handler in app.handlers("step").values():
            with pytest.raises(HandlerExit, match=type(raised).__name__):
                await caller.call(handler)
    finally:
        caller.close()


async def test_a_call_that_is_cancelled_from_outside_stays_cancelled() -> None:
    app = Angarium()
    began = asyncio.Event()

    @app.step("slow")
    async def slow() -> None:
        began.set()
        await asyncio.sleep(sys.maxsize >> 40)

    caller = Caller(1)
    task = asyncio.create_task(caller.call(app.handlers("step")["slow"]))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    caller.close()
