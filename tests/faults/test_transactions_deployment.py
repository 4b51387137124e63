"""Nodes that are replaced under load, killed and stopped under slow steps: nothing fails."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from angarium.runtime.process_report import read_processes
from tests.faults.profile import rounds
from tests.findings.transactions_deployment import DEADLINE_S, Deployment, deployment, outcomes
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.routing.harness import entries

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
NODES, STARTERS = rounds(2, 10), rounds(2, 10)
LEASE_MS, SLOW_STEPS = rounds(2_000, 8_000), rounds(40, 400)


class Load:
    """Starts transactions of the old and the new version until it is told to stop."""

    def __init__(self, here: Deployment) -> None:
        self._here = here
        self.ids: list[str] = []
        self.over = False

    async def run(self) -> None:
        while not self.over:
            self.ids += await self._here.start("payment")
            self.ids += await self._here.start("payment", version=1)
            await asyncio.sleep(0.01)


async def test_a_rolling_deployment_under_load_fails_nothing(
    redis_url: str, tmp_path: Path
) -> None:
    """Old nodes are replaced one by one. Only the new ones have the step `announce`, only the old
    ones `notify`; both have `charge`."""
    async with deployment(redis_url, tmp_path) as here:
        await here.define("payment", "charge", "notify")
        nodes = [here.node("old") for _ in range(NODES)]
        load = Load(here)
        try:
            for each in nodes:
                await each.__aenter__()
            await here.define("payment", "charge", "announce")
            async with asyncio.TaskGroup() as group:
                for _ in range(STARTERS):
                    group.create_task(load.run())
                for place in range(NODES):
                    before = len(load.ids)
                    replacement = here.node("new")
                    await replacement.__aenter__()
                    old, nodes[place] = nodes[place], replacement
                    assert await asyncio.to_thread(old.terminate) == 0
                    await asyncio.to_thread(old.close)
                    await eventually(lambda: len(load.ids) > before, DEADLINE_S)  # noqa: B023
                load.over = True
            # What the old version still needs: one node of the former deployment is kept.
            nodes.append(here.node("old"))
            await nodes[-1].__aenter__()
            found = outcomes(await here.ended(load.ids))
        finally:
            for each in nodes:
                await asyncio.to_thread(each.close)
        print(f"\n{NODES} nodes replaced, {len(load.ids):,} started: {dict(found)}")
        assert found == {"success": len(load.ids)}


async def _recovered_s(here: Deployment) -> dict[str, float]:
    """Transaction → time on the wall when it was due again. One machine, one clock."""
    return {
        event.subject: entry.at_ms / 1000
        for entry in await entries(here.runtime)
        for event in entry.events
        if event.event == "recovered"
    }


async def test_work_of_killed_and_stopped_nodes_is_due_again_and_a_woken_one_changes_nothing(
    redis_url: str, tmp_path: Path
) -> None:
    """Steps are slower than the lease. What a live node holds is not given to another."""
    env = {"ANGARIUM_TRANSACTIONS__NODE_TIMEOUT_MS": str(LEASE_MS)}
    data = msgspec.json.encode({"pause_s": 3 * LEASE_MS / 1000})

    async with deployment(redis_url, tmp_path) as here:
        await here.define("work", "work")

        def node() -> RoleProcess:
            return here.role("node", "--app", "tests.transactions.killing_steps:app", **env)

        async def held() -> list[str]:
            """Taken by the only node."""
            ids = await here.start("work", SLOW_STEPS, data=data)
            for each in ids:
                await here.wait_for_status(each, "running")
            return ids

        async def due_again(ids: list[str]) -> bool:
            return set(ids) <= (await _recovered_s(here)).keys()

        async def refused() -> bool:
            reports = await read_processes(here.runtime)
            return SLOW_STEPS in [each.figures.get("lost") for each in reports]

        async with node() as killed:
            orphans = await held()
            async with node() as stopped:
                killed.kill()
                killed_s = time.time()
                await eventually(lambda: due_again(orphans), DEADLINE_S)
                assert outcomes(await here.ended(orphans)) == {"success": SLOW_STEPS}
                asleep = await held()
                async with node() as awake:
                    stopped.pause()
                    paused_s = time.time()
                    await eventually(lambda: due_again(asleep), DEADLINE_S)
                    stopped.resume()
                    await eventually(refused, DEADLINE_S)
                    found = await here.ended(asleep)
                    pids = {msgspec.json.decode(each.output)["pid"] for each in found}
                    # The woken node may have taken some again, under a new run.
                    assert {each.run for each in found} == {2}
                    assert pids <= {awake.pid, stopped.pid}
        recovered = await _recovered_s(here)
        late = [max(recovered[id] for id in ids) for ids in (orphans, asleep)]
        ended = Counter(
            event.subject
            for entry in await entries(here.runtime)
            for event in entry.events
            if event.event in ("completed", "dead")
        )
        print(
            f"\nlease {LEASE_MS / 1000} s, {SLOW_STEPS} steps of three leases: due again "
            f"{late[0] - killed_s:.2f} s after kill -9, {late[1] - paused_s:.2f} s after SIGSTOP; "
            f"{SLOW_STEPS} writes of the woken node refused"
        )
        assert set(ended) == {*orphans, *asleep}
        assert set(ended.values()) == {1}
