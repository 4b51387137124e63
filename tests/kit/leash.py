"""A child process that ends with the process that started it.

A test run may end by kill -9, and then no `finally` runs. So every child has a watcher: a small
shell that reads a pipe from this process. When this process ends, the pipe ends, and the shell
kills the child's process group and removes its scratch folder. The child waits for a line on its
stdin, which is written only after the shell has started.
(PR_SET_PDEATHSIG is not used: it fires when the *thread* that forked ends, and is Linux only.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from tests.kit.forked import ForkedProcess

# Reads one line, then becomes the command itself, so that the pid is the command's own.
_GATE = 'read -r _ || exit 125; exec "$@" </dev/null'
_WATCH = 'read -r _; kill -s KILL -- -"$1" 2>/dev/null; [ -z "$2" ] || rm -rf -- "$2"'

Output = int | IO[bytes]


class LeashedProcess:
    """One child in its own process group. `close` reaps the child and may be called again."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: Output = subprocess.DEVNULL,
        stderr: Output = subprocess.DEVNULL,
        scratch: Path | None = None,
    ) -> None:
        self.process: subprocess.Popen[bytes] | ForkedProcess = subprocess.Popen(
            ["/bin/sh", "-c", _GATE, "gate", *argv],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=True,
        )
        self._watch(scratch)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"go\n")
            self.process.stdin.close()

    @classmethod
    def forked(cls, args: Sequence[str], env: Mapping[str, str], cwd: Path, scratch: Path) -> Self:
        """The command `angarium` with these arguments; its output goes to pipes."""
        self = cls.__new__(cls)
        self.process = forked = ForkedProcess(args, env, cwd)
        self._watch(scratch)
        forked.go()
        return self

    def _watch(self, scratch: Path | None) -> None:
        self.pid = self.process.pid
        try:
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "watch", str(self.pid), str(scratch or "")],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Signal the child alone, not the processes it started."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit code; raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """Kill the process group, reap the child and end the watcher."""

        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._watcher.kill()
        self._watcher.wait()
        for pipe in (self.process.stdin, self._watcher.stdin):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
