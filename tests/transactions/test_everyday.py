"""What users do: steps that kill their node, two nodes, several groups, deployments under load."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from angarium import Angarium
from angarium.runtime.runtime import Runtime
from angarium.transactions import Outcome, Step
from angarium.transactions.store import NodeCapabilities
from tests.faults.profile import rounds
from tests.findings.transactions_deployment import DEADLINE_S, deployment, outcomes
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.transactions.harness import Harness, harness, running_node

pytestmark = pytest.mark.timeout(300)
APP = "tests.transactions.killing_steps:app"


@pytest.mark.parametrize(("step", "how"), [("kill", "exit"), ("plain_kill", "signal")])
async def test_f17_a_step_that_kills_its_node_dies_alone(
    redis_url: str, tmp_path: Path, step: str, how: str
) -> None:
    """Nodes are restarted, as a supervisor does. Neighbours that ran beside it succeed."""
    env = {
        "ANGARIUM_TRANSACTIONS__NODE_TIMEOUT_MS": "1000",
        "ANGARIUM_TRANSACTIONS__MAX_RUNS": "3",
    }
    async with deployment(redis_url, tmp_path) as here:
        await here.define("poison", step)
        await here.define("work", "work")
        (poison,) = await here.start("poison", data=msgspec.json.encode({"how": how}))
        others = await here.start("work", 30, data=b'{"pause_s":0.2}')
        crashes = 0

        async def all_ended() -> bool:
            states = [await here.client.get(each) for each in (poison, *others)]
            return all(each.status.final for each in states)

        while not await all_ended():
            async with here.role("node", "--app", APP, **env) as node:

                async def over(node: RoleProcess = node) -> bool:
                    return not node.alive or await all_ended()

                await eventually(over, DEADLINE_S)
                crashes += not node.alive
        dead = await here.client.get(poison)
        assert (dead.status, dead.reason, dead.crashes) == ("failed", "crashed", 3)
        assert crashes >= 3
        assert outcomes([await here.client.get(each) for each in others]) == {"success": 30}


async def test_a_deployment_of_many_nodes_under_load_fails_nothing(
    redis_url: str, tmp_path: Path
) -> None:
    """Each old node is replaced by a new one. Only the new ones have the step `announce`."""
    count, ids = rounds(3, 10), list[str]()
    async with deployment(redis_url, tmp_path) as here:
        await here.define("payment", "charge", "notify")
        old: list[RoleProcess] = [here.node("old") for _ in range(count)]
        new: list[RoleProcess] = []
        try:
            for each in old:
                await each.__aenter__()
            await here.define("payment", "charge", "announce")
            for each in old:
                ids += await here.start("payment", 50)
                ids += await here.start("payment", 50, version=1)
                replacement = here.node("new")
                await replacement.__aenter__()
                new.append(replacement)
                ids += await here.start("payment", 50)
                assert await asyncio.to_thread(each.terminate) == 0
            found = await here.ended(ids)
        finally:
            for each in (*old, *new):
                await asyncio.to_thread(each.close)
        assert outcomes(found) == {"success": 150 * count}


async def test_f18_two_nodes_share_steps_that_are_plain_functions(redis_url: str) -> None:
    app, done = Angarium(), Counter[str]()

    @app.step("block")
    def block(step: Step) -> Outcome:
        time.sleep(0.02)
        return step.succeeded()

    async with harness(redis_url, transactions={"node_threads": 4}) as here:
        await here.define("p", {"type": "block"})
        ids = [await here.start("p") for _ in range(160)]
        async with (
            Runtime.open(here.runtime.settings, actor="second") as second,
            running_node(here.runtime, app),
            running_node(second, app),
        ):
            for id in ids:
                ended = await here.ended(id)
                done[ended.node or ""] += 1
                assert ended.status == "success"
        assert min(done.values()) >= 16, done
        assert len(done) == 2, done
        events = Counter(each.event for each in await here.events())
        assert events["step_awaited"] == 0, "waiting for a thread is no lack of a node"


async def test_coroutines_run_while_all_threads_are_busy(any_redis_url: str) -> None:
    app, release = Angarium(), asyncio.Event()

    @app.step("block")
    def block(step: Step) -> Outcome:
        while not release.is_set():
            time.sleep(0.01)
        return step.succeeded()

    @app.step("quick")
    async def quick(step: Step) -> Outcome:
        return step.succeeded()

    async with (
        harness(any_redis_url, transactions={"node_threads": 2}) as here,
        running_node(here.runtime, app),
    ):
        await here.define("block", {"type": "block"})
        await here.define("quick", {"type": "quick"}, {"type": "quick"})
        await here.define("mixed", {"type": "quick"}, {"type": "block"})
        blocked = [await here.start(name) for name in ("block", "mixed") * 5]
        quick_ids = [await here.start("quick") for _ in range(20)]
        for id in quick_ids:
            assert (await here.ended(id)).status == "success"
        report = await here.client.health_report(1)
        assert report.awaited_steps == []
        release.set()
        for id in blocked:
            assert (await here.ended(id)).status == "success"


async def _dequeue(here: Harness, groups: list[str], count: int) -> Counter[str]:
    batch = await here.store.dequeue(0, "n1", groups, count, NodeCapabilities(" echo "))
    return Counter(each.label.split("|")[0] for each in batch.taken)


async def test_f18_node_groups_get_equal_shares(redis_url: str) -> None:
    async with harness(redis_url) as here:
        groups = ["a", "b", "c"]
        for group, count in zip(groups, (100, 20, 2), strict=True):
            await here.define(f"p-{group}", {"type": "echo"}, node_group=group)
            for _ in range(count):
                await here.start(f"p-{group}")
        assert await _dequeue(here, groups, 30) == {"a": 18, "b": 10, "c": 2}
        assert await _dequeue(here, groups, 30) == {"a": 20, "b": 10}
        assert await _dequeue(here, groups, 300) == {"a": 62}


async def test_a_dequeue_of_large_data_takes_a_part_and_keeps_the_order(redis_url: str) -> None:
    async with harness(redis_url) as here:
        ids = [await here.start("one", "x" * 1_000_000) for _ in range(40)]
        found: list[str] = []
        while len(found) < len(ids):
            batch = await here.store.dequeue(0, "n1", ["default"], 100, NodeCapabilities(" echo "))
            assert len(batch.taken) <= 17, "16 MiB"
            assert batch.more or len(found) + len(batch.taken) == len(ids)
            found += [each.id for each in batch.taken]
        assert found == ids
