"""`angarium lake shell`, `erase` and `rebuild` as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium.cli import main as cli
from angarium.lake.runner_lease import RunnerLease
from angarium.lake.tables import Lake
from angarium.redis.options import RedisOptions
from angarium.runtime.keyspace import Keyspace
from tests.lake.test_tables import rows, table_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN_S_MAX = 240


def run(home: Path, lake: Lake, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from angarium.cli.main import main; sys.exit(main())",
         "lake", *command],
        env={**os.environ, "ANGARIUM_HOME": str(home), "ANGARIUM_LAKE_URL": lake.url},
        capture_output=True, text=True, check=False, timeout=RUN_S_MAX, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_the_shell_has_the_tables_and_erase_removes_a_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    table_in(lake, spark, "orders").write(rows(spark, 0, 10), writer="w", batch=0)
    count = 'print(spark.sql("select count(*) from orders").first()[0], tables())'
    assert run(tmp_path, lake, "shell", "-c", count).split("\n")[0] == "10 ['orders']"
    assert json.loads(run(tmp_path, lake, "erase", "--key", "t7", "--json")) == {
        "orders": {"rows": 1, "files": 1}
    }
    assert run(tmp_path, lake, "erase", "--key", "t7") == "the lake has nothing of it\n"
    assert lake.rows("orders") == 9


def test_a_lake_that_is_being_filled_is_not_rebuilt(
    redis_url: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], no_settings: Path,
) -> None:  # fmt: skip
    lake = Lake(str(tmp_path / "lake"), prefix)
    for name, value in {
        "REDIS_URL": redis_url, "PREFIX": prefix, "LAKE_URL": lake.url, "HOME": str(tmp_path),
    }.items():  # fmt: skip
        monkeypatch.setenv(f"ANGARIUM_{name}", value)
    keyspace = Keyspace(prefix, 1)
    with RunnerLease(RedisOptions(redis_url), keyspace, lake.identity(), lake.url) as lease:
        assert lease.acquire()
        assert cli.main(["lake", "rebuild", "messages"]) == 1
        said = capsys.readouterr().err
    assert said == f"angarium: {lease.holder} fills this lake now; stop it, then rebuild\n"
