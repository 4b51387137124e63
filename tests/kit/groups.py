"""How `pytest -n` divides the tests among its processes.

A process takes a group of tests at a time: one file, so that the fixtures of a file are made once.
Tests that use Spark are few groups by the fixture that they share, because starting Spark takes
longer than most tests; `filled` takes longest. Long groups come first, so that no process works
alone at the end of a run.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILLED = "Spark with a filled lake"
SESSION = "Spark"
PROCESSES = "Spark in processes"
# Groups that take longest, in seconds on two busy cores; the order matters, not the numbers.
LONGEST = {
    FILLED: 300,
    SESSION: 300,
    PROCESSES: 250,
    "tests/properties/test_conversations.py": 150,
    "tests/cli/test_cli.py": 150,
    "tests/docs/test_blocks.py": 110,
    "tests/dashboard/test_pages.py": 95,
    "tests/demo/test_trace.py": 95,
    "tests/interop/test_acapy.py": 85,
    "tests/properties/test_dispatch.py": 85,
    "tests/transactions/test_everyday.py": 80,
    "tests/dashboard/test_states.py": 70,
    "tests/properties/test_transactions.py": 65,
    "tests/demo/test_run.py": 60,
    "tests/interop/test_dispatch_workers.py": 60,
    "tests/security/test_secrets.py": 55,
    "tests/interop/test_pickup_rpc_websockets.py": 55,
    "tests/package/test_wheel.py": 45,
}


@cache
def group_of(file: str) -> str:
    """The group of a file, by its path from the root of the repository."""
    if "lake" not in file:
        return file
    text = (ROOT / file).read_text()
    fixtures = set(re.findall(r"\b(spark|filled)\b: ", text))
    if "filled" in fixtures:
        return FILLED
    if "spark" in fixtures:
        return SESSION
    return PROCESSES if "/lake/" not in file else file


def order_of(group: str) -> int:
    """Groups with a smaller number start earlier."""
    return -LONGEST.get(group, 0)
