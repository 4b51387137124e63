"""What processes say of themselves: newest report, time to live, and reports nobody can read."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from angarium.runtime import keys
from angarium.runtime.process_report import (
    INTERVAL_S,
    TTL_MS,
    ProcessReporter,
    ProcessReports,
    ReportRow,
    read_processes,
    tasks_running,
)
from angarium.runtime.runtime import Runtime
from tests.kit.clock import EPOCH_MS, FakeClock
from tests.kit.sample import sample_runtime
from tests.kit.server import ServerProcess


def key(runtime: Runtime) -> str:
    return runtime.keyspace.name(keys.PROCESSES, 0)


async def fields(runtime: Runtime) -> dict[str, bytes]:
    flat = await runtime.redis.call("HGETALL", key(runtime), key=key(runtime))
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): value for name, value in pairs}


async def put(runtime: Runtime, name: str, value: str | bytes) -> None:
    await runtime.redis.call("HSET", key(runtime), name, value, key=key(runtime))


async def report(runtime: Runtime, name: str, text: str = "{}") -> str:
    return await ProcessReports(runtime, keys.PROCESSES).put(name, text.encode())


async def listed(runtime: Runtime) -> list[ReportRow]:
    return await ProcessReports(runtime, keys.PROCESSES).read()


# The scripts


async def test_a_report_replaces_the_one_before_and_no_other(any_redis_url: str) -> None:
    clock = FakeClock()
    async with sample_runtime(any_redis_url, clock=clock) as runtime:
        assert await report(runtime, "a@1", "old") == "reported"
        assert await report(runtime, "b@1", "other") == "reported"
        await clock.advance(1)
        assert await report(runtime, "a@1", "new:with\nodd \x00 signs") == "reported"
        assert await fields(runtime) == {
            "a@1": b"%d:new:with\nodd \x00 signs" % (EPOCH_MS + 1000),
            "b@1": b"%d:other" % EPOCH_MS,
        }
        found = await listed(runtime)
        assert sorted(row.report for row in found) == [b"new:with\nodd \x00 signs", b"other"]


async def test_a_withdrawn_report_is_gone_and_withdrawing_twice_does_no_harm(
    any_redis_url: str,
) -> None:
    async with sample_runtime(any_redis_url) as runtime:
        await report(runtime, "a@1")
        await report(runtime, "b@1")
        assert await report(runtime, "a@1", "") == "withdrawn"
        assert await report(runtime, "a@1", "") == "withdrawn"
        assert set(await fields(runtime)) == {"b@1"}


async def test_a_report_is_listed_up_to_its_time_to_live_and_not_longer(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with sample_runtime(any_redis_url, clock=clock) as runtime:
        assert await listed(runtime) == []
        await report(runtime, "a@1", "x")
        await clock.advance(TTL_MS / 1000)
        assert await listed(runtime) == [(EPOCH_MS, b"x")]
        await clock.advance(0.001)
        assert await listed(runtime) == []


async def test_each_new_process_removes_expired_reports(any_redis_url: str) -> None:
    clock = FakeClock()
    async with sample_runtime(any_redis_url, clock=clock) as runtime:
        await report(runtime, "dead@1")
        await put(runtime, "nonsense", "no time in it")
        await clock.advance(TTL_MS / 1000)
        await report(runtime, "alive@1")
        assert set(await fields(runtime)) == {"dead@1", "alive@1"}, "just not too old"
        await clock.advance(0.001)
        await report(runtime, "new@1")
        assert set(await fields(runtime)) == {"alive@1", "new@1"}


async def test_the_cost_of_a_report_does_not_grow_with_the_number_of_processes(
    redis_server: ServerProcess,
) -> None:
    async with sample_runtime(redis_server.url) as runtime:
        for number in range(50):
            await report(runtime, f"a@{number}")
        witness = redis_server.client(decode_responses=True)

        def looks() -> int:
            stats: dict[str, Any] = witness.info("commandstats")
            return int(stats.get("cmdstat_hgetall", {"calls": 0})["calls"])

        before = looks()
        for number in range(50):
            await report(runtime, f"a@{number}")
        assert looks() == before
        await report(runtime, "newcomer@1")
        assert looks() == before + 1


async def test_the_time_is_that_of_redis_without_a_test_clock(redis_server: ServerProcess) -> None:
    async with sample_runtime(redis_server.url) as runtime:
        witness = redis_server.client()

        def now_ms() -> int:
            seconds, microseconds = witness.time()
            return int(seconds) * 1000 + int(microseconds) // 1000

        before = now_ms()
        await ProcessReporter(runtime, "relay").report({})
        (process,) = await read_processes(runtime)
        assert before <= process.at_ms <= now_ms()


# Reports


async def test_every_live_process_is_read_by_role_and_actor(any_redis_url: str) -> None:
    clock = FakeClock()
    async with (
        sample_runtime(any_redis_url, clock=clock, actor="two") as second,
        sample_runtime(
            any_redis_url, clock=clock, actor="one", prefix=second.settings.prefix
        ) as first,
    ):
        await ProcessReporter(second, "relay").report({"queued": 3, "mode": "calm"})
        await ProcessReporter(first, "relay").report({"queued": 2.5})
        await ProcessReporter(second, "api").report({})
        found = await read_processes(first)
        assert [(each.role, each.actor) for each in found] == [
            ("api", "two"),
            ("relay", "one"),
            ("relay", "two"),
        ]
        assert found[2].figures == {"queued": 3.0, "mode": "calm"}
        assert {(each.host, each.pid) for each in found} == {(socket.gethostname(), os.getpid())}
        assert {each.at_ms for each in found} == {EPOCH_MS}


async def test_a_process_is_gone_when_it_withdraws_or_misses_its_reports(redis_url: str) -> None:
    clock = FakeClock()
    async with sample_runtime(redis_url, clock=clock) as runtime:
        leaving, dying, living = (
            ProcessReporter(runtime, role) for role in ("leaving", "dying", "living")
        )
        for each in (leaving, dying, living):
            await each.report({})
        await leaving.withdraw()
        assert [each.role for each in await read_processes(runtime)] == ["dying", "living"]
        await clock.advance(2 * INTERVAL_S)
        await living.report({})
        assert [each.role for each in await read_processes(runtime)] == ["dying", "living"]
        await clock.advance(TTL_MS / 1000 - 2 * INTERVAL_S + 0.001)
        assert [each.role for each in await read_processes(runtime)] == ["living"]


def test_two_reports_may_be_missed_before_a_process_counts_as_gone() -> None:
    assert 3 * INTERVAL_S * 1000 <= TTL_MS


async def test_a_report_says_how_many_tasks_its_process_has(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime, asyncio.TaskGroup() as group:
        idle = [group.create_task(asyncio.Event().wait()) for _ in range(7)]
        await ProcessReporter(runtime, "relay").report({})
        (process,) = await read_processes(runtime)
        assert process.tasks > len(idle)
        for task in idle:
            task.cancel()


def test_outside_of_a_loop_there_are_no_tasks() -> None:
    assert tasks_running() == 0


async def test_values_that_are_not_finite_are_left_out(redis_url: str) -> None:
    async with sample_runtime(redis_url) as runtime:
        odd = {"nan": float("nan"), "inf": float("inf"), "low": -float("inf")}
        await ProcessReporter(runtime, "relay").report(
            {**odd, "ready": True, "count": 10**15, "word": "x"}
        )
        (process,) = await read_processes(runtime)
        assert process.figures == {"ready": 1.0, "count": 1e15, "word": "x"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        '{"role":"relay"}',
        '{"role":"relay","actor":"x","host":"h","pid":1,"figures":{"mean":null}}',
        '{"role":"relay","actor":"x","host":"h","pid":"seven","figures":{}}',
        b'{"role":"\xff","actor":"x","host":"h","pid":1,"figures":{}}',
    ],
)
async def test_a_report_that_can_not_be_read_hides_no_other(
    redis_url: str, text: str | bytes
) -> None:
    async with sample_runtime(redis_url, clock=FakeClock()) as runtime:
        raw = text if isinstance(text, bytes) else text.encode()
        await put(runtime, "relay@other", b"%d:%s" % (EPOCH_MS, raw))
        await ProcessReporter(runtime, "api").report({"requests": 1})
        assert [each.role for each in await read_processes(runtime)] == ["api"]


async def test_a_report_of_a_later_version_is_read_as_far_as_it_is_known(redis_url: str) -> None:
    async with sample_runtime(redis_url, clock=FakeClock()) as runtime:
        text = '{"role":"relay","actor":"x","host":"h","pid":1,"figures":{"n":1},"region":"eu"}'
        await report(runtime, "relay@x", text)
        (process,) = await read_processes(runtime)
        assert (process.role, process.figures) == ("relay", {"n": 1.0})


async def test_keyspaces_with_other_prefixes_do_not_see_each_other(redis_url: str) -> None:
    async with sample_runtime(redis_url) as one, sample_runtime(redis_url) as two:
        await ProcessReporter(one, "relay").report({})
        assert await read_processes(two) == []
