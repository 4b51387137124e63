"""One Spark for the whole run: starting it takes longer than most tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import angarium.lake
from angarium.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
_numbers = itertools.count()
# Java, Spark and a first batch, on a machine that has other things to do: the limit is there to
# end a test that hangs.
TEST_S_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for each in items:
        if each.path.parent == HERE and each.get_closest_marker("timeout") is None:
            each.add_marker(pytest.mark.timeout(TEST_S_MAX))


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
