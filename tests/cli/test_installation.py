"""Commands find the installation that runs, and never start an empty one beside it (F56)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_cli import COMMAND, COMMAND_S_MAX, Ended
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess


def typed(folder: Path, *arguments: str, **extra: str) -> Ended:
    """A command typed in a folder by a user who has set nothing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANGARIUM_")}
    ended = subprocess.run(
        [COMMAND, *arguments],
        cwd=folder,
        env={**kept, **extra},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture
def runtime_folder(tmp_path: Path) -> dict[str, str]:
    """Announcements of this test only."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(folder)}


def running(home: Path, runtime_folder: dict[str, str]) -> RoleProcess:
    settings = {"ANGARIUM_HOME": str(home), "ANGARIUM_HTTP__PORT": "0", **runtime_folder}
    return RoleProcess(["serve", "api"], settings)


def test_a_command_in_another_folder_finds_the_installation_that_runs(
    tmp_path: Path, runtime_folder: dict[str, str]
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (project / "deep" / "down").mkdir(parents=True)
    elsewhere.mkdir()
    with running(project / ".angarium", runtime_folder) as role:
        for folder in (project, project / "deep" / "down", elsewhere):
            ended = typed(folder, "publish", "--durable", "1", "--json", **runtime_folder)
            assert ended.code == 0, ended
            assert len(json.loads(ended.out)["messages"]) == 1
            note = f"angarium: using the installation in {project / '.angarium'}\n"
            assert (note in ended.err) == (folder != project)
        ended = typed(elsewhere, "top", "--once", "--json", **runtime_folder)
        (dispatch,) = [
            each for each in json.loads(ended.out)["modules"] if each["name"] == "dispatch"
        ]
        assert dispatch["facts"]["inbox"] == 3, "all three are in the installation that runs"
        assert role.terminate() == 0
    assert not (elsewhere / ".angarium").exists()
    assert not [*Path(runtime_folder["XDG_RUNTIME_DIR"], "angarium").iterdir()]


def test_without_an_installation_a_command_says_so_and_creates_nothing(
    tmp_path: Path, runtime_folder: dict[str, str]
) -> None:
    ended = typed(tmp_path, "publish", "1", **runtime_folder)
    assert ended.code == 1
    assert "there is no installation in this folder" in ended.err
    assert "angarium up" in ended.err
    assert not (tmp_path / ".angarium").exists()
    created = typed(tmp_path, "--new", "publish", "1", **runtime_folder)
    assert created.code == 0, created
    assert (tmp_path / ".angarium" / "redis").is_dir()
    again = typed(tmp_path, "publish", "--channel", "1", **runtime_folder)
    assert again.code == 1, "nobody listened: the message is lost"
    assert "lost" in again.err


def test_two_that_run_are_named_and_none_is_guessed(
    tmp_path: Path, runtime_folder: dict[str, str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    homes = [tmp_path / name / ".angarium" for name in ("a", "b")]
    with running(homes[0], runtime_folder), running(homes[1], runtime_folder):
        ended = typed(elsewhere, "publish", "1", **runtime_folder)
        assert ended.code == 1
        assert all(str(home) in ended.err for home in homes)
        assert "ANGARIUM_HOME" in ended.err


def test_an_announcement_of_a_killed_process_is_not_followed(
    tmp_path: Path, runtime_folder: dict[str, str]
) -> None:
    folder = Path(runtime_folder["XDG_RUNTIME_DIR"], "angarium")
    folder.mkdir()
    (folder / "1").write_text(str(tmp_path / "gone"))
    ended = typed(tmp_path, "publish", "1", **runtime_folder)
    assert "there is no installation" in ended.err
    with running(tmp_path / "new" / ".angarium", runtime_folder) as role:
        assert [path.name for path in folder.iterdir()] == [str(role.pid)]


def test_the_folder_of_another_user_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from angarium.cli import installation

    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"angarium-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(PermissionError):
        installation.announcements()
    assert installation.running_homes() == []


def test_a_missing_password_of_redis_is_named(tmp_path: Path) -> None:
    with ServerProcess(config={"requirepass": "secret"}) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        ended = typed(tmp_path, "top", "--once", ANGARIUM_REDIS_URL=url)
    assert ended.code == 2, ended
    (line,) = ended.err.splitlines()
    assert "wants a password, and none is set" in line
    assert "redis://:PASSWORD@HOST:PORT" in line


def test_f69_what_a_role_writes_only_its_user_can_read(tmp_path: Path) -> None:
    """tests/docs/test_lake_pages.py looks at the lake's folder."""
    home = tmp_path / ".angarium"
    home.mkdir(mode=0o755)
    settings = {"ANGARIUM_HOME": str(home), "ANGARIUM_HTTP__PORT": "0"}
    with RoleProcess(["serve", "api"], settings) as role:
        status = Path(f"/proc/{role.pid}/status").read_text()
        assert "Umask:\t0077" in status
        assert home.stat().st_mode & 0o777 == 0o700
        readable = [path for path in home.rglob("*") if path.lstat().st_mode & 0o077]
        assert not [path for path in readable if not path.is_socket()]
