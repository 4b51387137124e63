"""Drivers, workers and executors of Spark killed at random: every row once, in tables and streams.

Here the formats themselves are at work: the journal into a table and through a shuffle into a
stream, the archive into a table. The lake's own tables are in `test_lake_tables.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.faults.lake_processes import Cluster, Driver, cluster_environment, kill_when_there
from tests.faults.profile import LONG, rounds
from tests.kit.eventually import NeverTrue, eventually
from tests.kit.server import ServerProcess
from tests.transactions.harness import Harness, harness

pytestmark = [pytest.mark.faults, pytest.mark.timeout(rounds(400, 1_800))]
KILLS = rounds(1, 5)  # of each of two kinds
EVENTS = 100  # of one entry
ENTRIES = rounds(30, 60)  # before each kill
TRANSACTIONS = rounds(30, 120)
DEADLINE_S = 300.0
LOCAL = "local[2,4]"  # four tries of a task: a worker that is killed costs one of them
LOCKS = {
    "delay_before_archiving": 0,
    "persisting_permission_lock1_period": 1,
    "persisting_permission_lock2_period": 2,
}


class Run:
    """Work for the driver, and how far it has come with it."""

    def __init__(self, server: ServerProcess, here: Harness, folder: Path, master: str) -> None:
        self._here = here
        self._client = server.client()
        self._prefix = here.runtime.settings.prefix
        self._folder = folder
        self._chance = random.Random(8)
        settings = {
            "redis_url": server.url, "prefix": self._prefix, "home": str(folder / "home"),
            "journal": {"bytes_max": 10**10}, "transactions": LOCKS,
        }  # fmt: skip
        argv = [sys.executable, "-m", "tests.faults.lake_driver", json.dumps(settings), str(folder)]
        env = {} if master == LOCAL else cluster_environment(folder)
        self.driver = Driver([*argv, master], folder / "driver.log", env)
        self.events = self.transactions = 0

    async def survive(self, kills: list[Callable[[], int]]) -> int:
        """Each of the kills in turn, somewhere in the work; how many processes died."""
        killed = 0
        for _ in range(KILLS):
            for kill in kills:
                self._note()
                await self._complete()
                await self._moved(self._chance.randint(1, ENTRIES * EVENTS))
                killed += await asyncio.to_thread(kill_when_there, kill)
        (self._folder / "stop").touch()
        await asyncio.to_thread(self.driver.end, DEADLINE_S)
        return killed

    def _note(self) -> None:
        """Entries as the modules write them, beside those that the modules do write."""
        key, count = f"{self._prefix}journal", ENTRIES * EVENTS
        pipe = self._client.pipeline(transaction=False)
        # The modules count on in the same place, so that the running numbers have no gap.
        last = self._client.hincrby(f"{key}:meta", "events", count) - count
        for number in range(self.events, self.events + count, EVENTS):
            last += EVENTS
            rows = "\n".join(f'{{"e":"noted","s":"m{number + n}"}}' for n in range(EVENTS))
            pipe.xadd(
                key,
                {"v": 1, "module": "dispatch", "at": 1, "by": "w", "n": EVENTS, "seq": last,
                 "end": 0, "rows": rows},
            )  # fmt: skip
        pipe.execute()
        self.events += count

    async def _complete(self) -> None:
        await asyncio.gather(*(self._here.start() for _ in range(TRANSACTIONS)))
        complete = self._here.store.complete
        while taken := await self._here.take(count=100):
            await asyncio.gather(*(complete(each, "success", b"{}", "") for each in taken))
        self.transactions += TRANSACTIONS

    def _progress(self) -> int:
        """Something that grows with each commit of any of the three."""
        found = int(self._client.xlen(f"{self._prefix}copy"))
        for name in ("events", "transactions"):
            log = self._folder / name / "_delta_log"
            found += len(list(log.glob("*.json"))) if log.exists() else 0
        return found

    async def _moved(self, steps: int) -> None:
        """Wait until so much more is stored, or all there is: a random point of the work."""
        aim = min(self._progress() + steps, self.events)

        def there() -> bool:
            self.driver.keep_up()
            return self._progress() >= aim

        try:
            await eventually(there, DEADLINE_S)
        except NeverTrue as error:
            raise NeverTrue(f"{error}\n{self.driver.tail()}") from error

    def check(self) -> None:
        client, prefix, folder = self._client, self._prefix, self._folder
        expected = Counter(f"m{n}" for n in range(self.events))
        events = DeltaTable(str(folder / "events")).to_pyarrow_table()
        assert Counter(events["subject"].to_pylist()) == expected
        copy: Counter[str] = Counter()
        after = "-"
        while page := client.xrange(f"{prefix}copy", after, "+", count=10_000):
            copy.update(fields[b"subject"].decode() for _, fields in page)
            after = f"({page[-1][0].decode()}"
        assert copy == expected
        stored = DeltaTable(str(folder / "transactions")).to_pyarrow_table()["id"].to_pylist()
        assert len(stored) == len(set(stored)) == self.transactions
        assert client.zcard(f"{prefix}toArchiveZ") == 0
        assert client.keys(f"{prefix}stateH:*") == []
        # Rows of tasks that died are left to expire; nothing waits for ever.
        assert all(client.ttl(name) > 0 for name in client.keys("*:staged:*"))


async def survived(
    folder: Path, master: str, kills: Callable[[Driver], list[Callable[[], int]]]
) -> None:
    settings: dict[str, Any] = {"journal": {"bytes_max": 10**10}, "transactions": LOCKS}
    with ServerProcess() as server:
        async with harness(server.url, **settings) as here:
            run = Run(server, here, folder, master)
            try:
                run.driver.start()
                killed = await run.survive(kills(run.driver))
            finally:
                run.driver.close()
            run.check()
    print(f"\n{run.events} events, {run.transactions} transactions, {killed} processes killed, "
          f"{run.driver.restarts} ends of their own: nothing lost, nothing doubled")  # fmt: skip


async def test_killed_drivers_and_workers_lose_and_double_nothing(tmp_path: Path) -> None:
    await survived(tmp_path, LOCAL, lambda driver: [driver.kill_workers, driver.kill])


@pytest.mark.skipif(not LONG, reason="three Javas and a Spark: part of `make faults`")
async def test_killed_executors_of_a_cluster_lose_and_double_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path).run() as cluster:
        await survived(
            tmp_path, cluster.master, lambda driver: [cluster.kill_executors, driver.kill]
        )
