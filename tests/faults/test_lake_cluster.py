"""The same queries on a standalone master with two workers, all of them real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from angarium.lake.java import find_java
from angarium.lake.tables import Lake
from tests.faults.profile import LONG
from tests.kit.leash import LeashedProcess
from tests.lake.conftest import spark as spark
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled
from tests.lake.test_pipeline import contents

START_S_MAX = 90.0
RUN_S_MAX = 240.0


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(find_java(folder)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }


class Daemon:
    """A master or worker of Spark, whose log tells when it is there."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._log = folder / f"{name}.log"
        command = Path(sys.executable).with_name("spark-class")
        with self._log.open("wb") as log:
            self._process = LeashedProcess(
                [str(command), *arguments], env=environment(folder), stdout=log, stderr=log
            )

    def told(self, pattern: str) -> str:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            found = re.search(pattern, self._log.read_text(errors="replace"))
            if found:
                return found.group(1)
            assert self._process.alive, self._log.read_text(errors="replace")
            time.sleep(0.1)
        raise AssertionError(self._log.read_text(errors="replace"))

    def close(self) -> None:
        self._process.close()


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master and two workers on loopback; the master's address."""
    daemons = []
    try:
        master = Daemon(
            folder, "master", "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
        )  # fmt: skip
        daemons.append(master)
        address = master.told(r"(spark://127\.0\.0\.1:\d+)")
        for number in range(2):
            daemons.append(
                Daemon(
                    folder, f"worker{number}", "org.apache.spark.deploy.worker.Worker",
                    "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
                    "--cores", "1", "--memory", "1g", address,
                )
            )  # fmt: skip
        for worker in daemons[1:]:
            worker.told(r"(Successfully registered with master)")
        yield address
    finally:
        for each in reversed(daemons):
            each.close()


@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.skipif(not LONG, reason="three Javas and a Spark: part of `make faults`")
def test_a_master_with_two_workers_makes_the_same_tables(filled: Filled, tmp_path: Path) -> None:
    lake_url = str(tmp_path / "lake")
    with cluster(tmp_path) as master:
        done = subprocess.run(
            [Path(sys.executable).with_name("angarium"), "lake", "run", "--once",
             "--master", master, "--json"],
            env={**environment(tmp_path), **filled.environment, "ANGARIUM_LAKE_URL": lake_url,
                 "ANGARIUM_HOME": str(tmp_path / "home")},
            capture_output=True, text=True, check=False, timeout=RUN_S_MAX,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    here = filled.settings.model_copy(update={"lake_url": lake_url})
    assert contents(Lake.of(here)) == contents(filled.lake)
    executors = {
        path.name for folder in (tmp_path / "work").iterdir() for path in folder.iterdir()
        if path.is_dir()
    }  # fmt: skip
    assert len(executors) >= 2, "one of the workers did nothing"
