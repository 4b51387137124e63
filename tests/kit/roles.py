"""Roles as real processes that tests kill and pause.

A role runs as a user would run it. Its environment contains none of the parent's settings, and it
has its own home folder unless the test gives one. The role and its child processes end when the
block ends or the test run dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.kit import forked
from tests.kit.leash import LeashedProcess
from tests.kit.output import Output

READY_DEADLINE_S = 30.0
TERMINATE_DEADLINE_S = 15.0
TAIL_LINES = 40
ROOT = Path(__file__).parents[2]
# Two runs on one machine must not use the same port.
ANY_PORT = {
    "ANGARIUM_HTTP__PORT": "0",
    "ANGARIUM_PICKUP__PORT": "0",
    "ANGARIUM_DISPATCH__ACK_PORT": "0",
    "ANGARIUM_ROUTING__INBOUND": '[["http","127.0.0.1","0"],["ws","127.0.0.1","0"]]',
}


class RoleFailed(Exception):
    """A role did not do what was waited for; the message ends with the tail of its stderr."""


class RoleProcess:
    """One process. Use as `with RoleProcess(["serve", "relay"], env) as role:`.

    `args` starting with "-" go to Python (`-m`, `-c`), everything else to the command
    `angarium`. In a test with a loop use `async with`: the start then does not block the loop,
    which may be serving the role's own connections. `ready_lines` is how many readiness lines
    to wait for: one per role; 0 for a command that prints none.
    """

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        ready_lines: int = 1,
        deadline_s: float = READY_DEADLINE_S,
    ) -> None:
        self._args = list(args)
        self._env = dict(env or {})
        self._ready_lines = ready_lines
        self._deadline_s = deadline_s
        self._scratch: Path | None = None
        self._process: LeashedProcess | None = None
        self._output: Output | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        try:
            self._start()
            await asyncio.to_thread(self._wait_ready)
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def returncode(self) -> int | None:
        """None while it runs; the negative signal number when one ended it."""
        return self._running().process.poll()

    @property
    def home(self) -> Path:
        """The folder given to it as ANGARIUM_HOME; its own, unless the test gave one."""
        return Path(self._environment()["ANGARIUM_HOME"])

    @property
    def ports(self) -> dict[str, int]:
        """Ports by name, from all readiness lines. Raises if two roles have a port of the same
        name, as `api` and `relay` have; then use `port_of`."""

        found: dict[str, int] = {}
        for line in self.readiness():
            for name, port in line["ports"].items():
                if found.setdefault(name, port) != port:
                    raise RoleFailed(f"two roles have a port {name!r}: ask port_of(role, {name!r})")
        return found

    def port_of(self, role: str, name: str) -> int:
        """A port of one role, where several run in the process; waits until that one is ready."""

        def found(lines: Sequence[str]) -> list[int]:
            ready = (line for line in _readiness(lines) if line["role"] == role)
            return [int(line["ports"][name]) for line in ready if name in line["ports"]]

        if not self._wait_for(lambda lines: bool(found(lines)), self._deadline_s):
            raise RoleFailed(self._failure_message(f"{role} has no port {name!r}"))
        return found(self.lines())[0]

    def lines(self) -> list[str]:
        """The last lines of stdout."""
        return self._collected().stdout()

    def stderr(self) -> list[str]:
        return self._collected().stderr()

    def readiness(self) -> list[dict[str, Any]]:
        return _readiness(self.lines())

    def wait_line(self, wanted: Callable[[str], bool], deadline_s: float = 10.0) -> str:
        """Wait for a line of stdout, also one that is already there, and return it."""
        if not self._wait_for(lambda lines: any(map(wanted, lines)), deadline_s):
            raise RoleFailed(self._failure_message(f"the line did not come within {deadline_s} s"))
        return next(filter(wanted, self.lines()))

    def kill(self) -> None:
        """kill -9 of this process alone, and wait until it is gone."""
        self._running().send(signal.SIGKILL)
        self._running().wait()

    def pause(self) -> None:
        self._running().send(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        self._running().send(number)

    def wait(self, deadline_s: float = TERMINATE_DEADLINE_S) -> int:
        """The exit code, when it ends by itself and all it printed is here."""
        try:
            code = self._running().wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise RoleFailed(self._failure_message(f"still running after {deadline_s} s")) from None
        self._collected().drain()
        return code

    def terminate(self, deadline_s: float = TERMINATE_DEADLINE_S) -> int:
        """SIGTERM, and the exit code. A process still there after the deadline is a failure."""
        self._running().send(signal.SIGTERM)
        return self.wait(deadline_s)

    def close(self) -> None:
        """End it and all it started, whatever state it is in; safe to call again."""
        if self._process is not None:
            self._process.close()
        if self._output is not None:
            self._output.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    # Starting

    def _start(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="angarium-role-"))
        if self._may_fork():
            self._process = LeashedProcess.forked(
                self._args, self._environment(), self._scratch, self._scratch
            )
        else:
            self._process = LeashedProcess(
                self._command(),
                env=self._environment(),
                cwd=self._scratch,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                scratch=self._scratch,
            )
        process = self._process.process
        assert process.stdout is not None
        assert process.stderr is not None
        # The reader owns its own descriptors; ours are closed at once.
        with process.stdout, process.stderr:
            self._output = Output(os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno()))

    def _may_fork(self) -> bool:
        """What the interpreter reads at its start, variables or a file, needs its own start."""
        own = {name for name in self._env if name.startswith(("PYTHON", "LD_", "OTEL_"))}
        folders = self._env.get("PYTHONPATH", "").split(os.pathsep)
        site = any((Path(folder) / "sitecustomize.py").exists() for folder in folders if folder)
        role = self._args[:1] == ["serve"] and "lake" not in self._args
        return forked.ENABLED and role and not site and not own - {"PYTHONPATH"}

    def _command(self) -> list[str]:
        if self._args and self._args[0].startswith("-"):
            return [sys.executable, *self._args]
        return [str(Path(sys.executable).with_name("angarium")), *self._args]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not _is_setting(name)}
        return {
            **kept,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join([*filter(None, [kept.get("PYTHONPATH")]), str(ROOT)]),
            "ANGARIUM_HOME": f"{self._scratch}/home",
            **(ANY_PORT if "INBOUND_TRANSPORT_CONFIG" not in self._env else {}),
            **self._env,
        }

    def _wait_ready(self) -> None:
        wanted = self._ready_lines
        if wanted == 0:
            return
        if not self._wait_for(lambda lines: len(_readiness(lines)) >= wanted, self._deadline_s):
            raise RoleFailed(self._failure_message(f"not ready within {self._deadline_s} s"))

    def _wait_for(self, condition: Callable[[list[str]], bool], deadline_s: float) -> bool:
        return self._collected().wait_for(condition, deadline_s, alive=lambda: self.alive)

    def _running(self) -> LeashedProcess:
        if self._process is None:
            raise RoleFailed("not started: use the role as a context manager")
        return self._process

    def _collected(self) -> Output:
        if self._output is None:
            raise RoleFailed("not started: use the role as a context manager")
        return self._output

    def _failure_message(self, problem: str) -> str:
        code = self.returncode
        state = "running" if code is None else f"ended with {code}"
        tail = "\n".join(self.stderr()[-TAIL_LINES:]) or "(nothing)"
        printed = "\n".join(self.lines()[-5:]) or "(nothing)"
        return (
            f"{' '.join(self._args)}: {problem}; the process is {state}.\n"
            f"stdout ends:\n{printed}\nstderr ends:\n{tail}"
        )


def _is_setting(name: str) -> bool:
    return name.upper().startswith("ANGARIUM_")


def _readiness(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Those of the lines that say a role is ready; other output is none of our business."""
    found = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(line) if line.startswith("{") else None
            if isinstance(value, dict) and value.get("ready") is True and "role" in value:
                found.append({"ports": {}, **value})
    return found
