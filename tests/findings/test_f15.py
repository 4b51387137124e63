"""F15: a node takes only transactions whose next step it has; what nobody can do waits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.findings.transactions_deployment import (
    DEADLINE_S,
    Deployment,
    deployment,
    done_by,
    outcomes,
)
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.transactions.api_client import ApiClient, api_client

pytestmark = pytest.mark.timeout(300)
MANY = 1_000


async def test_old_and_new_code_side_by_side_fail_nothing_for_lack_of_a_step(
    redis_url: str, tmp_path: Path
) -> None:
    async with deployment(redis_url, tmp_path) as here:
        assert await here.define("payment", "charge", "notify") == 1
        assert await here.define("payment", "charge", "announce") == 2
        async with here.node("old") as old, here.node("new") as new:
            starts = [here.start("payment", MANY // 2, version=version) for version in (1, 2)]
            ids = [id for each in await asyncio.gather(*starts) for id in each]
            found = await here.ended(ids)
            assert outcomes(found) == {"success": MANY}
            last = {step: pid for each in found for step, pid in done_by(each)[1:]}
            assert last == {"notify": old.pid, "announce": new.pid}


async def test_a_rolling_deployment_fails_nothing(redis_url: str, tmp_path: Path) -> None:
    """New code comes, old code goes, transactions of both versions are started all the time."""
    async with deployment(redis_url, tmp_path) as here:
        await here.define("payment", "charge", "notify")
        ids: list[str] = []
        async with here.node("old") as first, here.node("old") as second:
            ids += await here.start("payment", 100)
            await here.define("payment", "charge", "announce")
            async with here.node("new"):
                ids += await here.start("payment", 100, version=1)
                ids += await here.start("payment", 100)
                assert await asyncio.to_thread(first.terminate) == 0
                ids += await here.start("payment", 100, version=1)
                async with here.node("new"):
                    ids += await here.start("payment", 100)
                    found = await here.ended(ids)
                    assert await asyncio.to_thread(second.terminate) == 0
                    assert outcomes(found) == {"success": len(ids)}


async def _shown(http: ApiClient, here: Deployment, id: str) -> None:
    """Everywhere where somebody would look."""

    async def in_metrics() -> bool:
        line = 'angarium_transactions_awaiting_step{node_group="default",step_type="notify"} 3.0'
        return line in await http.metrics()

    await eventually(in_metrics, DEADLINE_S)
    _, state = await http.request("GET", f"/v1/transactions/{id}")
    assert (state["status"], state["waits_for_step"]) == ("queued", "notify")
    _, listed = await http.request("GET", "/v1/transactions?status=queued")
    assert [each["waits_for_step"] for each in listed["transactions"]] == ["notify"] * 3
    _, watch = await http.request("GET", "/v1/transaction-watch")
    (step,) = watch["awaited_steps"]
    assert (step["node_group"], step["step_type"], step["transactions"]) == ("default", "notify", 3)
    _, page = await http.request("GET", "/v1/transaction-list?status=queued")
    assert [each["waits_for_step"] for each in page["transactions"]] == ["notify"] * 3

    async def noticed() -> bool:
        _, overview = await http.request("GET", "/v1/dashboard")
        facts = {each["name"]: each["facts"] for each in overview["modules"]}
        assert facts["transactions"]["queued"] == 3
        wanted = "3 transactions waiting for a node with step 'notify' (default)"
        return wanted in [each["text"] for each in overview["notices"]]

    await eventually(noticed, DEADLINE_S)
    async with RoleProcess(["tx", "watch"], here.env, ready_lines=0) as command:
        assert await asyncio.to_thread(command.wait) == 0
        assert any("notify" in line and "3" in line for line in command.lines()), command.lines()


async def test_a_transaction_without_a_capable_node_waits_is_shown_and_continues_later(
    redis_url: str, tmp_path: Path
) -> None:
    async with deployment(redis_url, tmp_path) as here, here.role("api") as api:
        await here.define("payment", "charge", "notify")
        async with here.node("new"), api_client(api.ports["http"]) as http:
            ids = await here.start("payment", 3)

            async def all_wait() -> bool:
                return len((await here.client.health_report(1)).awaited_steps) == 1 and all(
                    [(await here.client.get(id)).waits_for_step for id in ids]
                )

            await eventually(all_wait, DEADLINE_S)
            await _shown(http, here, ids[0])
            async with here.node("old") as old:
                found = await here.ended(ids)
                assert outcomes(found) == {"success": 3}
                assert {done_by(each)[1] for each in found} == {("notify", old.pid)}
            assert (await here.client.health_report(1)).awaited_steps == []


async def test_the_event_stream_shows_that_a_transaction_waits_for_a_step(
    redis_url: str, tmp_path: Path
) -> None:
    async with deployment(redis_url, tmp_path) as here, here.role("api") as api:
        await here.define("payment", "notify")
        (id,) = await here.start("payment")
        heard: list[tuple[str, Any]] = []

        async def follow(http: ApiClient) -> None:
            event = ""
            async for line in http.lines(f"/v1/transactions/{id}/events"):
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    heard.append((event, json.loads(line.removeprefix("data: "))))

        async with api_client(api.ports["http"]) as http, asyncio.TaskGroup() as tasks:
            tasks.create_task(follow(http))
            await eventually(lambda: heard, DEADLINE_S)
            async with here.node("new"):
                await eventually(lambda: heard[-1][0] == "step_awaited", DEADLINE_S)
            assert heard[-1][1]["waits_for_step"] == "notify"
            async with here.node("old"):
                await here.ended([id])
        assert heard[-1][0] == "completed"


async def test_a_waiting_transaction_can_be_cancelled_and_times_out(
    redis_url: str, tmp_path: Path
) -> None:
    async with deployment(redis_url, tmp_path) as here:
        await here.define("payment", "notify")
        await here.define("quick", "notify", timeout_ms=1_500)
        async with here.node("new"):
            (id,) = await here.start("payment")
            (quick,) = await here.start("quick")

            async def waits() -> bool:
                return (await here.client.get(id)).waits_for_step is not None

            await eventually(waits, DEADLINE_S)
            assert await here.client.cancel(id) == "cancelled"
            (late,) = await here.ended([quick])
            assert (late.status, late.note) == (
                "timeout", "no node with step 'notify' took it in time",
            )  # fmt: skip
            assert (await here.client.health_report(1)).awaited_steps == []


async def test_a_node_without_steps_logs_a_warning(redis_url: str, tmp_path: Path) -> None:
    async with deployment(redis_url, tmp_path) as here, here.node("without_steps") as node:
        await eventually(lambda: any("node_without_steps" in each for each in node.stderr()))
