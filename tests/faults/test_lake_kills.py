"""Drivers and workers of Spark killed at random: every row is there once, in tables and streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.faults.profile import rounds
from tests.kit.eventually import NeverTrue, eventually
from tests.kit.leash import LeashedProcess
from tests.kit.server import ServerProcess
from tests.transactions.room import Room, room

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
KILLS = rounds(1, 10)
EVENTS = rounds(100, 2_000)  # of one entry
ENTRIES = rounds(30, 100)  # between two kills
TRANSACTIONS = rounds(30, 300)
DEADLINE_S = 180.0
RESTARTS_MAX = 10
ROOT = Path(__file__).parents[2]
LOCKS = {
    "delay_before_archiving": 0,
    "persisting_permission_lock1_period": 1,
    "persisting_permission_lock2_period": 2,
}


class Driver:
    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self._argv = [
            sys.executable, "-m", "tests.faults.lake_driver", json.dumps(settings), str(folder),
        ]  # fmt: skip
        self._log = folder / "driver.log"
        self._process: LeashedProcess | None = None
        self.restarts = 0

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = LeashedProcess(self._argv, cwd=ROOT, stdout=log, stderr=log)

    def keep_up(self) -> None:
        """What a supervisor does: Spark gives up on a worker that needs 10 s to start."""
        if self.process.alive:
            return
        self.restarts += 1
        if self.restarts > RESTARTS_MAX:
            raise RuntimeError(f"the driver ends again and again:\n{self.tail()}")
        self.process.close()
        self.start()

    @property
    def process(self) -> LeashedProcess:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """The driver and its JVM at one blow, as when a machine goes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.close()

    def kill_workers(self) -> int:
        """Every Python worker of the executors; Spark starts others."""
        killed = 0
        for pid in _descendants(self.process.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"pyspark.daemon" in words:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        return killed

    def tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


def _descendants(pid: int) -> Iterator[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    for child in map(int, found.stdout.split()):
        yield child
        yield from _descendants(child)


def _note(client: Any, key: str, first: int) -> int:
    """Entries as the rooms write them, beside those that the rooms do write."""
    pipe = client.pipeline(transaction=False)
    # The rooms count on in the same place, so that the running numbers have no gap.
    last = client.hincrby(f"{key}:meta", "events", ENTRIES * EVENTS) - ENTRIES * EVENTS
    for number in range(first, first + ENTRIES * EVENTS, EVENTS):
        last += EVENTS
        rows = "\n".join(f'{{"e":"noted","s":"m{number + n}"}}' for n in range(EVENTS))
        pipe.xadd(
            key,
            {"v": 1, "room": "dispatch", "at": 1, "by": "w", "n": EVENTS, "seq": last,
             "end": 0, "rows": rows},
        )  # fmt: skip
    pipe.execute()
    return first + ENTRIES * EVENTS


async def _complete(here: Room, count: int) -> None:
    await asyncio.gather(*(here.start() for _ in range(count)))
    while taken := await here.take(count=100):
        await asyncio.gather(*(here.store.complete(each, "success", b"{}", "") for each in taken))


def _progress(client: Any, prefix: str, folder: Path) -> int:
    """Something that grows with each commit of any of the three."""
    found = int(client.xlen(f"{prefix}copy"))
    for name in ("events", "transactions"):
        log = folder / name / "_delta_log"
        found += len(list(log.glob("*.json"))) if log.exists() else 0
    return found


async def _moved(driver: Driver, client: Any, prefix: str, folder: Path, steps: int) -> None:
    """Wait until so much more is stored: a random point of the work."""
    aim = _progress(client, prefix, folder) + steps

    def there() -> bool:
        driver.keep_up()
        return _progress(client, prefix, folder) >= aim

    try:
        await eventually(there, DEADLINE_S)
    except NeverTrue as error:
        raise NeverTrue(f"{error}\n{driver.tail()}") from error


async def test_killed_drivers_and_workers_lose_and_double_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(8)
    with ServerProcess() as server:
        settings: dict[str, Any] = {"journal": {"bytes_max": 10**10}, "transactions": LOCKS}
        async with room(server.url, **settings) as here:
            prefix = here.ground.settings.prefix
            client = server.client()
            given = {"redis_url": server.url, "prefix": prefix, "home": str(tmp_path / "home"),
                     **settings}  # fmt: skip
            driver = Driver(given, tmp_path)
            request.addfinalizer(lambda: driver.process.close())
            total = workers = 0
            driver.start()
            for _ in range(KILLS):
                total = _note(client, f"{prefix}journal", total)
                await _complete(here, TRANSACTIONS)
                await _moved(driver, client, prefix, tmp_path, chance.randint(1, ENTRIES * EVENTS))
                workers += driver.kill_workers()
                total = _note(client, f"{prefix}journal", total)
                await _moved(driver, client, prefix, tmp_path, chance.randint(1, ENTRIES * EVENTS))
                driver.kill()
                driver.start()
            (tmp_path / "stop").touch()
            while await asyncio.to_thread(driver.process.wait, DEADLINE_S) != 0:
                driver.keep_up()
            driver.process.close()
            _check(client, prefix, tmp_path, total)
            print(f"\n{total} events, {KILLS * TRANSACTIONS} transactions, {KILLS} drivers and "
                  f"{workers} workers killed: nothing lost, nothing doubled")  # fmt: skip


def _check(client: Any, prefix: str, folder: Path, total: int) -> None:
    expected = Counter(f"m{n}" for n in range(total))
    events = DeltaTable(str(folder / "events")).to_pyarrow_table()
    assert Counter(events["subject"].to_pylist()) == expected
    copy: Counter[str] = Counter()
    after = "-"
    while page := client.xrange(f"{prefix}copy", after, "+", count=10_000):
        copy.update(fields[b"subject"].decode() for _, fields in page)
        after = f"({page[-1][0].decode()}"
    assert copy == expected
    stored = DeltaTable(str(folder / "transactions")).to_pyarrow_table()["id"].to_pylist()
    assert len(stored) == len(set(stored)) == KILLS * TRANSACTIONS
    assert client.zcard(f"{prefix}toArchiveZ") == 0
    assert client.keys(f"{prefix}stateH:*") == []
    # Rows of tasks that died are left to expire; nothing waits for ever.
    assert all(client.ttl(name) > 0 for name in client.keys("*:staged:*"))
