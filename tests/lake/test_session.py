"""Starting Spark: what is promised before it runs, and that it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

import angarium.lake
from angarium.lake import spark as starting
from angarium.lake.errors import MemoryShort
from angarium.lake.settings import LakeSettings
from angarium.lake.tables import Lake
from angarium.settings import Settings
from tests.lake.test_tables import rows, table_in

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
        with starting.stderr_in_file(file):
            os.write(2, f"noise {number}".encode())
            print("ours", file=sys.stderr)
    assert file.read_text() == "noise 2"
    assert file.with_name("lake.log.1").read_text() == "noise 1"
    os.write(2, b"after")
    assert capfd.readouterr().err == "ours\nours\nours\nafter"


@pytest.mark.parametrize(
    ("master", "chosen", "host"),
    [
        ("local[*]", "", "127.0.0.1"),
        ("local[*]", "10.0.0.7", "10.0.0.7"),
        ("spark://127.0.0.2:7077", "", "127.0.0.1"),
        ("spark://127.0.0.2:7077", "127.0.0.3", "127.0.0.3"),
        ("k8s://https://127.0.0.1:6443", "", "127.0.0.1"),
        ("yarn", "", ""),
    ],
)
def test_the_drivers_address_follows_the_master(master: str, chosen: str, host: str) -> None:
    assert starting.driver_host(master, chosen) == host


def test_settings_reach_spark_and_win_over_ours() -> None:
    settings = Settings(
        lake=LakeSettings(
            spark="spark.executor.memory=2g spark.x='a b' spark.sql.session.timeZone=CET",
            ui_port=4040,
            driver_host="127.0.0.9",
        )
    )
    assert settings.lake.spark_settings() == {
        "spark.executor.memory": "2g",
        "spark.x": "a b",
        "spark.sql.session.timeZone": "CET",
    }
    found = starting.configuration(settings, "spark://127.0.0.1:7077")
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.9"
    assert (found["spark.ui.enabled"], found["spark.ui.port"]) == ("true", "4040")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("spark", "spark.executor.memory", "'spark.executor.memory' has no value"),
        ("spark", "a='b", "its quotes do not match"),
        ("retention_days", "events=x", "'events=x' is no number of days"),
        ("retention_days", "0", "'0' is no number of days"),
        ("retention_days", "=3", "'=3' is no number of days"),
    ],
)
def test_what_is_wrong_with_a_setting_is_said(name: str, value: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(problem)):
        LakeSettings(**{name: value})


def test_days_are_for_all_tables_or_for_some() -> None:
    days = LakeSettings(retention_days="30 messages=365")
    assert (days.days_of("events"), days.days_of("messages")) == (30, 365)
    assert LakeSettings(retention_days="events=7").days_of("messages") is None


def test_the_tables_are_views_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(lake_url=str(tmp_path / "lake"))
    lake = Lake.of(settings)
    table = table_in(lake, spark, "orders")
    table.write(rows(spark, 0, 10), writer="w", batch=0)
    assert angarium.lake.show_tables(spark, settings) == ["orders"]
    assert spark.sql("select count(*), max(text) from orders").first() == (10, "t9")
    table.write(rows(spark, 10, 5), writer="w", batch=1)
    angarium.lake.show_tables(spark, settings)
    assert spark.sql("select count(*) from orders where module = 'dispatch'").first() == (15,)


@pytest.mark.timeout(240)
def test_spark_connect_reads_the_tables_and_the_formats(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In a process of its own: a session of the one kind can't live beside one of the other."""
    settings = Settings(lake_url=str(tmp_path / "lake"))
    table = table_in(Lake.of(settings), spark, "orders")
    table.write(rows(spark, 0, 10), writer="w", batch=0)
    script = (
        "import sys, pathlib, angarium.lake as lake\n"
        "from pyspark.sql import SparkSession\n"
        "from angarium.settings import Settings\n"
        "from angarium.lake.spark import prepare_environment\n"
        "home, url = pathlib.Path(sys.argv[1]), sys.argv[2]\n"
        "prepare_environment(home, '127.0.0.1')\n"
        "spark = SparkSession.builder.remote('local[1]').config("
        "'spark.sql.python.filterPushdown.enabled', 'true').getOrCreate()\n"
        "assert type(spark).__module__ == 'pyspark.sql.connect.session', type(spark)\n"
        "lake.register(spark, Settings(home=home, lake_url=url))\n"
        "print(spark.sql('select sum(n) from orders').collect()[0][0])\n"
        "print(spark.read.format('angarium-delta').load(url + '/orders').count())\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "home"), settings.lake_url],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.stdout.split() == ["45", "10"], done.stderr[-2000:]


def test_naming_the_lake_does_not_import_spark() -> None:
    check = "import angarium.lake, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_session_is_as_the_lake_needs_it(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass") == starting.CHECKPOINTS
    assert spark.range(10).count() == 10
    assert starting.executors(spark) == 1
