"""A step that kills its node or fails for ever: it dies alone, and says why."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.faults.poison import WAYS
from tests.faults.profile import LONG, rounds
from tests.findings.transactions_deployment import DEADLINE_S, deployment, outcomes
from tests.kit.eventually import eventually
from tests.kit.supervisor import Supervisor

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
APP = "tests.transactions.killing_steps:app"
NODES, NEIGHBOURS = rounds(2, 3), rounds(30, 300)
MAX_RUNS, NODE_TIMEOUT_MS = rounds(3, 5), rounds(1_000, 8_000)


# A coroutine and a plain function take turns; the long form tries every pair.
PAIRS = [(way, step) for way in WAYS for step in ("kill", "plain_kill")]


@pytest.mark.parametrize(("way", "step"), PAIRS if LONG else [*PAIRS[::4], *PAIRS[3::4]])
async def test_f17_a_poison_step_dies_alone_and_keeps_its_reason(
    redis_url: str, tmp_path: Path, way: str, step: str
) -> None:
    """Neighbours that ran beside it succeed, though their nodes crashed too."""
    env = {
        "ANGARIUM_TRANSACTIONS__NODE_TIMEOUT_MS": str(NODE_TIMEOUT_MS),
        "ANGARIUM_TRANSACTIONS__MAX_RUNS": str(MAX_RUNS),
    }
    async with deployment(redis_url, tmp_path) as here:
        await here.define("poison", step)
        await here.define("work", "work")
        async with Supervisor(lambda: here.role("node", "--app", APP, **env), NODES) as nodes:
            (poison,) = await here.start("poison", data=msgspec.json.encode({"how": way}))
            started_s = time.monotonic()
            others = await here.start("work", NEIGHBOURS, data=b'{"pause_s":0.2}')

            async def set_aside() -> bool:
                return (await here.client.get(poison)).status.final

            await eventually(set_aside, DEADLINE_S + NODE_TIMEOUT_MS / 1000 * 2 * MAX_RUNS)
            took_s = time.monotonic() - started_s
            found = outcomes(await here.ended(others))
            dead = await here.client.get(poison)

            def log_says_why() -> bool:
                lines = [line for node in nodes.roles for line in node.stderr()]
                return any("transaction_dead" in each and poison in each for each in lines)

            await eventually(log_says_why, DEADLINE_S)
        print(
            f"\n{way} in {step}: set aside after {took_s:.1f} s, {dead.tries} failed tries, "
            f"{dead.crashes} crashes, {nodes.deaths} nodes died; {dead.reason}: {dead.note}"
        )
        assert found == {"success": NEIGHBOURS}
        assert dead.status == "failed"
        if WAYS[way]:
            assert (dead.reason, dead.crashes) == ("crashed", MAX_RUNS)
            assert nodes.deaths >= MAX_RUNS
        else:
            assert (dead.tries, dead.crashes, nodes.deaths) == (MAX_RUNS, 0, 0)
            assert dead.reason == ("HandlerExit" if way == "sys.exit" else way)
            assert way.removeprefix("sys.").replace("exit", "SystemExit") in (dead.note or "")
        (listed,) = (await here.client.dead_letters().page(10)).letters
        assert (listed.id, listed.tries) == (poison, dead.tries + dead.crashes)
