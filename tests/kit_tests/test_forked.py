"""A forked command is a process like one that was started by itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from angarium import __version__
from tests.kit.forked import ForkedProcess


@contextmanager
def started(folder: Path, *args: str, **env: str) -> Iterator[ForkedProcess]:
    process = ForkedProcess(args, {**os.environ, **env}, folder)
    process.go()
    with process.stdout, process.stderr:
        yield process


def test_its_output_and_its_exit_code_arrive(tmp_path: Path) -> None:
    with started(tmp_path, "--version") as good, started(tmp_path, "nonsense") as bad:
        assert (good.wait(60), bad.wait(60)) == (0, 2)
        assert good.stdout.read().decode() == f"angarium {__version__}\n"
        assert b"No such command 'nonsense'" in bad.stderr.read()
        assert good.pid != bad.pid


def test_it_has_its_own_folder_environment_and_session(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps([os.getcwd(), os.environ['COLOUR'], os.getsid(0), os.getpid()]))\n"
        "sys.exit(7)\n"
    )
    names = {"COLOUR": "blue", "PYTHONPATH": str(tmp_path)}
    with started(tmp_path, "serve", "api", "--app", "shop:app", **names) as process:
        assert process.wait(60) == 7
        folder, colour, session, pid = json.loads(process.stdout.readline())
    assert (folder, colour) == (str(tmp_path), "blue")
    assert session == pid == process.pid


def test_a_kill_is_its_exit_code(tmp_path: Path) -> None:
    process = ForkedProcess(["--version"], os.environ, tmp_path)
    with process.stdout, process.stderr:
        assert process.poll() is None, "it waits until it may begin"
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        process.go()
