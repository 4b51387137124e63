"""Spark's processes as the fault tests need them: drivers, a standalone cluster, and their ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from angarium.lake.java import find_java
from tests.kit.leash import LeashedProcess

START_S_MAX = 120.0
RESTARTS_MAX = 10
ROOT = Path(__file__).parents[2]
# What the process of an executor, and a Python process that works for one, is known by.
EXECUTOR, WORKER = b"CoarseGrainedExecutorBackend", b"pyspark.daemon"


class Driver:
    """A process with Spark in it, started again when it ends by itself, as a supervisor does."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self._argv = argv
        self._log = log
        self._env = {**os.environ, **env}
        self._process: LeashedProcess | None = None
        self.restarts = 0

    def start(self) -> None:
        """In a process group of its own, Java included, so that one signal hits all of it."""
        with self._log.open("ab") as log:
            self._process = LeashedProcess(
                self._argv, cwd=ROOT, env=self._env, stdout=log, stderr=log
            )

    def keep_up(self) -> None:
        """Spark gives up on a worker that needs 10 s to start."""
        if self._process is None or self._process.alive:
            return
        self.restarts += 1
        if self.restarts > RESTARTS_MAX:
            raise RuntimeError(f"the driver ends again and again:\n{self.tail()}")
        self.process.close()
        self.start()

    def end(self, seconds: float) -> None:
        """Wait until it has ended well."""
        while self.process.wait(seconds) != 0:
            self.keep_up()
        self.process.close()

    @property
    def process(self) -> LeashedProcess:
        assert self._process is not None
        return self._process

    def kill(self) -> int:
        """The driver and its Java at one blow, as when a machine goes."""
        self.close()
        self.start()
        return 1

    def kill_workers(self) -> int:
        """Every Python worker of the executors in this process; Spark starts others."""
        return kill_below(self.process.pid, WORKER)

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.close()

    def tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


class Cluster:
    """A standalone master with two workers on loopback."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[SparkDaemon] = []
        self.master = ""

    @contextmanager
    def run(self) -> Iterator[Cluster]:
        try:
            self._start()
            yield self
        finally:
            for each in reversed(self._daemons):
                each.close()

    def kill_executors(self) -> int:
        """All of one worker's; the master has others started."""
        for worker in self._daemons[1:]:
            killed = kill_below(worker.pid, EXECUTOR)
            if killed:
                # The next time it is the other one's turn.
                self._daemons.append(self._daemons.pop(self._daemons.index(worker)))
                return killed
        return 0

    @property
    def executors(self) -> set[str]:
        """Numbers of those that ever ran."""
        work = self._folder / "work"
        return {
            f"{app.name}/{each.name}" for app in work.iterdir() for each in app.iterdir()
            if each.is_dir()
        }  # fmt: skip

    def _start(self) -> None:
        place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = self._daemon("master", "org.apache.spark.deploy.master.Master", *place)
        self.master = master.told(r"(spark://127\.0\.0\.1:\d+)")
        for number in range(2):
            self._daemon(
                f"worker{number}", "org.apache.spark.deploy.worker.Worker", *place,
                "--cores", "1", "--memory", "1g", self.master,
            )  # fmt: skip
        for worker in self._daemons[1:]:
            worker.told(r"(Successfully registered with master)")

    def _daemon(self, name: str, *arguments: str) -> SparkDaemon:
        daemon = SparkDaemon(self._folder, name, *arguments)
        self._daemons.append(daemon)
        return daemon


class SparkDaemon:
    """A master or worker of Spark, whose log tells when it is there."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *arguments: str,
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`before` is what the command stands behind, such as a way into another host."""
        self._log = folder / f"{name}.log"
        command = Path(sys.executable).with_name("spark-class")
        with self._log.open("wb") as log:
            self._process = LeashedProcess(
                [*before, str(command), *arguments],
                env={**cluster_environment(folder), **(environment or {})},
                stdout=log,
                stderr=log,
            )
        self.pid = self._process.pid
        self.close = self._process.close

    def told(self, pattern: str) -> str:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            found = re.search(pattern, self._log.read_text(errors="replace"))
            if found:
                return found.group(1)
            assert self._process.alive, self._log.read_text(errors="replace")
            time.sleep(0.1)
        raise AssertionError(self._log.read_text(errors="replace"))


def cluster_environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(find_java(folder)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }


def kill_below(pid: int, name: bytes) -> int:
    """kill -9 of every process under `pid` with that name in its command line; how many."""
    killed = 0
    for each in _descendants(pid):
        with contextlib.suppress(OSError):
            if name in Path(f"/proc/{each}/cmdline").read_bytes():
                os.kill(each, signal.SIGKILL)
                killed += 1
    return killed


def _descendants(pid: int) -> Iterator[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    for child in map(int, found.stdout.split()):
        yield child
        yield from _descendants(child)


def kill_when_there(kill: Callable[[], int]) -> int:
    """Some of them may be between two lives: wait for one that can be killed."""
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        if killed := kill():
            return killed
        time.sleep(0.05)
    raise AssertionError("there was nothing to kill")
