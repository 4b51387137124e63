"""One Spark for the whole run: starting it takes longer than most tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import angarium.lake
from angarium.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home = tmp_path_factory.mktemp("lake-home")
    conf = {"spark.driver.memory": "1g"}
    session = angarium.lake.session(Settings(home=home), master="local[2]", conf=conf)
    yield session
    session.stop()


@pytest.fixture
def prefix() -> str:
    """Tests of a run share a server, and keep apart by this."""
    return f"lake{next(_numbers)}:"
