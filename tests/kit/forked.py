"""Starts `angarium` commands from a process that has imported the package already.

To import everything costs a role a second of CPU, more than most tests need, and the tests start
hundreds of roles. One process for each test process imports once and forks for each command. The
command is a process of its own: pid, session, environment, folder, pipes and exit code are those of
a command that was started by itself. `FORKED_ROLES=1` (set by `make test`) turns this on. Fault
runs, the wheel, the examples and the pages' commands start their processes in the ordinary way.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

ENABLED = os.environ.get("FORKED_ROLES") == "1" and hasattr(os, "pidfd_open")
ROOT = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 1024 * 1024
# Imported by no role that the tests start often, and not safe to fork.
NOT_PRELOADED = ("lake",)


class ForkedProcess:
    """What `subprocess.Popen` offers, as far as the kit uses it. Output goes to pipes."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        gate_read, self._gate = os.pipe()
        self._status, status_write = os.pipe()
        theirs = [out_write, err_write, gate_read, status_write]
        try:
            self.pid = _parent().fork({"args": [*args], "env": dict(env), "cwd": str(cwd)}, theirs)
        finally:
            for each in theirs:
                os.close(each)
        self.stdin = None
        self.stdout: IO[bytes] = os.fdopen(out, "rb")
        self.stderr: IO[bytes] = os.fdopen(err, "rb")
        self.returncode: int | None = None

    def go(self) -> None:
        """Let it begin: whoever watches it is there."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._gate, b"g")
        os.close(self._gate)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("angarium", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            # An end without a status: its parent was killed, and nobody knows more.
            self.returncode = int(os.read(self._status, 16) or b"-9")
            os.close(self._status)
        return self.returncode


class _Parent:
    """The process that forks, seen from a test process. It ends with the test process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        names = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.forked", str(theirs.fileno())],
                env={**os.environ, **names},
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                start_new_session=True,
            )

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self._socket.sendmsg([json.dumps(request).encode()], ancillary)
        answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError("the process that forks roles has ended")
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self.process.wait()


@cache
def _parent() -> _Parent:
    parent = _Parent()
    atexit.register(parent.close)
    return parent


# In the process that forks


def _preload() -> None:
    for name in ("alembic.runtime.migration", "sqlalchemy.ext.asyncio", "structlog", "uvloop"):
        importlib.import_module(name)
    from angarium.cli import main, serve  # noqa: F401
    from angarium.modules import MODULES
    from angarium.server import app, host  # noqa: F401

    for module in MODULES:
        if module.name not in NOT_PRELOADED:
            for role in module.roles:
                importlib.import_module(role.path)


def _serve(control: socket.socket) -> None:
    """Fork on request until the test process has gone. Returns in a child only."""
    base = [each for each in sys.path[1:] if each != str(ROOT)]
    running: dict[int, tuple[int, int]] = {}  # by pidfd: pid, descriptor of its status
    while True:
        ready, _, _ = select.select([control.fileno(), *running], [], [])
        for pidfd in {*ready} & {*running}:
            pid, status = running.pop(pidfd)
            _, code = os.waitpid(pid, 0)
            with contextlib.suppress(BrokenPipeError):
                os.write(status, b"%d" % os.waitstatus_to_exitcode(code))
            os.close(status)
            os.close(pidfd)
        if control.fileno() in ready:
            data, ancillary, _, _ = control.recvmsg(REQUEST_BYTES_MAX, socket.CMSG_SPACE(4 * 4))
            if not data:
                os._exit(0)
            out, err, gate, status = array.array("i", ancillary[0][2])
            pid = os.fork()
            if pid == 0:
                control.close()
                for descriptor, (_, other) in running.items():
                    os.close(descriptor)
                    os.close(other)
                os.close(status)
                return _become(json.loads(data), out, err, gate, base)
            for each in (out, err, gate):
                os.close(each)
            running[os.pidfd_open(pid)] = pid, status
            control.send(b"%d" % pid)


def _become(request: dict[str, Any], out: int, err: int, gate: int, base: list[str]) -> None:
    """Make this child what the command would be if it had been started by itself."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    if not os.read(gate, 1):
        os._exit(125)
    os.close(gate)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    random.seed()
    script = str(Path(sys.executable).with_name("angarium"))
    sys.argv = [script, *request["args"]]
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(Path(script).parent), *paths, *base]


if __name__ == "__main__":
    _preload()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from angarium.cli.main import main

    sys.exit(main())
