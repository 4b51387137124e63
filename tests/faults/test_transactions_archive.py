"""Archivers that compete, are killed in mid batch, and lose their database: all is stored once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from angarium.transactions.archive import TransactionArchive
from angarium.transactions.model import TransactionStatus
from tests.faults.profile import rounds
from tests.kit.eventually import eventually
from tests.kit.postgres import PostgresProcess
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess
from tests.transactions.harness import Harness, harness

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
TRANSACTIONS = rounds(3_000, 60_000)
KILLS = rounds(2, 10)


async def _complete_some(here: Harness, count: int) -> None:
    await asyncio.gather(*(here.start() for _ in range(count)))
    while taken := await here.take(count=500):
        await asyncio.gather(*(here.store.complete(each, "success", b"{}", "") for each in taken))


async def test_two_archivers_kills_and_a_refusing_database(redis_server: ServerProcess) -> None:
    with PostgresProcess() as database:
        settings = {
            "delay_before_archiving": 0,
            "persisting_permission_lock1_period": 1,
            "persisting_permission_lock2_period": 2,
        }
        async with harness(
            redis_server.url, transactions=settings, database_url=database.url
        ) as here:
            names = {
                "ANGARIUM_REDIS_URL": here.runtime.settings.redis_url,
                "ANGARIUM_PREFIX": here.runtime.settings.prefix,
                "ANGARIUM_DATABASE_URL": database.url,
                **{
                    f"ANGARIUM_TRANSACTIONS__{name.upper()}": str(value)
                    for name, value in settings.items()
                },
            }

            async def archived() -> int:
                return (await here.counters()).get("archived", 0)

            async with RoleProcess(["serve", "archiver"], names):
                for number in range(KILLS):
                    async with RoleProcess(["serve", "archiver"], names) as other:
                        # Locks of one second pass the role to and fro; each kill meets one of
                        # them somewhere between the database's answer and Redis hearing of it.
                        await _complete_some(here, TRANSACTIONS // KILLS)
                        before = await archived()

                        async def more(before: int = before) -> bool:
                            return await archived() > before

                        await eventually(more, 60)
                        other.kill()
                    if number == 0:
                        database.kill()
                        await _complete_some(here, 500)
                        await asyncio.to_thread(database.restart)

                async def empty() -> bool:
                    return (await here.queries.health_report(["default"], 1)).to_archive == 0

                await eventually(empty, 120)
            await _check(here)


async def _check(here: Harness) -> None:
    total = TRANSACTIONS // KILLS * KILLS + 500
    archive = TransactionArchive(here.runtime.settings.database_url)
    rows = await archive.page(TransactionStatus.SUCCESS, 2 * total)
    await archive.close()
    events = Counter(each.event for each in await here.events())
    print(f"\n{len(rows)} of {total} transactions archived, {KILLS} archivers killed")
    assert len(rows) == len({each.id for each in rows}) == total
    assert events["archived"] == events["completed"] == total
