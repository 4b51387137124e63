"""The archiver on Spark: each ended transaction leaves Redis once, and only when it is stored."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from angarium.lake.errors import CheckpointMismatch
from angarium.lake.sources.archive import ArchiveReader
from angarium.lake.sources.archive_rows import SCHEMA
from angarium.lake.sources.archive_store import ArchiveOptions, options_of
from angarium.transactions.archive import TransactionArchive
from angarium.transactions.model import Transaction, TransactionStatus
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.lake.kit import rows_of, run_once
from tests.transactions.harness import Harness, harness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOON: Mapping[str, Any] = {
    "delay_before_archiving": 0,
    "persisting_permission_lock1_period": 1,
    "persisting_permission_lock2_period": 2,
}


async def _complete(here: Harness, count: int) -> set[str]:
    ids = {await here.start(owner="ann", external_id=f"x{n}", data={"n": n}) for n in range(count)}
    while taken := await here.take(count=100):
        await asyncio.gather(*(here.store.complete(each, "success", b"{}", "ok") for each in taken))
    return ids


def _reader(here: Harness) -> ArchiveReader:
    kinds = {"string": StringType(), "bigint": LongType()}
    fields = [part.split() for part in SCHEMA.split(", ")]
    schema = StructType([StructField(name, kinds[kind]) for name, kind in fields])
    settings = here.runtime.settings
    return ArchiveReader(ArchiveOptions.read(options_of(settings, settings.redis_url)), schema)


def _rows(reader: ArchiveReader, start: Any, end: Any) -> Iterator[dict[str, Any]]:
    for portion in reader.partitions(start, end):
        for batch in reader.read(portion):
            yield from batch.to_pylist()


async def _left(here: Harness) -> int:
    return int((await here.queries.health_report(["default"], 1)).to_archive)


async def test_the_state_is_what_the_module_itself_would_have_stored(redis_url: str) -> None:
    async with harness(redis_url, transactions=dict(SOON)) as here:
        ids = await _complete(here, 3)
        reader = _reader(here)
        start = reader.initialOffset()
        rows = await asyncio.to_thread(
            lambda: list(_rows(reader, start, reader.latestOffset(start, ReadAllAvailable())))
        )
        assert {row["id"] for row in rows} == ids
        for row in rows:
            assert msgspec.json.decode(row["state"], type=Transaction) == await here.state(
                row["id"]
            )
            assert (row["owner"], row["status"], row["pipeline"]) == ("ann", "success", "one")
        await asyncio.to_thread(reader.stop)


async def test_transactions_leave_redis_for_a_table(
    spark: SparkSession, any_redis_url: str, tmp_path: Path
) -> None:
    async with harness(any_redis_url, transactions=dict(SOON)) as here:
        ids = await _complete(here, 40)
        settings = here.runtime.settings
        reader = spark.readStream.format("angarium-archive").option("maxRowsPerBatch", "16")
        frame = reader.options(**options_of(settings, settings.redis_url)).load()
        table = tmp_path / "transactions"
        run_once(frame, "angarium-delta", str(table), tmp_path / "checkpoint")
        assert Counter(rows_of(table)["id"].to_pylist()) == Counter(ids)
        assert await _left(here) == 0
        events = Counter(each.event for each in await here.events())
        assert events["archived"] == events["completed"] == 40


async def test_a_batch_that_was_not_stored_is_given_again_and_then_is_the_same(
    redis_url: str,
) -> None:
    async with harness(redis_url, transactions=dict(SOON)) as here:
        ids = await _complete(here, 5)
        first = _reader(here)
        start = first.initialOffset()
        latest = await asyncio.to_thread(first.latestOffset, start, ReadAllAvailable())
        end = json.loads(json.dumps(latest))
        found = await asyncio.to_thread(lambda: list(_rows(first, start, end)))
        assert {row["id"] for row in found} == ids
        # Killed: Redis has not heard that anything is stored.
        await asyncio.to_thread(first.stop)
        second = _reader(here)
        # It waits for the role, which the first one held, and reads the same again.
        rows = await asyncio.to_thread(lambda: list(_rows(second, start, end)))
        assert {row["id"] for row in rows} == ids
        assert await asyncio.to_thread(second.latestOffset, end, ReadAllAvailable()) == end
        assert await _left(here) == 0
        assert await asyncio.to_thread(lambda: list(_rows(second, start, end))) == []
        await asyncio.to_thread(second.commit, end)
        events = Counter(each.event for each in await here.events())
        assert events["archived"] == 5
        await asyncio.to_thread(second.stop)


async def test_only_who_has_the_role_is_given_work(redis_url: str) -> None:
    async with harness(redis_url, transactions={**SOON, "delay_before_archiving": 0}) as here:
        await _complete(here, 3)
        readers = [_reader(here) for _ in range(2)]
        start = readers[0].initialOffset()
        first, second = [
            await asyncio.to_thread(each.latestOffset, start, ReadAllAvailable())
            for each in readers
        ]
        assert first != start
        assert second == start
        for reader in readers:
            await asyncio.to_thread(reader.stop)


async def test_the_checkpoint_of_another_keyspace_is_refused(redis_url: str) -> None:
    async with harness(redis_url, transactions=dict(SOON)) as here:
        reader = _reader(here)
        with pytest.raises(CheckpointMismatch, match="checkpointLocation of its own"):
            reader.latestOffset({"source": "archive:x:1", "ids": {}}, ReadAllAvailable())


async def test_beside_the_archiver_of_the_database_each_is_stored_by_one(
    spark: SparkSession, redis_url: str, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/a.sqlite"
    # Grace enough for a batch on a busy machine: who overstays it shares what it was given.
    locks = {**SOON, "persisting_permission_lock2_period": 8}
    async with harness(redis_url, transactions=locks, database_url=database) as here:
        settings = here.runtime.settings
        reader = spark.readStream.format("angarium-archive").option("maxRowsPerBatch", "20")
        frame = reader.options(**options_of(settings, settings.redis_url)).load()
        table = tmp_path / "transactions"
        names = {
            "ANGARIUM_REDIS_URL": redis_url,
            "ANGARIUM_PREFIX": settings.prefix,
            "ANGARIUM_DATABASE_URL": database,
            **{f"ANGARIUM_TRANSACTIONS__{name.upper()}": str(n) for name, n in locks.items()},
        }
        archive = TransactionArchive(database)

        async def counted() -> tuple[Counter[str], Counter[str]]:
            stored = Counter(e.id for e in await archive.page(TransactionStatus.SUCCESS, 10_000))
            return stored, Counter(rows_of(table)["id"].to_pylist() if table.exists() else ())

        async def none_left() -> bool:
            return await _left(here) == 0

        writer = frame.writeStream.format("angarium-delta")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.trigger(processingTime="100 milliseconds")
        ids: set[str] = set()
        query = writer.start(str(table))
        try:
            ids |= await _complete_more(here, 60)
            await eventually(none_left, 90)
            async with RoleProcess(["serve", "archiver"], names):
                # Both want the role, and who has it keeps it while it is at work.
                ids |= await _complete_more(here, 60)
                await eventually(none_left, 90)
                # All that one was given is stored; the other follows when the locks have expired.
                query.stop()
                ids |= await _complete_more(here, 60)
                await eventually(none_left, 90)
                query = writer.start(str(table))
                ids |= await _complete_more(here, 60)
                await eventually(none_left, 90)
            query.processAllAvailable()
            stored, lake = await counted()
        finally:
            query.stop()
            await archive.close()
        print(f"\n{len(stored)} in the database, {len(lake)} in the lake, of {len(ids)}")
        assert stored + lake == Counter(ids)
        assert min(len(lake), len(stored)) >= 60
        events = Counter(each.event for each in await here.events())
        assert events["archived"] == len(ids)


async def _complete_more(here: Harness, count: int) -> set[str]:
    ids = {await here.start() for _ in range(count)}
    while taken := await here.take(count=100):
        await asyncio.gather(*(here.store.complete(each, "success", b"{}", "") for each in taken))
    return ids
