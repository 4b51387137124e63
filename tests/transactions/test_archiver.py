"""The role `archiver`: no transaction is lost or stored twice, whatever the database does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from angarium.runtime.errors import DatabaseUnavailable
from angarium.transactions.archive import TransactionArchive
from angarium.transactions.archiver import Archiver
from angarium.transactions.errors import TransactionUnknown
from angarium.transactions.model import TransactionStatus
from tests.kit.postgres import PostgresProcess
from tests.transactions.api_client import api
from tests.transactions.harness import Harness, harness

NOW = {"delay_before_archiving": 0}


async def _completed(here: Harness, count: int, **more: Any) -> list[str]:
    ids = [await here.start(owner="ann", **more) for _ in range(count)]
    for taken in await here.take(count=count):
        await here.store.complete(taken, "success", b'{"n":1}', "")
    return ids


async def _rows(here: Harness) -> list[str]:
    found = await here.client.archive.page(TransactionStatus.SUCCESS, 1_000)
    return sorted(each.id for each in found)


async def _pass(here: Harness, archiver: Archiver) -> None:
    for partition in here.store.keys.partitions:
        await archiver.run_once(partition)
        await archiver.run_once(partition)


async def test_ended_transactions_move_and_are_still_answered(any_redis_url: str) -> None:
    async with harness(any_redis_url, transactions=NOW, http={"port": 0}) as here:
        ids = await _completed(here, 20)
        (named,) = await _completed(here, 1, external_id="x")
        archiver = Archiver(here.runtime, here.client.archive)
        await _pass(here, archiver)
        for id in ids:
            assert await here.store.find(id) is None
            found = await here.client.get(id)
            assert (found.status, bytes(found.output)) == ("success", b'{"n":1}')
        assert await _rows(here) == sorted([*ids, named])
        assert (
            len(await here.client.list_by_status(TransactionStatus.SUCCESS, 50, owner="ann")) == 21
        )
        async with api(here.runtime) as http:
            _, body = await http.request("GET", f"/datp/1.0/tx/status/{named}?reply=longpoll")
            assert body["data"] == {"n": 1}
            _, body = await http.request("GET", "/datp/1.0/tx/statusByExternalId/x?owner=ann")
            assert body["metadata"]["txId"] == named
            partition = here.store.keys.partition_of(named)
            name = here.runtime.keyspace.name
            from angarium.transactions import keys

            key = name(keys.EXTERNAL_ID, partition, "ann|x")
            await here.runtime.redis.call("DEL", key, key=key)  # its period is over
            _, body = await http.request("GET", "/datp/1.0/tx/statusByExternalId/x?owner=ann")
            assert body["metadata"]["txId"] == named
        with pytest.raises(TransactionUnknown):
            await here.client.get("nobody")


class Refusing(TransactionArchive):
    """Fails before or after storing."""

    def __init__(self, url: str, after: bool) -> None:
        super().__init__(url)
        self.after = after

    async def store(self, transactions: Any) -> int:
        if self.after:
            await super().store(transactions)
        raise DatabaseUnavailable("the disk is full")


@pytest.mark.parametrize("after", [False, True])
async def test_a_database_that_refuses_deletes_nothing(redis_url: str, after: bool) -> None:
    async with harness(redis_url, transactions=NOW) as here:
        ids = await _completed(here, 5)
        refusing = Refusing(here.runtime.settings.database_url, after)
        archiver = Archiver(here.runtime, refusing)
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                await archiver.run_once(0)
        await refusing.close()
        for id in ids:
            assert (await here.state(id)).status == "success"
        await _pass(here, Archiver(here.runtime, here.client.archive))
        assert await _rows(here) == sorted(ids)
        assert await here.store.find(ids[0]) is None


async def test_a_transaction_stored_but_not_reported_is_stored_once(redis_url: str) -> None:
    """The archiver dies after the commit, before it reports to Redis."""
    async with harness(redis_url, transactions=NOW) as here:
        ids = await _completed(here, 5)
        dead = Archiver(here.runtime, here.client.archive)
        await dead.run_once(0)
        assert await here.store.find(ids[0]) is not None
        await _pass(here, Archiver(here.runtime, here.client.archive))
        assert await _rows(here) == sorted(ids)
        assert (await here.counters())["archived"] == 5


async def test_the_service_archives_by_itself_and_reports_at_the_end(redis_url: str) -> None:
    from tests.kit.eventually import eventually

    async with harness(redis_url, transactions=NOW) as here:
        archiver = Archiver(here.runtime, TransactionArchive(here.runtime.settings.database_url))
        await archiver.start()
        ids = await _completed(here, 1_200)

        async def gone() -> bool:
            return (await here.queries.health_report(["default"], 1)).to_archive == 0

        await eventually(gone, 30)
        await archiver.stop(10)
        rows = await here.client.archive.page(TransactionStatus.SUCCESS, 2_000)
        assert {each.id for each in rows} == set(ids)


async def test_the_archive_can_be_postgresql(redis_url: str, tmp_path: Path) -> None:
    with PostgresProcess() as server:
        async with harness(redis_url, transactions=NOW, database_url=server.url) as here:
            ids = await _completed(here, 30)
            await _pass(here, Archiver(here.runtime, here.client.archive))
            assert await _rows(here) == sorted(ids)
            assert (await here.client.get(ids[0])).owner == "ann"
