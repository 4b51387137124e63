"""What a user would pick instead, as processes: BullMQ, and the Python task queues.

Each has a worker, a producer and a server of its own, and is installed into an environment of its
own under `.cache/` at the first run. Workers are leashed, with whatever they fork; producers end
with their input. So nothing outlives a benchmark, however it ends.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kit.leash import LeashedProcess
from tests.kit.server import ServerProcess

from benchmarks.node import BULLMQ, prepare

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "peers"
PYTHON_FOLDER = ROOT / ".cache" / "python-queues"
PYTHON_QUEUES = ("taskiq", "streaq", "arq", "dramatiq", "celery", "rq")
# Not one environment for all: they do not agree on a version of redis-py.
PACKAGES = {"taskiq": "taskiq-redis", "dramatiq": "dramatiq[redis]", "celery": "celery[redis]"}
ROUND_S_MAX = 30.0
LOOK_S = 0.01


class PeerFailed(Exception):
    """It did not start, or did not finish its round."""


@functools.cache
def bullmq() -> Sequence[str]:
    return prepare(PEERS / "transactions_bullmq.mjs", "bullmq", BULLMQ).argv


def install_python_queue(name: str) -> None:
    folder = PYTHON_FOLDER / name
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "-q", PACKAGES.get(name, name), "uvloop"]
        subprocess.run(pip, check=True, capture_output=True)


def install(name: str) -> bool:
    """Whether it is there now; what can't be had is left out, and said."""
    try:
        if name == "bullmq":
            bullmq()
        else:
            install_python_queue(name)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(PYTHON_FOLDER / name, ignore_errors=True)
        print(f"({name} can't be installed, and is left out: {error})\n")
        return False
    return True


class Peer:
    """Use as `async with Peer("bullmq") as peer: await peer.run(1_000)`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.server = ServerProcess()
        self._worker: LeashedProcess | None = None
        self._producer: asyncio.subprocess.Process | None = None
        self._done = Path(tempfile.mkstemp(prefix="angarium-peer-")[1])
        self._rounds = 0

    async def __aenter__(self) -> Peer:
        self.server.__enter__()
        try:
            environment = self._environment()
            self._worker = LeashedProcess(self._command("worker"), env=environment)
            self._producer = await asyncio.create_subprocess_exec(
                *self._command("producer"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=environment,
            )
            await self._line(self._producer, "ready")
            # The worker of some queues says nothing when it is ready: its first task does.
            await self.run(100)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._producer is not None:
            if self._producer.returncode is None:
                self._producer.kill()
            await self._producer.wait()
        self.server.__exit__()
        self._done.unlink(missing_ok=True)

    async def run(self, items: int) -> None:
        assert self._worker is not None
        assert self._producer is not None
        assert self._producer.stdin is not None
        self._producer.stdin.write(f"{items}\n".encode())
        self._rounds += 1
        until_s = time.monotonic() + ROUND_S_MAX
        while self._done.stat().st_size < self._rounds * len("done\n"):
            if time.monotonic() > until_s or not self._worker.alive:
                raise PeerFailed(f"{self.name} did not finish")
            await asyncio.sleep(LOOK_S)

    def _command(self, role: str) -> Sequence[str]:
        if self.name == "bullmq":
            return (*bullmq(), role, str(self.server.port))
        python = str(PYTHON_FOLDER / self.name / "bin" / "python")
        return (python, str(PEERS / "transactions_queues.py"), role)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PEER_URL": f"redis://127.0.0.1:{self.server.port}/0",
            "PEER_NAME": self.name,
            "PEER_DONE": str(self._done),
            "PYTHONPATH": str(PEERS),
            "PYTHONUNBUFFERED": "1",
        }

    async def _line(self, process: asyncio.subprocess.Process, wanted: str) -> None:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(ROUND_S_MAX):
                while line := await process.stdout.readline():
                    if line.decode().strip() == wanted:
                        return
        except TimeoutError:
            pass
        raise PeerFailed(f"{self.name} did not say {wanted!r}")
