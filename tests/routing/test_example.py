"""The example runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.kit.roles import ROOT


def test_two_instances_and_a_relay() -> None:
    path = ROOT / "examples" / "routing_two_instances" / "run.py"
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANGARIUM_")}
    done = subprocess.run(
        [sys.executable, path], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    shares = first.partition(": ")[2]
    assert shares.count(": 6") == 2, shares
    assert second == "every key kept its owner: True"
