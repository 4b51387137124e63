"""The table of findings names tests that exist, and every finding once."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/findings.md").read_text().splitlines()
    if line.startswith("| F")
]


def test_every_finding_has_a_row() -> None:
    assert [number for number, *_ in ROWS] == [f"F{number}" for number in range(1, 73)]


def test_every_named_test_exists() -> None:
    for number, _, test, state in ROWS:
        found = re.match(r"`([^:]+)::(\w+)`", test)
        assert (state == "shown") == (found is not None), number
        if found is not None:
            text = (ROOT / found[1]).read_text()
            assert re.search(rf"def {found[2]}\(", text), test
