"""`angarium lake run` killed with -9 in the middle of its batches: every row of every table once.

The journal, results, entries that are not ours and ended transactions keep coming. Afterwards the
tables must be those of a lake that was filled undisturbed from the same streams.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redis
from angarium.lake.query import ask
from angarium.lake.schemas import TABLES
from angarium.lake.settings import LakeSettings
from angarium.lake.tables import Lake
from angarium.runtime.journal import Journal
from angarium.runtime.settings import CommonSettings as Settings
from tests.faults.lake_processes import Cluster, Driver, cluster_environment, kill_when_there
from tests.faults.profile import LONG, rounds
from tests.kit.eventually import NeverTrue, eventually
from tests.kit.server import ServerProcess
from tests.transactions.harness import Harness, harness

pytestmark = [pytest.mark.faults, pytest.mark.timeout(rounds(400, 1_800))]
KILLS = rounds(1, 10)
LIVES = rounds(2_000, 8_000)  # messages between two kills, of two events each
LIVES_PER_ENTRY = 20
RESULTS, FOREIGN, TRANSACTIONS = rounds(200, 1_000), 3, rounds(20, 100)
AWAY_S = 60.0
DEADLINE_S = 300.0
LOCKS = {
    "delay_before_archiving": 0,
    "persisting_permission_lock1_period": 1,
    "persisting_permission_lock2_period": 2,
}
# Small batches, one right after the other: a kill nearly always hits one of them.
BATCHES = {"ANGARIUM_LAKE__BATCH_ROWS_MAX": "1000", "ANGARIUM_LAKE__INTERVAL_MS": "1"}
FOLLOWING = ("messages_open", "stats_fine", "stats_medium", "stats_coarse")
COMPARED = ("events", "rejects", "messages", "results", *FOLLOWING)


class Streams:
    """Everything that a lake reads, written as the modules write it, and by a module."""

    def __init__(self, here: Harness) -> None:
        self._here = here
        self._client: Any = redis.Redis.from_url(here.runtime.settings.redis_url)
        self._prefix = here.runtime.settings.prefix
        self.lives = self.results = self.foreign = 0
        self.transactions: set[str] = set()

    async def more(self) -> None:
        await asyncio.to_thread(self._notes)
        self.transactions |= set(await self._here.completed(TRANSACTIONS))

    async def to_archive(self) -> int:
        return int((await self._here.queries.health_report(["default"], 1)).to_archive)

    def events(self) -> int:
        """How many the journal ever had."""
        return int(self._client.hget(f"{self._prefix}journal:meta", "events"))

    def _notes(self) -> None:
        key = f"{self._prefix}journal"
        pipe = self._client.pipeline(transaction=False)
        events = 2 * LIVES
        # The room counts on in the same place, so that the running numbers have no gap.
        last = self._client.hincrby(f"{key}:meta", "events", events) - events
        at_ms = int(self._client.time()[0]) * 1000
        for first in range(self.lives, self.lives + LIVES, LIVES_PER_ENTRY):
            some = range(first, first + LIVES_PER_ENTRY)
            for event in ("accepted", "completed"):
                last += LIVES_PER_ENTRY
                rows = "\n".join(f'{{"e":"{event}","s":"m{n}","k":"c{n % 7}"}}' for n in some)
                pipe.xadd(
                    key,
                    {"v": 1, "module": "dispatch", "at": at_ms, "by": "w", "n": LIVES_PER_ENTRY,
                     "seq": last, "end": 0, "rows": rows},
                )  # fmt: skip
        for number in range(FOREIGN):
            pipe.xadd(key, {"from": "somebody else", "n": number})
        for number in range(self.results, self.results + RESULTS):
            result = {"message_id": f"m{number}", "consumer_id": "w", "answer": str(number)}
            pipe.xadd(f"{self._prefix}messages:processed", result)
        pipe.execute()
        self.lives += LIVES
        self.results += RESULTS
        self.foreign += FOREIGN


def lake_run(settings: Settings, log: Path, *arguments: str, env: dict[str, str]) -> Driver:
    command = [str(Path(sys.executable).with_name("angarium")), "lake", "run", *arguments]
    return Driver(command, log, {**env, **environment(settings)})


def environment(settings: Settings) -> dict[str, str]:
    locks = {f"ANGARIUM_TRANSACTIONS__{name.upper()}": str(n) for name, n in LOCKS.items()}
    return {
        **BATCHES, **locks,
        "ANGARIUM_REDIS_URL": settings.redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_HOME": str(settings.home),
        "ANGARIUM_LAKE_URL": settings.lake_url,
        "ANGARIUM_LAKE__ARCHIVE": str(settings.group(LakeSettings).archive),
    }  # fmt: skip


async def moved(driver: Driver, lake: Lake, commits: int) -> None:
    """Wait until so many more commits were made, of all tables: a random point of the work."""

    def made() -> int:
        return sum(len(list(Path(lake.url).glob(f"{name}/_delta_log/*.json"))) for name in COMPARED)

    aim = made() + commits

    def there() -> bool:
        driver.keep_up()
        return made() >= aim

    try:
        await eventually(there, DEADLINE_S)
    except NeverTrue as error:
        raise NeverTrue(f"{error}\n{driver.tail()}") from error


async def caught_up(driver: Driver, lake: Lake, streams: Streams) -> None:
    """What survived goes on by itself, until everything is stored and Redis knows of it."""

    async def all_stored() -> bool:
        driver.keep_up()
        if await streams.to_archive() or lake.rows("events") < streams.events():
            return False
        # One after the other in a batch: the last of them has come as far as the first.
        last = batch_of(lake, "events")
        return (
            all(batch_of(lake, name) == last for name in FOLLOWING)
            and lake.rows("rejects") >= streams.foreign
            and lake.rows("results") >= streams.results
        )

    try:
        await eventually(all_stored, DEADLINE_S)
    except NeverTrue as error:
        raise NeverTrue(f"{error}\n{driver.tail()}") from error


def batch_of(lake: Lake, name: str) -> int | None:
    found = lake.open(name)
    return None if found is None else found.transaction_version("journal")


async def undisturbed(settings: Settings, folder: Path) -> Lake:
    """Another lake, filled in one go; it leaves transactions where they are."""
    told = settings.model_copy(
        update={
            "lake_url": str(folder / "undisturbed"),
            "lake": settings.group(LakeSettings).model_copy(update={"archive": False}),
        }
    )
    driver = lake_run(told, folder / "log", "--once", env={})
    driver.start()
    try:
        await asyncio.to_thread(driver.end, DEADLINE_S)
    finally:
        driver.close()
    return Lake.of(told)


async def survived(
    redis_url: str,
    folder: Path,
    kills: Callable[[Driver], list[Callable[[], int]]],
    *arguments: str,
    times: int = KILLS,
    env: dict[str, str] | None = None,
) -> Driver:
    """Kills in turn, each somewhere in the batches; then the tables are looked at."""
    chance = random.Random(20261115)
    given: dict[str, Any] = {
        "home": folder / "home", "lake_url": str(folder / "lake"), "lake": {"archive": True},
        "transactions": LOCKS, "journal": {"bytes_max": 10**10},
    }  # fmt: skip
    async with harness(redis_url, **given) as here:
        settings = here.runtime.settings
        await Journal(here.runtime).register("witness")  # keeps the journal for a second reading
        streams, lake = Streams(here), Lake.of(settings)
        driver = lake_run(settings, folder / "log", *arguments, env=env or {})
        ways, killed = kills(driver), 0
        await streams.more()
        driver.start()
        try:
            for number in range(times):
                await streams.more()
                await moved(driver, lake, chance.randint(1, rounds(10, 40)))
                killed += await asyncio.to_thread(kill_when_there, ways[number % len(ways)])
            await caught_up(driver, lake, streams)
        finally:
            driver.close()
        await check(here, streams, lake, folder)
    print(f"\n{streams.lives} messages, {streams.results} results, {len(streams.transactions)} "
          f"transactions, {killed} processes killed, {driver.restarts} ends of their own: "
          "every row once")  # fmt: skip
    return driver


async def check(here: Harness, streams: Streams, lake: Lake, folder: Path) -> None:
    other = await undisturbed(here.runtime.settings, folder)
    for name in COMPARED:
        ours, theirs = (rows_of(each, name) for each in (lake, other))
        assert ours == theirs, f"{name}: {list((ours - theirs) + (theirs - ours))[:5]}"
    assert lake.rows("rejects") == streams.foreign
    assert lake.rows("results") == streams.results
    lives = "select count(*), sum(accepts), sum(ends), sum(events) from messages where module = ?"
    count = streams.lives
    assert ask(lake, lives, ["dispatch"]).rows == [(count, count, count, 2 * count)]
    stored = Counter(row[0] for row in ask(lake, "select id from transactions").rows)
    assert stored == Counter(streams.transactions)
    done = await asyncio.to_thread(audited, here.runtime.settings)
    found = json.loads(done.stdout)
    assert found["findings"] == []
    assert found["reconciliation"]["differences"] == []
    assert done.returncode == 0


def audited(settings: Settings) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("angarium")
    return subprocess.run(
        [str(command), "lake", "audit", "--now", "--reconcile", "--json"],
        env={**os.environ, **environment(settings)},
        capture_output=True, text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip


def rows_of(lake: Lake, name: str) -> Counter[tuple[Any, ...]]:
    """All rows, without the number of the batch that brought them."""
    columns = [each for each in TABLES[name].names if each != "batch"]
    return Counter(ask(lake, f"select {', '.join(columns)} from {name}").rows)


async def test_a_lake_killed_in_mid_batch_has_every_row_once(
    redis_url: str, tmp_path: Path
) -> None:
    await survived(redis_url, tmp_path, lambda driver: [driver.kill, driver.kill_workers])


@pytest.mark.skipif(not LONG, reason="the source's own test is the short one")
async def test_redis_away_in_mid_batch_is_waited_for(tmp_path: Path) -> None:
    with ServerProcess(aof=True, fsync="always") as server:

        def away() -> int:
            server.kill()
            # Long enough that everybody has met the silence; the fault itself, not a wait for it.
            time.sleep(AWAY_S)
            server.restart()
            return 1

        driver = await survived(server.url, tmp_path, lambda _: [away], times=1)
    assert driver.restarts == 0, driver.tail()


@pytest.mark.skipif(not LONG, reason="three Javas and a Spark: part of `make faults`")
async def test_a_lake_on_a_cluster_has_every_row_once(redis_url: str, tmp_path: Path) -> None:
    env = cluster_environment(tmp_path)
    with Cluster(tmp_path).run() as cluster:
        await survived(
            redis_url, tmp_path, lambda driver: [cluster.kill_executors, driver.kill],
            "--master", cluster.master, env=env,
        )  # fmt: skip
