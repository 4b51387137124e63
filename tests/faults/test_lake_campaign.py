"""All roles hurt by a seeded schedule, then the lake over their journal: nothing is unexplained.

The campaign has its own judge, who knows what was sent. The audit knows only the journal and Redis,
and has to come to the same verdict: what was killed, paused, cut off and repeated is accounted for.
In a long run the lake is one of the roles, and is killed too.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.campaign.fleet import Member
from tests.faults.campaign.load import Pace
from tests.faults.campaign.report import Report
from tests.faults.campaign.run import Campaign
from tests.faults.profile import LONG, rounds

SEED = int(
    os.environ.get("CAMPAIGN_SEED") or (random.SystemRandom().randrange(2**32) if LONG else 8)
)
FAULTS, SPAN_S = rounds(6, 40), rounds(4, 80)
PACE = Pace(users=12, senders=4, keys=40, pause_s=0.8) if LONG else Pace(4, 2, 8, 0.3)
COMMAND_S_MAX = 240.0
LAKE_KILLED_EVERY_S = (10.0, 25.0)


class Audited(Campaign):
    """After its own verdict, and before anything is taken down, the lake is filled and audited."""

    stored: dict[str, Any]
    audit: dict[str, Any]
    status: int
    lake_kills = 0

    async def _play(self) -> Report:
        if not LONG:
            return await super()._play()
        self._role = Member("lake", 1, self._env, self._folder)
        try:
            await self._role.start()
            async with asyncio.TaskGroup() as group:
                self._hurting = group.create_task(self._hurt())
                return await super()._play()
        finally:
            self._role.close()

    async def _hurt(self) -> None:
        chance = random.Random(f"{SEED}/lake")
        while True:
            await asyncio.sleep(chance.uniform(*LAKE_KILLED_EVERY_S))
            async with self._role.lock:
                self._role.kill()
                self.lake_kills += 1
                await self._role.start()

    async def _judge(self, seconds: float, drained_s: float) -> Report:
        report = await super()._judge(seconds, drained_s)
        if LONG:
            async with self._role.lock:
                self._hurting.cancel()
                await self._role.stop()
            assert not self._role.bad_stops
        self.stored = json.loads((await self._lake("run", "--once", "--json")).stdout)
        audited = await self._lake("audit", "--now", "--reconcile", "--json", fails=True)
        self.status, self.audit = audited.returncode, json.loads(audited.stdout)
        return report

    async def _lake(self, *words: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """As an operator does it."""
        settings = {**self._servers.settings, "ANGARIUM_HOME": str(self._folder / "home")}
        done = await asyncio.to_thread(
            subprocess.run,
            [str(Path(sys.executable).with_name("angarium")), "lake", *words],
            env={**os.environ, **settings},
            capture_output=True, text=True, check=False, timeout=COMMAND_S_MAX,
        )  # fmt: skip
        assert fails or done.returncode == 0, done.stderr
        return done


@pytest.mark.faults
@pytest.mark.timeout(rounds(400, 1_500))
async def test_after_a_campaign_of_faults_nothing_is_unexplained(tmp_path: Path) -> None:
    print(f"\nCAMPAIGN_SEED={SEED}")
    campaign = Audited(SEED, FAULTS, SPAN_S, "single", tmp_path, PACE)
    report = await campaign.run()
    assert report.ok, str(report)
    found = campaign.audit
    assert found["findings"] == []
    assert (found["wrong"], campaign.status) == (0, 0)
    assert found["reconciliation"]["differences"] == []
    assert found["rejects"] == 0
    assert found["events"] >= report.events
    # A role has stored most of them before, in a long run.
    assert LONG or found["events"] == campaign.stored["events"]
    assert campaign.lake_kills > 0 or not LONG
    modules = {each["module"] for each in found["balances"] if each["accepted"]}
    assert modules == {"dispatch", "transactions", "conversations", "pickup", "routing"}
    accepted = sum(each["accepted"] for each in found["balances"])
    print(f"{report}\n{found['events']} events, {accepted} accepted, none unexplained")
