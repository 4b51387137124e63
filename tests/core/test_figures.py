"""What processes say of themselves: newest report, time to live, and reports nobody can read."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from angarium.core import keyspace as keys
from angarium.core.figures import (
    INTERVAL_S,
    LIST_PROCESSES,
    REPORT_PROCESS,
    TTL_MS,
    Figures,
    read_processes,
    tasks_running,
)
from angarium.core.ground import Ground
from angarium.core.scripts import status_of
from tests.kit.clock import EPOCH_MS, FakeClock
from tests.kit.sample import sample_ground
from tests.kit.server import ServerProcess


def key(ground: Ground) -> str:
    return ground.keyspace.name(keys.PROCESSES, 0)


async def fields(ground: Ground) -> dict[str, bytes]:
    flat = await ground.redis.call("HGETALL", key(ground), key=key(ground))
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): value for name, value in pairs}


async def put(ground: Ground, name: str, value: str | bytes) -> None:
    await ground.redis.call("HSET", key(ground), name, value, key=key(ground))


async def report(ground: Ground, name: str, text: str = "{}", ttl_ms: int = TTL_MS) -> str:
    return status_of(await ground.run(REPORT_PROCESS, 0, [key(ground)], [name, text, ttl_ms]))


async def listed(ground: Ground, ttl_ms: int = TTL_MS) -> list[bytes]:
    found: list[bytes] = await ground.run(LIST_PROCESSES, 0, [key(ground)], [ttl_ms])
    return found


# The scripts


async def test_a_report_replaces_the_one_before_and_no_other(any_redis_url: str) -> None:
    clock = FakeClock()
    async with sample_ground(any_redis_url, clock=clock) as ground:
        assert await report(ground, "a@1", "old") == "reported"
        assert await report(ground, "b@1", "other") == "reported"
        await clock.advance(1)
        assert await report(ground, "a@1", "new:with\nodd \x00 signs") == "reported"
        assert await fields(ground) == {
            "a@1": b"%d:new:with\nodd \x00 signs" % (EPOCH_MS + 1000),
            "b@1": b"%d:other" % EPOCH_MS,
        }
        found = await listed(ground)
        assert sorted(found[1::2]) == [b"new:with\nodd \x00 signs", b"other"]


async def test_a_withdrawn_report_is_gone_and_withdrawing_twice_does_no_harm(
    any_redis_url: str,
) -> None:
    async with sample_ground(any_redis_url) as ground:
        await report(ground, "a@1")
        await report(ground, "b@1")
        assert await report(ground, "a@1", "") == "withdrawn"
        assert await report(ground, "a@1", "") == "withdrawn"
        assert set(await fields(ground)) == {"b@1"}


async def test_a_report_is_listed_up_to_its_time_to_live_and_not_longer(
    any_redis_url: str,
) -> None:
    clock = FakeClock()
    async with sample_ground(any_redis_url, clock=clock) as ground:
        assert await listed(ground) == []
        await report(ground, "a@1", "x")
        await clock.advance(TTL_MS / 1000)
        assert await listed(ground) == [str(EPOCH_MS).encode(), b"x"]
        await clock.advance(0.001)
        assert await listed(ground) == []


async def test_each_newcomer_clears_away_the_dead(any_redis_url: str) -> None:
    clock = FakeClock()
    async with sample_ground(any_redis_url, clock=clock) as ground:
        await report(ground, "dead@1")
        await put(ground, "nonsense", "no time in it")
        await clock.advance(TTL_MS / 1000)
        await report(ground, "alive@1")
        assert set(await fields(ground)) == {"dead@1", "alive@1"}, "just not too old"
        await clock.advance(0.001)
        await report(ground, "new@1")
        assert set(await fields(ground)) == {"alive@1", "new@1"}


async def test_the_cost_of_a_report_does_not_grow_with_the_number_of_processes(
    redis_server: ServerProcess,
) -> None:
    async with sample_ground(redis_server.url) as ground:
        for number in range(50):
            await report(ground, f"a@{number}")
        witness = redis_server.client(decode_responses=True)

        def looks() -> int:
            stats: dict[str, Any] = witness.info("commandstats")
            return int(stats.get("cmdstat_hgetall", {"calls": 0})["calls"])

        before = looks()
        for number in range(50):
            await report(ground, f"a@{number}")
        assert looks() == before
        await report(ground, "newcomer@1")
        assert looks() == before + 1


async def test_time_is_that_of_redis_when_no_test_owns_it(redis_server: ServerProcess) -> None:
    async with sample_ground(redis_server.url) as ground:
        witness = redis_server.client()

        def now_ms() -> int:
            seconds, microseconds = witness.time()
            return int(seconds) * 1000 + int(microseconds) // 1000

        before = now_ms()
        await Figures(ground, "relay").report({})
        (process,) = await read_processes(ground)
        assert before <= process.at_ms <= now_ms()


# Reports


async def test_every_live_process_is_read_by_role_and_actor(any_redis_url: str) -> None:
    clock = FakeClock()
    async with (
        sample_ground(any_redis_url, clock=clock, actor="two") as second,
        sample_ground(
            any_redis_url, clock=clock, actor="one", prefix=second.settings.prefix
        ) as first,
    ):
        await Figures(second, "relay").report({"queued": 3, "mode": "calm"})
        await Figures(first, "relay").report({"queued": 2.5})
        await Figures(second, "api").report({})
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
    async with sample_ground(redis_url, clock=clock) as ground:
        leaving, dying, living = (Figures(ground, role) for role in ("leaving", "dying", "living"))
        for each in (leaving, dying, living):
            await each.report({})
        await leaving.withdraw()
        assert [each.role for each in await read_processes(ground)] == ["dying", "living"]
        await clock.advance(2 * INTERVAL_S)
        await living.report({})
        assert [each.role for each in await read_processes(ground)] == ["dying", "living"]
        await clock.advance(TTL_MS / 1000 - 2 * INTERVAL_S + 0.001)
        assert [each.role for each in await read_processes(ground)] == ["living"]


def test_two_reports_may_be_missed_before_a_process_counts_as_gone() -> None:
    assert 3 * INTERVAL_S * 1000 <= TTL_MS


async def test_a_report_says_how_many_tasks_its_process_has(redis_url: str) -> None:
    async with sample_ground(redis_url) as ground, asyncio.TaskGroup() as group:
        idle = [group.create_task(asyncio.Event().wait()) for _ in range(7)]
        await Figures(ground, "relay").report({})
        (process,) = await read_processes(ground)
        assert process.tasks > len(idle)
        for task in idle:
            task.cancel()


def test_outside_of_a_loop_there_are_no_tasks() -> None:
    assert tasks_running() == 0


async def test_figures_that_are_no_numbers_are_left_out(redis_url: str) -> None:
    async with sample_ground(redis_url) as ground:
        odd = {"nan": float("nan"), "inf": float("inf"), "low": -float("inf")}
        await Figures(ground, "relay").report({**odd, "ready": True, "count": 10**15, "word": "x"})
        (process,) = await read_processes(ground)
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
    async with sample_ground(redis_url, clock=FakeClock()) as ground:
        raw = text if isinstance(text, bytes) else text.encode()
        await put(ground, "relay@other", b"%d:%s" % (EPOCH_MS, raw))
        await Figures(ground, "api").report({"requests": 1})
        assert [each.role for each in await read_processes(ground)] == ["api"]


async def test_a_report_of_a_later_version_is_read_as_far_as_it_is_known(redis_url: str) -> None:
    async with sample_ground(redis_url, clock=FakeClock()) as ground:
        text = '{"role":"relay","actor":"x","host":"h","pid":1,"figures":{"n":1},"region":"eu"}'
        await report(ground, "relay@x", text)
        (process,) = await read_processes(ground)
        assert (process.role, process.figures) == ("relay", {"n": 1.0})


async def test_worlds_with_other_prefixes_do_not_see_each_other(redis_url: str) -> None:
    async with sample_ground(redis_url) as one, sample_ground(redis_url) as two:
        await Figures(one, "relay").report({})
        assert await read_processes(two) == []
