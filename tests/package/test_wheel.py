"""What somebody gets who installs the built wheel into an empty environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.kit.roles import ROOT, RoleProcess

MAKE_S_MAX = 300.0
# A run beside another must not collide with it.
ANY_PORT = {
    "ANGARIUM_HTTP__PORT": "0",
    "ANGARIUM_PICKUP__PORT": "0",
    "ANGARIUM_DISPATCH__ACK_PORT": "0",
    "ANGARIUM_ROUTING__INBOUND": '[["http","127.0.0.1","0"],["ws","127.0.0.1","0"]]',
}


def run(*command: str | Path) -> None:
    ended = attempt(*command)
    assert ended.returncode == 0, ended.stderr[-2000:]


def attempt(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=MAKE_S_MAX, check=False,
    )  # fmt: skip


def install(python: Path, *what: str | Path) -> None:
    """By uv where there is one that reaches the packages; pip takes more than a minute."""
    ours = Path(sys.executable).with_name("uv")
    uv = ours if ours.exists() else shutil.which("uv")
    if not uv or attempt(uv, "pip", "install", "--python", python, *what).returncode:
        run(python, "-m", "pip", "install", "-q", *what)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    python = sys.executable
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_that_is_no_bytecode(wheel: Path) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "angarium").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.timeout(400)
async def test_an_empty_environment_with_the_wheel_comes_up(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    install(python, "-c", ROOT / "requirements.lock", wheel)
    settings = {**ANY_PORT, "PYTHONPATH": ""}
    async with RoleProcess(
        ["-c", UP, str(python.with_name("angarium"))], settings, ready_lines=1, deadline_s=60
    ) as role:
        page = f"http://127.0.0.1:{role.port_of('api', 'http')}/readyz"
        with urllib.request.urlopen(page) as answer:
            assert answer.status == 200


# In place of this process, so that it is the one that gets the signals.
UP = "import os, sys; os.execv(sys.argv[1], ['angarium', 'up', '--json'])"
