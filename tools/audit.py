#!/usr/bin/env python3
"""Asks pip-audit for known vulnerabilities of the pinned versions, and says what it could not ask.

Where the vulnerability service can't be reached, pip-audit skips every package and reports
success; that is no finding, and the line printed here says so. Exit 1 only for a vulnerability.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = ["pip_audit", "-r", "requirements.lock", "--no-deps", "--disable-pip", "-f", "json"]


def main() -> int:
    run = subprocess.run(
        [sys.executable, "-m", *COMMAND, "--progress-spinner", "off"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        packages = json.loads(run.stdout)["dependencies"]
    except ValueError:
        reason = (run.stderr.strip().splitlines() or ["without a word"])[-1]
        print(f"pip-audit could not ask, so nothing is known: {reason}", file=sys.stderr)
        return 0
    skipped = [each["name"] for each in packages if "skip_reason" in each]
    found = [each for each in packages if each.get("vulns")]
    for each in found:
        ids = ", ".join(vulnerability["id"] for vulnerability in each["vulns"])
        print(f"{each['name']} {each['version']}: {ids}")
    print(
        f"{len(packages) - len(skipped)} of {len(packages)} packages looked up, "
        f"{len(found)} with known vulnerabilities"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
