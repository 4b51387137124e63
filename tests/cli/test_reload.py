"""`--reload`: the functions of a changed file run without a restart by hand."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.test_cli import COMMAND, angarium, environment, refused
from tests.cli.test_ctrl_c import processes_of
from tests.kit.eventually import wait_until
from tests.kit.roles import ANY_PORT

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 120.0
# The lake's Spark would only load the machine here.
SETTINGS = {**ANY_PORT, "ANGARIUM_LAKE__START_DELAY_MS": "3600000"}
PROGRAM = """
from angarium import Angarium

app = Angarium()


@app.worker()
def greet(message):
    return {{"text": {text!r}}}
"""


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with what it prints in the file `shown`."""
    with (
        (folder / "shown").open("wb") as shown,
        subprocess.Popen(
            [COMMAND, *arguments],
            cwd=folder,
            env=environment(folder, SETTINGS),
            stdout=shown,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def write(folder: Path, text: str) -> None:
    """As an editor does: a new file in place of the old one."""
    new = folder / "chat.new"
    new.write_text(text)
    new.replace(folder / "chat.py")


def shows(folder: Path, text: str, times: int = 1) -> bool:
    return (folder / "shown").read_text().count(text) >= times


def answer(folder: Path) -> str:
    ended = angarium(folder, "publish", '"hello"', "--wait")
    return ended.out + ended.err


@pytest.mark.parametrize("split", [False, True], ids=["up", "serve"])
def test_a_changed_file_is_used_and_a_broken_one_is_survived(split: bool, tmp_path: Path) -> None:
    write(tmp_path, PROGRAM.format(text="first answer"))
    command = ["up", "chat:app", "--reload", "--json"]
    if split:
        command = ["serve", "dispatcher", "worker", "--app", "chat:app", "--reload"]
    with running(tmp_path, *command) as process:
        wait_until(lambda: shows(tmp_path, '"role":"worker","ready":true'), DEADLINE_S)
        assert "first answer" in answer(tmp_path)
        write(tmp_path, PROGRAM.format(text="a second answer"))
        wait_until(lambda: shows(tmp_path, '"role":"worker","ready":true', 2), DEADLINE_S)
        assert shows(tmp_path, "angarium: chat.py changed; starting the functions again\n")
        assert "a second answer" in answer(tmp_path)
        write(tmp_path, "this is no Python")
        wait_until(lambda: shows(tmp_path, "they start again when a file changes"), DEADLINE_S)
        assert process.poll() is None
        write(tmp_path, PROGRAM.format(text="the third answer"))
        wait_until(lambda: shows(tmp_path, '"role":"worker","ready":true', 3), DEADLINE_S)
        assert "the third answer" in answer(tmp_path)
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    wait_until(lambda: not processes_of(str(tmp_path / "home")), DEADLINE_S)


def test_reload_needs_an_application(tmp_path: Path) -> None:
    assert "module:app" in refused(tmp_path, "serve", "api", "--reload")


def test_files_of_environments_and_hidden_folders_are_not_watched(tmp_path: Path) -> None:
    from angarium.cli.reload import files_below

    for name in ("app.py", "part/more.py", "pipeline.toml", ".git/x.py", "env/lib/y.py", "a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    found = {str(path.relative_to(tmp_path)) for path in files_below([tmp_path])}
    assert found == {"app.py", "part/more.py", "pipeline.toml"}
