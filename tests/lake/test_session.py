"""Starting Spark: what is promised before it runs, and that it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium.lake import spark as starting
from angarium.lake.errors import MemoryShort

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_too_little_memory_is_said_before_spark_starts() -> None:
    with pytest.raises(MemoryShort, match="700 MiB are free, and Spark needs 1024 MiB"):
        starting.heap_mib(700)


def test_the_heap_leaves_space_for_python() -> None:
    assert starting.heap_mib(1_500) == 512
    assert starting.heap_mib(8_000) == 2_000
    assert starting.heap_mib(400_000) == 4_096


def test_what_is_free_is_known() -> None:
    assert 64 < starting.memory_mib() < 100_000_000


@pytest.mark.parametrize(
    ("master", "used"),
    [
        ("local[*]", "local[*,2]"),
        ("local[4]", "local[4,2]"),
        ("local[4,9]", "local[4,9]"),
        ("local", "local"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_task_on_this_machine_is_tried_again(master: str, used: str) -> None:
    assert starting.with_retries(master) == used


def test_what_spark_says_goes_to_a_file_and_the_last_one_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "logs" / "lake.log"
    for number in range(3):
        with starting.words_kept_in(file):
            os.write(2, f"noise {number}".encode())
            print("ours", file=sys.stderr)
    assert file.read_text() == "noise 2"
    assert file.with_name("lake.log.1").read_text() == "noise 1"
    os.write(2, b"after")
    assert capfd.readouterr().err == "ours\nours\nours\nafter"


def test_naming_the_lake_does_not_import_spark() -> None:
    check = "import angarium.lake, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_session_is_as_the_lake_needs_it(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass") == starting.CHECKPOINTS
    assert spark.range(10).count() == 10
