"""Ctrl-C at a terminal, at a random moment: no traceback, nothing left running, data whole.

The terminal sends the signal to the whole foreground group, as a user's terminal does. Five rounds
run always, a hundred with FAULTS=long, others with CTRL_C_ROUNDS. A failure prints the seed:
CTRL_C_SEED repeats it.
"""

from __future__ import annotations

import json
import os
import pty
import random
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_cli import COMMAND, angarium, environment
from tests.kit.eventually import wait_until
from tests.kit.roles import ANY_PORT

LONG = os.environ.get("FAULTS") == "long"
ROUNDS = int(os.environ.get("CTRL_C_ROUNDS", "100" if LONG else "5"))
SEED = int(os.environ.get("CTRL_C_SEED", "0")) or random.randrange(1, 10**6)
# `up` is ready after a second, the lake's Spark some seconds later.
MOMENT_S_MAX = 9.0
END_S_MAX = 20.0
# On a busy machine Python alone takes seconds to load; before that no code of ours can prevent its
# traceback. `entry.py` imports nothing before Ctrl-C is quiet, and this part of Python right after.
LOADED = b"/_typing."
INTERRUPT = b"\x03"


class Terminal:
    """A command whose controlling terminal is ours."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.shown = b""
        enter = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", enter, str(COMMAND), *arguments],
            cwd=folder,
            env={**environment(folder, ANY_PORT), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read(self, seconds: float) -> bool:
        """Read what is shown for this long; False when the command has gone."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._ours], [], [], left)[0]:
                break
            try:
                part = os.read(self._ours, 65_536)
            except OSError:  # Linux answers EIO when the other side is closed
                return False
            self.shown += part
        return True

    def has_begun(self) -> bool:
        """The command has the terminal, so Ctrl-C reaches it, and its own code runs."""
        assert self.process.poll() is None, self.shown
        self.read(0.01)
        maps = Path(f"/proc/{self.process.pid}/maps").read_bytes()
        return os.tcgetpgrp(self._ours) == self.process.pid and LOADED in maps

    def interrupt(self) -> None:
        os.write(self._ours, INTERRUPT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


def processes_of(home: str) -> list[str]:
    """Processes that were started for this home."""
    wanted, found = f"ANGARIUM_HOME={home}".encode(), []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and path.name != str(os.getpid()):
            try:
                if wanted in (path / "environ").read_bytes().split(b"\0"):
                    found.append((path / "cmdline").read_text().replace("\0", " ")[:100])
            except OSError:
                continue
    return found


@pytest.mark.timeout(max(300, ROUNDS * 60))
@pytest.mark.parametrize("arguments", [("up",), ("serve", "lake")], ids=["up", "serve lake"])
def test_ctrl_c_at_any_moment_leaves_no_traceback_and_no_process(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    draw = random.Random(SEED)
    home = str(tmp_path / "home")
    assert angarium(tmp_path, "publish", '{"kept": 1}').code == 0
    rounds = ROUNDS if arguments == ("up",) else max(3, ROUNDS // 5)
    for number in range(rounds):
        moment_s = draw.uniform(0, MOMENT_S_MAX)
        twice = draw.random() < 0.3
        what = f"CTRL_C_SEED={SEED}, round {number}, after {moment_s:.2f} s, twice: {twice}"
        terminal = Terminal(tmp_path, *arguments)
        try:
            wait_until(terminal.has_begun, 60)
            assert terminal.read(moment_s), f"{what}: it ended early: {terminal.shown!r}"
            terminal.interrupt()
            if twice and terminal.read(draw.uniform(0, 0.5)):
                terminal.interrupt()
            gone = not terminal.read(END_S_MAX)
            shown = terminal.shown.decode(errors="replace")
            assert gone, f"{what}: it still runs\n{shown}"
            code = terminal.process.wait(END_S_MAX)
            assert "Traceback" not in shown, f"{what}\n{shown}"
            assert "Error" not in shown, f"{what}\n{shown}"
            assert code in (0, 130, -2), f"{what}: exit code {code}\n{shown}"
        finally:
            terminal.close()
        wait_until(lambda: not processes_of(home), END_S_MAX)
    status = json.loads(angarium(tmp_path, "dispatch", "status", "--json").out)
    (partition,) = status["partitions"]
    assert partition["inbox"] + partition["pending"] == 1, "the message is still there"
