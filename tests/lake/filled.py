"""A lake filled once for all tests that only read it, and the keyspace it was filled from."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium.lake.errors import LakeStopped
from angarium.lake.pipeline import Pipeline
from angarium.lake.steps import LakeTables
from angarium.lake.tables import Lake
from angarium.runtime.runtime import Runtime
from angarium.runtime.settings import CommonSettings as Settings
from tests.kit.clock import FakeClock
from tests.kit.server import ServerProcess
from tests.lake.traffic import traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASS_S_MAX = 400


@dataclass(frozen=True)
class Filled:
    """`open` names what was left in flight, by module and account."""

    settings: Settings
    open: Mapping[tuple[str, str], list[str]]
    now_ms: int

    @property
    def lake(self) -> Lake:
        return Lake.of(self.settings)

    @property
    def tables(self) -> LakeTables:
        return LakeTables(self.lake)

    @asynccontextmanager
    async def runtime(self, after_s: int = 20) -> AsyncIterator[Runtime]:
        """Some time later."""
        clock = FakeClock(self.now_ms + after_s * 1_000)
        async with Runtime.open(self.settings, clock=clock) as runtime:
            yield runtime

    @property
    def environment(self) -> dict[str, str]:
        """For a command in a process of its own."""
        return environment_of(self.settings)


def environment_of(settings: Settings) -> dict[str, str]:
    return {
        "ANGARIUM_REDIS_URL": settings.redis_url,
        "ANGARIUM_PREFIX": settings.prefix,
        "ANGARIUM_PARTITIONS": str(settings.partitions),
        "ANGARIUM_HOME": str(settings.home),
    }


# Spark gives a Python worker ten seconds to start, and can't be told otherwise.
SLOW_START = "Python worker failed to connect back"
STARTS_MAX = 12


def store_once(spark: SparkSession, settings: Settings) -> Pipeline:
    """One pass of the queries over what is there, begun again where the machine was too busy."""
    for start in range(STARTS_MAX):
        try:
            return _store_once(spark, settings)
        except LakeStopped as error:
            if SLOW_START not in str(error) or start == STARTS_MAX - 1:
                raise
    raise AssertionError("not reached")


def _store_once(spark: SparkSession, settings: Settings) -> Pipeline:
    pipeline = Pipeline(spark, settings, settings.redis_url)
    pipeline.start(once=True)
    try:
        for _ in range(PASS_S_MAX):
            if pipeline.wait(1):
                return pipeline
        raise AssertionError("the queries did not end")
    finally:
        pipeline.stop()


@functools.cache
def fill(redis_url: str, spark: SparkSession, folder: Path) -> Filled:
    async def modules() -> Filled:
        async with traffic(redis_url, folder) as made:
            await made.everything()
            return Filled(made.settings, made.open, made.clock.now_ms())

    filled = asyncio.run(modules())
    store_once(spark, filled.settings)
    return filled


@pytest.fixture(scope="session")
def filled(
    redis_server: ServerProcess, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Filled:
    return fill(redis_server.url, spark, tmp_path_factory.getbasetemp())
