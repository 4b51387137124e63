"""Starting Spark: what is promised before it runs, and that it runs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from angarium.lake import spark as starting
from angarium.lake.errors import MemoryShort

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_too_little_memory_is_said_before_spark_starts() -> None:
    with pytest.raises(MemoryShort, match="700 MiB are free, and Spark needs 1024 MiB"):
        starting.heap_mib(700)


def test_the_heap_leaves_room_for_python() -> None:
    assert starting.heap_mib(1_500) == 512
    assert starting.heap_mib(8_000) == 2_000
    assert starting.heap_mib(400_000) == 4_096


def test_what_is_free_is_known() -> None:
    assert 64 < starting.memory_mib() < 100_000_000


def test_naming_the_lake_does_not_import_spark() -> None:
    check = "import angarium.lake, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_session_is_as_the_lake_needs_it(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass") == starting.CHECKPOINTS
    assert spark.range(10).count() == 10
