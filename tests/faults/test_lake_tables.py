"""The lake killed with -9, driver and Java alike, in the middle of its batches: every row once."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from angarium.core.settings import Settings
from angarium.lake.query import ask
from angarium.lake.tables import Lake
from tests.faults.profile import rounds
from tests.kit.leash import LeashedProcess
from tests.kit.sample import sample_settings
from tests.lake.kit import fill_journal

KILLS = rounds(1, 10)
ENTRIES, EVENTS = 400, 50
START_S_MAX = 120.0
END_S_MAX = 240.0


def lake_run(settings: Settings, *arguments: str, log: Path) -> LeashedProcess:
    """In a process group of its own, Java included, so that one signal hits all of it."""
    import os

    environment = {
        **os.environ,
        "ANGARIUM_REDIS_URL": settings.redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_HOME": str(settings.home),
        "ANGARIUM_LAKE__BATCH_ROWS_MAX": "1000",
        "ANGARIUM_LAKE__INTERVAL_MS": "1",
    }
    command = Path(sys.executable).with_name("angarium")
    with log.open("ab") as file:
        return LeashedProcess(
            [str(command), "lake", "run", *arguments], env=environment, stdout=file, stderr=file
        )


def stored(lake: Lake) -> int:
    return lake.rows("events")


def wait_for(what: Any, seconds: float, process: LeashedProcess, log: Path) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert process.alive, log.read_text(errors="replace")[-4000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
        time.sleep(0.05)


@pytest.mark.faults
@pytest.mark.timeout(3_600)
def test_a_lake_killed_in_mid_batch_has_every_row_once(redis_url: str, tmp_path: Path) -> None:
    import redis

    settings = sample_settings(redis_url, home=tmp_path)
    lake, log = Lake.of(settings), tmp_path / "log"
    client: Any = redis.Redis.from_url(redis_url)
    key = f"{settings.prefix}journal"
    chance = random.Random(20261115)
    total = 0
    for number in range(KILLS):
        total = fill_journal(client, key, entries=ENTRIES, events=EVENTS, first=total)
        before = stored(lake)
        process = lake_run(settings, log=log)
        try:
            wait_for(lambda low=before: stored(lake) > low, START_S_MAX, process, log)
            # Somewhere in the batches that follow: they take a few hundred milliseconds each.
            time.sleep(chance.uniform(0.0, 2.0))
        finally:
            process.close()
        print(f"kill {number + 1}: {stored(lake)} of {total} events stored")
    process = lake_run(settings, "--once", log=log)
    try:
        assert process.wait(END_S_MAX) == 0, log.read_text(errors="replace")[-4000:]
    finally:
        process.close()
    counts = ask(lake, "select count(*), count(distinct sequence), max(sequence) from events").rows
    assert counts == [(total, total, total)]
    lives = ask(lake, "select count(*), sum(accepts), sum(events), max(events) from messages").rows
    assert lives == [(total, total, total, 1)]
    for level in ("stats_fine", "stats_medium", "stats_coarse"):
        assert ask(lake, f"select sum(count) from {level}").rows == [(total,)]
