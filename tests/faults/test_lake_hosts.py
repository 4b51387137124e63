"""A table written from several hosts: a driver, a master, two workers, each with its own address.

Nothing of it is on a common loopback. Which executor did what is read from Spark's own event log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from angarium.lake.tables import Lake
from tests.faults.lake_processes import (
    EXECUTOR,
    ROOT,
    SparkDaemon,
    cluster_environment,
    kill_below,
    kill_when_there,
)
from tests.faults.profile import LONG
from tests.kit.eventually import wait_until
from tests.kit.hosts import Host, hosts, hosts_problem
from tests.kit.leash import LeashedProcess

BATCHES, ROWS = 4, 200_000
RUN_S_MAX = 300.0
PORT = 7077

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not LONG, reason="four Javas on four hosts: part of `make faults`"),
]


class HostedCluster:
    """A master on the first host, a worker on each of the next two; drivers run on the last."""

    def __init__(self, folder: Path, machines: Sequence[Host]) -> None:
        self._folder = folder
        self._master_host, *self._worker_hosts, self.driver_host = machines
        self.master = f"spark://{self._master_host.address}:{PORT}"
        self.daemons: list[SparkDaemon] = []
        self._masters = 0

    def start(self) -> None:
        self.start_master()
        for number, host in enumerate(self._worker_hosts):
            self.daemons.append(
                self._daemon(
                    host, f"worker{number}", "org.apache.spark.deploy.worker.Worker",
                    "--host", host.address, "--webui-port", "0", "--cores", "1", "--memory", "1g",
                    self.master,
                )
            )  # fmt: skip
        for each in self.daemons[1:]:
            each.told(r"(Successfully registered with master)")

    def start_master(self) -> None:
        self._masters += 1
        place = ("--host", self._master_host.address, "--port", str(PORT), "--webui-port", "0")
        name = f"master{self._masters}"
        daemon = self._daemon(
            self._master_host, name, "org.apache.spark.deploy.master.Master", *place
        )
        daemon.told(r"(I have been elected leader)")
        self.daemons[:1] = [daemon]

    def kill_master(self) -> int:
        self.daemons[0].close()
        self.start_master()
        return 1

    def kill_executor(self) -> int:
        for each in self.daemons[1:]:
            if killed := kill_below(each.pid, EXECUTOR):
                return killed
        return 0

    def _daemon(self, host: Host, name: str, *arguments: str) -> SparkDaemon:
        # A master that forgot its applications would leave their drivers without executors.
        recovery = {
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(self._folder / "recovery"),
        }
        environment = {
            "SPARK_LOCAL_IP": host.address,
            "SPARK_DAEMON_JAVA_OPTS": " ".join(f"-D{n}={v}" for n, v in recovery.items()),
        }
        return SparkDaemon(
            self._folder, name, *arguments, before=host.argv(), environment=environment
        )

    def close(self) -> None:
        for each in reversed(self.daemons):
            each.close()


class HostedDriver:
    """`lake_table_driver.py` on the driver's host; its lines are in a file."""

    def __init__(self, cluster: HostedCluster, folder: Path, lake: str, **more: str) -> None:
        self._argv = cluster.driver_host.argv(
            sys.executable, "-m", "tests.faults.lake_table_driver", cluster.master, lake,
            str(folder / "home"), str(BATCHES), str(ROWS),
        )  # fmt: skip
        environment = cluster_environment(folder)
        del environment["SPARK_LOCAL_IP"]  # it must find its address by itself
        self._environment = {**environment, **more}
        self._out, self._log = folder / "driver.out", folder / "driver.log"
        self._process: LeashedProcess | None = None

    def start(self) -> None:
        with self._out.open("ab") as out, self._log.open("ab") as log:
            self._process = LeashedProcess(
                self._argv, cwd=ROOT, env=self._environment, stdout=out, stderr=log
            )

    def kill(self) -> int:
        """With its Java, as when a machine goes; another begins."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.close()
        self.start()
        return 1

    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    def has_said(self, line: str) -> bool:
        return line in self.lines()

    def end(self) -> None:
        assert self._process is not None
        code = self._process.wait(RUN_S_MAX)
        assert code == 0, self._log.read_text(errors="replace")[-3000:]
        self._process.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


@contextmanager
def hosted(folder: Path, count: int = 4) -> Iterator[tuple[HostedCluster, Sequence[Host]]]:
    problem = hosts_problem()
    if problem is not None:
        pytest.skip(problem)
    with hosts(count) as machines:
        cluster = HostedCluster(folder, machines[:4])
        try:
            cluster.start()
            yield cluster, machines
        finally:
            cluster.close()


def rows_by_executor(folder: Path) -> dict[str, int]:
    """Host of each executor → rows it has written, by the metrics of its tasks."""
    written: Counter[str] = Counter()
    for log in (folder / "home" / "events").iterdir():
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in event:
                output = event["Task Metrics"]["Output Metrics"]["Records Written"]
                written[event["Task Info"]["Host"]] += output
    return dict(written)


def check_rows(driver: HostedDriver) -> None:
    total = BATCHES * ROWS
    assert driver.lines()[-1] == f"read {total} {total} {total - 1}", driver.lines()


def test_two_workers_on_two_hosts_both_write(tmp_path: Path) -> None:
    with hosted(tmp_path) as (cluster, machines):
        driver = HostedDriver(cluster, tmp_path, str(tmp_path / "lake"))
        driver.start()
        driver.end()
        check_rows(driver)
        written = rows_by_executor(tmp_path)
        print(f"rows written by each executor's tasks: {written}")
        assert {each.address for each in machines[1:3]} == {
            host for host, n in written.items() if n
        }
        assert sum(written.values()) == BATCHES * ROWS


@pytest.mark.parametrize("victim", ["executor", "driver", "master"])
def test_a_kill_in_the_middle_of_a_write_neither_loses_nor_doubles_a_row(
    tmp_path: Path, victim: str
) -> None:
    with hosted(tmp_path) as (cluster, _):
        lake = tmp_path / "lake"
        driver = HostedDriver(cluster, tmp_path, str(lake))
        kill = {
            "executor": cluster.kill_executor,
            "driver": driver.kill,
            "master": cluster.kill_master,
        }[victim]
        try:
            driver.start()
            for batch in range(2):
                wait_until(partial(driver.has_said, f"writing {batch}"), RUN_S_MAX)
                # Spark's scratch folder is there while its tasks write.
                wait_until(lambda: any(lake.glob("numbers/w=*/_temporary/0/*")), RUN_S_MAX)
                kill_when_there(kill)
            driver.end()
            check_rows(driver)
        finally:
            driver.close()
        table = Lake(str(lake)).log("numbers")
        listed = {each.path for each in table.files()}
        on_disk = {
            str(e.relative_to(lake / "numbers")) for e in lake.glob("numbers/w=*/**/*.parquet")
        }
        table.vacuum(0)
        kept = {str(e.relative_to(lake / "numbers")) for e in lake.glob("numbers/w=*/**/*.parquet")}
        print(f"{victim}: {len(on_disk - listed)} left-over files, {len(kept)} files after vacuum")
        assert kept == listed


def test_a_lake_in_an_object_store_is_written_from_two_hosts(tmp_path: Path) -> None:
    with hosted(tmp_path, 5) as (cluster, machines):
        store = machines[4]
        address = f"http://{store.address}:5000"
        server = LeashedProcess(
            store.argv(sys.executable, "-m", "moto.server", "-H", store.address, "-p", "5000")
        )
        try:
            put = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method='PUT'))"
            made = store.argv(sys.executable, "-c", put, f"{address}/bucket")
            wait_until(
                lambda: subprocess.run(made, check=False, capture_output=True).returncode == 0,
                RUN_S_MAX,
            )
            environment = {
                "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "something",
            }  # fmt: skip
            driver = HostedDriver(cluster, tmp_path, "s3://bucket/lake", **environment)
            driver.start()
            driver.end()
            check_rows(driver)
        finally:
            server.close()
