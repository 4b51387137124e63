"""F53: a worker function that returns nothing has done its work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.dispatch.processes import DispatchProcesses, dispatch_processes
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess

MESSAGES = 200
DEADLINE_S = 90.0
LOG_LINES_MAX = 30


def serve(
    processes: DispatchProcesses, app: str, env: Mapping[str, str] | None = None
) -> RoleProcess:
    """`angarium serve dispatcher worker --app …`, as on the first page of the documentation."""
    command = ["serve", "dispatcher", "worker", "--app", f"tests.findings.worker_returns:{app}"]
    settings = processes.runtime.settings
    given = {"ANGARIUM_REDIS_URL": settings.redis_url, "ANGARIUM_PREFIX": settings.prefix}
    return RoleProcess(command, {**given, **(env or {})}, ready_lines=2)


async def publish_all(processes: DispatchProcesses) -> None:
    async def led() -> bool:
        return (await processes.store.status(0)).leader is not None

    await eventually(led, DEADLINE_S)
    await processes.publish([b'{"n":%d}' % n for n in range(MESSAGES)])

    async def ended() -> bool:
        status = await processes.store.status(0)
        return status.pending == 0 and status.processed + status.dead >= MESSAGES

    await eventually(ended, DEADLINE_S)


async def entries(processes: DispatchProcesses) -> list[dict[bytes, bytes]]:
    name = processes.stream_name(0)
    found: list[Any] = await processes.runtime.redis.call("XRANGE", name, "-", "+")
    return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in found]


def failures_in(role: RoleProcess) -> list[str]:
    return [line for line in role.stderr() if "message_failed" in line]


@pytest.mark.parametrize("app", ["app", "app_of_sync"])
async def test_a_function_without_a_return_statement_leaves_one_result_for_each_message(
    redis_url: str, app: str
) -> None:
    async with dispatch_processes(redis_url) as processes, serve(processes, app) as role:
        await publish_all(processes)
        assert (await processes.store.status(0)).dead == 0
        found = await entries(processes)
        assert len(found) == MESSAGES
        assert {frozenset(each) for each in found} == {frozenset({b"message_id", b"consumer_id"})}
        assert len({each[b"message_id"] for each in found}) == MESSAGES
        assert role.terminate() == 0
        assert failures_in(role) == []


async def test_an_invalid_result_is_named_in_the_dead_letter_and_does_not_flood_the_log(
    redis_url: str,
) -> None:
    few = {"ANGARIUM_DISPATCH__DELIVERIES_MAX": "2", "ANGARIUM_DISPATCH__RETRY_DELAY_MS": "1"}
    async with (
        dispatch_processes(redis_url) as processes,
        serve(processes, "app_of_lists", few) as role,
    ):
        await publish_all(processes)
        status = await processes.store.status(0)
        assert (status.dead, status.processed) == (MESSAGES, 0)
        reasons = {
            reason.partition(": ")[2]
            for letter in await processes.store.dead_letters(0, MESSAGES)
            for reason in letter.reasons
        }
        assert len(reasons) == 2
        for kind in ("list", "Priced"):
            (reason,) = [each for each in reasons if kind in each]
            assert "dict" in reason
            assert "None" in reason
        assert role.terminate() == 0
        lines = failures_in(role)
        # Both results fail at the same line, so they share the log's lines.
        assert all("list" in line or "Priced" in line for line in lines)
        assert len(lines) <= LOG_LINES_MAX
        # Every failure is counted in some line.
        assert sum(_count(line) for line in lines) == 2 * MESSAGES


def _count(line: str) -> int:
    return int(json.loads(line)["count"])
