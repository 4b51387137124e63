"""F51: nodes of two applications share a node group; a renamed step ends nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.findings.transactions_deployment import (
    APPLICATIONS,
    DEADLINE_S,
    deployment,
    done_by,
    outcomes,
)
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess

pytestmark = pytest.mark.timeout(300)
MANY = 1_000


async def test_two_applications_in_one_group_run_only_their_own_steps(
    redis_url: str, tmp_path: Path
) -> None:
    async with deployment(redis_url, tmp_path) as here:
        await here.define("order", "reserve", "pack")
        await here.define("transfer", "debit", "credit")
        async with here.node("shop") as shop, here.node("bank") as bank:
            # In turns, so that each node finds work of both in front of the queue.
            starts = [here.start(name) for _ in range(MANY // 2) for name in ("order", "transfer")]
            found = await here.ended([id for ids in await asyncio.gather(*starts) for id in ids])
            assert outcomes(found) == {"success": MANY}
            did = {(step, pid) for each in found for step, pid in done_by(each)}
            assert did == {
                ("reserve", shop.pid), ("pack", shop.pid), ("debit", bank.pid),
                ("credit", bank.pid),
            }  # fmt: skip


async def test_the_steps_of_one_pipeline_may_be_spread_over_two_applications(
    redis_url: str, tmp_path: Path
) -> None:
    async with deployment(redis_url, tmp_path) as here:
        await here.define("purchase", "reserve", "debit", "pack", "credit")
        async with here.node("shop") as shop, here.node("bank") as bank:
            found = await here.ended(await here.start("purchase", MANY))
            assert outcomes(found) == {"success": MANY}
            for each in found:
                assert done_by(each) == [
                    ("reserve", shop.pid), ("debit", bank.pid), ("pack", shop.pid),
                    ("credit", bank.pid),
                ]  # fmt: skip


async def test_a_node_leaves_transactions_whose_step_it_lacks_to_others(
    redis_url: str, tmp_path: Path
) -> None:
    async with deployment(redis_url, tmp_path) as here:
        await here.define("transfer", "debit")
        async with here.node("shop"):
            ids = await here.start("transfer", 8)
            await here.define("order", "pack")
            # Its own work is not held up by what it can't do.
            assert outcomes(await here.ended(await here.start("order", 8))) == {"success": 8}
            assert {(await here.client.get(id)).status for id in ids} == {"queued"}
            async with here.node("bank"):
                assert outcomes(await here.ended(ids)) == {"success": 8}


async def test_a_renamed_step_does_not_end_a_sleeping_transaction(
    redis_url: str, tmp_path: Path
) -> None:
    async with deployment(redis_url, tmp_path) as here:
        await here.define("payment", "charge", "wait_for_bank")
        async with here.node("old"):
            (id,) = await here.start("payment")
            await here.wait_for_status(id, "sleeping")
        async with here.node("new"):
            await here.client.set_switch(id, "go", "1")
            waiting = await here.wait_for_status(id, "queued")

            async def waits() -> bool:
                return (await here.client.get(id)).waits_for_step == "wait_for_bank"

            await eventually(waits, DEADLINE_S)
            assert waiting.step == 1
        async with here.node("old"):
            assert outcomes(await here.ended([id])) == {"success": 1}


async def test_nodes_that_share_definitions_start_in_any_order(
    redis_url: str, tmp_path: Path
) -> None:
    definitions = tmp_path / "pipelines.toml"
    steps = '[{ type = "reserve" }, { type = "debit" }, { type = "pack" }]'
    definitions.write_text(f'[[pipelines]]\nname = "order"\nsteps = {steps}\n')
    async with deployment(redis_url, tmp_path) as here:

        def node(app: str) -> RoleProcess:
            given = {"ANGARIUM_TRANSACTIONS__PIPELINES": str(definitions)}
            return here.role("node", "--app", f"{APPLICATIONS}:{app}", **given)

        async with node("shop") as first:
            assert any("step_missing" in line and "debit" in line for line in first.stderr())
            ids = await here.start("order", 8)
            async with node("bank") as second:
                assert outcomes(await here.ended(ids)) == {"success": 8}
            assert not any("step_missing" in line for line in second.stderr())
