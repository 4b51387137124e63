"""`angarium demo` kills four of its processes, and its audit is clean."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.profile import LONG, rounds
from tests.kit.roles import ROOT

USERS = rounds(24, 1_000)
SECONDS_MAX = 900


async def run_demo(home: Path, *options: str) -> tuple[int, list[str], str]:
    command = [str(Path(sys.executable).with_name("angarium")), "demo", *options]
    env = {
        "PATH": "/usr/bin:/bin",
        "ANGARIUM_HOME": str(home),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    }
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home
    )
    async with asyncio.timeout(SECONDS_MAX):
        out, errors = await process.communicate()
    return process.returncode or 0, out.decode().splitlines(), errors.decode()


@pytest.mark.faults
@pytest.mark.timeout(SECONDS_MAX)
async def test_the_demo_with_its_kills_ends_with_a_clean_audit(tmp_path: Path) -> None:
    # The lake has its own tests, and Spark takes longer to start than the demo runs.
    lake = "--lake" if LONG else "--no-lake"
    code, lines, errors = await run_demo(tmp_path, "--users", str(USERS), "--json", lake)
    assert lines, errors
    result: dict[str, Any] = json.loads(lines[-1])
    print(lines[-1])
    audit = result["audit"]
    assert audit["accepted"] == audit["delivered"] == 2 * USERS, (audit, errors)
    assert (audit["lost"], audit["doubled"], audit["out_of_order"]) == (0, 0, 0), audit
    assert audit["replies"] == 4 * USERS
    assert [each["role"] for each in result["kills"]] == ["worker", "node", "gateway", "leader"]
    assert set(audit["latency_ms"]) == {"live", "offline"}
    assert code == 0
