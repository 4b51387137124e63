"""The same queries on a standalone master with two workers, all of them real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from angarium.lake.tables import Lake
from tests.faults.lake_processes import Cluster, cluster_environment
from tests.faults.profile import LONG
from tests.lake.conftest import spark as spark
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled
from tests.lake.test_pipeline import contents

RUN_S_MAX = 300.0


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.skipif(not LONG, reason="three Javas and a Spark: part of `make faults`")
def test_a_master_with_two_workers_makes_the_same_tables(filled: Filled, tmp_path: Path) -> None:
    lake_url = str(tmp_path / "lake")
    with Cluster(tmp_path).run() as cluster:
        done = subprocess.run(
            [Path(sys.executable).with_name("angarium"), "lake", "run", "--once",
             "--master", cluster.master, "--json"],
            env={**cluster_environment(tmp_path), **filled.environment,
                 "ANGARIUM_LAKE_URL": lake_url, "ANGARIUM_HOME": str(tmp_path / "home")},
            capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(cluster.executors) >= 2, "one of the workers did nothing"
    here = filled.settings.model_copy(update={"lake_url": lake_url})
    assert contents(Lake.of(here)) == contents(filled.lake)


@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.skipif(not LONG, reason="Spark asks a master for a minute before it gives up")
def test_a_master_that_does_not_answer_is_told_in_one_line(redis_url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("angarium"), "lake", "run", "--once",
         "--master", "spark://127.0.0.1:1"],
        env={**cluster_environment(tmp_path), "ANGARIUM_REDIS_URL": redis_url,
             "ANGARIUM_PREFIX": "masterless:", "ANGARIUM_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("angarium: Spark can't start on spark://127.0.0.1:1: ")
    assert done.stderr.endswith("check --master or ANGARIUM_LAKE__MASTER\n")
    assert done.stderr.count("\n") == 1
