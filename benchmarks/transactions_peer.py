"""What a user would pick instead, as processes: BullMQ, and the Python task queues.

Each has a worker, a producer and a server of its own, and is installed into an environment of its
own under `.cache/` at the first run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kit.server import ServerProcess

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "peers"
NODE_FOLDER = ROOT / ".cache" / "bullmq"
PYTHON_FOLDER = ROOT / ".cache" / "python-queues"
PYTHON_QUEUES = ("taskiq", "streaq", "arq", "dramatiq", "celery", "rq")
# Not one environment for all: they do not agree on a version of redis-py.
PACKAGES = {"taskiq": "taskiq-redis", "dramatiq": "dramatiq[redis]", "celery": "celery[redis]"}
ROUND_S_MAX = 30.0
LOOK_S = 0.01


class PeerFailed(Exception):
    """It did not start, or did not finish its round."""


def install_bullmq() -> None:
    NODE_FOLDER.mkdir(parents=True, exist_ok=True)
    if not (NODE_FOLDER / "node_modules" / "bullmq").exists():
        subprocess.run(["npm", "init", "-y"], cwd=NODE_FOLDER, check=True, capture_output=True)
        install = ["npm", "install", "--no-audit", "--no-fund", "bullmq"]
        subprocess.run(install, cwd=NODE_FOLDER, check=True, capture_output=True)
    # Node looks for packages beside the script.
    shutil.copy(PEERS / "transactions_bullmq.mjs", NODE_FOLDER / "run.mjs")


def install_python_queue(name: str) -> None:
    folder = PYTHON_FOLDER / name
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "-q", PACKAGES.get(name, name), "uvloop"]
        subprocess.run(pip, check=True, capture_output=True)


class Peer:
    """Use as `async with Peer("bullmq") as peer: await peer.run(1_000)`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.server = ServerProcess()
        self._processes: list[asyncio.subprocess.Process] = []
        self._done = Path(tempfile.mkstemp(prefix="angarium-peer-")[1])
        self._rounds = 0

    async def __aenter__(self) -> Peer:
        self.server.__enter__()
        try:
            self._worker = await self._start("worker")
            self._producer = await self._start("producer")
            await self._line(self._producer, "ready")
            # The worker of some queues says nothing when it is ready: its first task does.
            await self.run(100)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        self.server.__exit__()
        self._done.unlink(missing_ok=True)

    async def run(self, items: int) -> None:
        assert self._producer.stdin is not None
        self._producer.stdin.write(f"{items}\n".encode())
        self._rounds += 1
        until_s = time.monotonic() + ROUND_S_MAX
        while self._done.stat().st_size < self._rounds * len("done\n"):
            if time.monotonic() > until_s or self._worker.returncode is not None:
                raise PeerFailed(f"{self.name} did not finish")
            await asyncio.sleep(LOOK_S)

    async def _start(self, role: str) -> asyncio.subprocess.Process:
        port = str(self.server.port)
        if self.name == "bullmq":
            command: Sequence[str] = ("node", str(NODE_FOLDER / "run.mjs"), role, port)
        else:
            python = str(PYTHON_FOLDER / self.name / "bin" / "python")
            command = (python, str(PEERS / "transactions_queues.py"), role)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                **os.environ,
                "PEER_URL": f"redis://127.0.0.1:{port}/0",
                "PEER_NAME": self.name,
                "PEER_DONE": str(self._done),
                "PYTHONPATH": str(PEERS),
                "PYTHONUNBUFFERED": "1",
            },
        )
        self._processes.append(process)
        return process

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
