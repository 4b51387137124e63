"""The demo's role processes: start, kill, restart and stop them.

Each process is `angarium serve ROLE`, with its log in the home folder. On Linux a role process
gets SIGTERM when the demo dies, so a killed demo leaves no process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from angarium.runtime.errors import AngariumError

READY_S_MAX = 60.0
STOP_S_MAX = 12.0
# Asks the kernel for SIGTERM when the parent dies, then replaces itself with the role.
START_SCRIPT = (
    "import ctypes, os, signal, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'angarium.cli.main', *sys.argv[1:]])\n"
)


class RoleFailed(AngariumError):
    code = "role_failed"


class RoleProcess:
    """`ports` is filled in when the role is ready."""

    def __init__(self, role: str, number: int, env: Mapping[str, str], logs: Path) -> None:
        self.role = role
        self.name = f"{role} {number}"
        self.ports: dict[str, int] = {}
        self.starts = 0
        self._env = dict(env)
        self._log = logs / f"{role}-{number}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Return when the role is ready. A restarted role uses the same ports."""
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", START_SCRIPT, "serve", self.role,
                env=self._environment(), stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        try:
            async with asyncio.timeout(READY_S_MAX):
                await self._wait_ready()
        except TimeoutError:
            raise RoleFailed(f"{self.name} is not ready; see {self._log}") from None

    async def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            await self.kill()

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not _is_setting(name)}
        ports = {PORT_SETTINGS[name]: str(port) for name, port in self.ports.items()}
        return {**inherited, **self._env, **ports}

    async def _wait_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if found.get("ready") is True:
                    self.ports = found["ports"]
                    return
        raise RoleFailed(f"{self.name} ended before it was ready; see {self._log}")


# Port names of the readiness line, with the setting of each.
PORT_SETTINGS = {
    "http": "ANGARIUM_HTTP__PORT",
    "gateway": "ANGARIUM_PICKUP__PORT",
    "ack": "ANGARIUM_DISPATCH__ACK_PORT",
    "worker": "ANGARIUM_DISPATCH__WORKER_PORT",
}


def _is_setting(name: str) -> bool:
    return name.upper().startswith("ANGARIUM_")


class RoleProcesses:
    def __init__(self, env: Mapping[str, str], logs: Path) -> None:
        self._env = dict(env)
        self._logs = logs
        self._processes: list[RoleProcess] = []
        logs.mkdir(parents=True, exist_ok=True)

    async def __aenter__(self) -> RoleProcesses:
        return self

    async def __aexit__(self, *_: object) -> None:
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.stop())

    async def start(self, roles: Mapping[str, int]) -> None:
        """Start the given number of processes of each role, all at once."""
        fresh = [
            RoleProcess(role, number, self._env, self._logs)
            for role, count in roles.items()
            for number in range(1, count + 1)
        ]
        self._processes += fresh
        async with asyncio.TaskGroup() as group:
            for process in fresh:
                group.create_task(process.start())

    def of(self, role: str) -> list[RoleProcess]:
        return [each for each in self._processes if each.role == role]
