"""Two archivers, the lake's and the database's, both killed with -9 again and again.

Who has the role is given work. One that dies between storing a transaction and telling Redis may
leave it to the other, and then both stores have it; no store has it twice, and none is missing.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from angarium.lake.filed import transactions_of
from angarium.lake.query import ask
from angarium.lake.tables import Lake
from angarium.transactions.archive import TransactionArchive
from angarium.transactions.client import Transactions
from angarium.transactions.model import TransactionStatus
from tests.faults.lake_processes import Driver
from tests.faults.profile import LONG
from tests.faults.test_lake_tables import LOCKS, lake_run
from tests.kit.eventually import eventually
from tests.transactions.harness import Harness, harness

ROUNDS = 3
TRANSACTIONS = 400  # before each kill
DEADLINE_S = 300.0


class Both:
    """The two archivers, and how far they have come together."""

    def __init__(self, here: Harness, folder: Path) -> None:
        self._here = here
        settings = here.runtime.settings
        command = [str(Path(sys.executable).with_name("angarium")), "serve", "archiver"]
        self.lake = lake_run(settings, folder / "lake.out", env={})
        locks = {f"ANGARIUM_TRANSACTIONS__{name.upper()}": str(n) for name, n in LOCKS.items()}
        self.database = Driver(
            command,
            folder / "archiver.out",
            {
                "ANGARIUM_REDIS_URL": settings.redis_url,
                "ANGARIUM_PREFIX": settings.prefix,
                "ANGARIUM_HOME": str(folder / "archiver"),
                "ANGARIUM_DATABASE_URL": settings.database_url,
                **locks,
            },
        )
        self.ids: set[str] = set()

    async def left(self) -> int:
        return int((await self._here.queries.health_report(["default"], 1)).to_archive)

    async def archived(self, share: float) -> None:
        """More transactions have ended, and this share of them is gone from Redis."""
        ids = await self._here.completed(TRANSACTIONS)
        self.ids |= set(ids)
        aim = int(TRANSACTIONS * (1 - share))

        async def there() -> bool:
            for each in (self.lake, self.database):
                each.keep_up()
            return await self.left() <= aim

        await eventually(there, DEADLINE_S)

    def close(self) -> None:
        self.lake.close()
        self.database.close()


@pytest.mark.faults
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not LONG, reason="without kills in tests/lake/test_archive.py")
async def test_killed_archivers_of_lake_and_database_lose_and_double_nothing(
    redis_url: str, tmp_path: Path
) -> None:
    chance = random.Random(51)
    given: dict[str, Any] = {
        "home": tmp_path / "home", "lake_url": str(tmp_path / "lake"), "lake": {"archive": True},
        "database_url": f"sqlite:///{tmp_path}/a.sqlite", "transactions": LOCKS,
    }  # fmt: skip
    async with harness(redis_url, **given) as here:
        both = Both(here, tmp_path)
        both.lake.start()
        try:
            await both.archived(1.0)  # by the lake, which is alone
            both.database.start()
            for _ in range(ROUNDS):
                # Whoever has the role loses it with its life, and the other follows.
                for victim in (both.lake, both.database):
                    await both.archived(chance.random())
                    await asyncio.to_thread(victim.kill)
            await both.archived(1.0)
        finally:
            both.close()
        await check(here, both)


async def check(here: Harness, both: Both) -> None:
    settings = here.runtime.settings
    assert await both.left() == 0
    lake = Counter(row[0] for row in ask(Lake.of(settings), "select id from transactions").rows)
    archive = TransactionArchive(settings.database_url)
    try:
        found = await archive.page(TransactionStatus.SUCCESS, 100_000)
    finally:
        await archive.close()
    stored = Counter(each.id for each in found)
    assert max(lake.values()) == max(stored.values()) == 1
    assert lake.keys() | stored.keys() == both.ids
    events = Counter(each.event for each in await here.events())
    assert events["archived"] == len(both.ids)
    # Each is found by its id, wherever it went.
    asking = Transactions(here.runtime, lake_lookup=transactions_of(settings))
    try:
        for some in (lake, stored):
            assert (await asking.get(next(iter(some)))).status is TransactionStatus.SUCCESS
    finally:
        await asking.close()
    print(f"\n{len(both.ids)} transactions: {len(lake)} in the lake, {len(stored)} in the database,"
          f" {len(lake.keys() & stored.keys())} in both; {2 * ROUNDS} kills")  # fmt: skip
