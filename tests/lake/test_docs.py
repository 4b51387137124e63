"""The lake's pages: what they show is run here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from angarium.lake.query import ask
from angarium.lake.schemas import TABLES
from tests.lake.filled import Filled
from tests.lake.filled import filled as filled

DOCS = Path(__file__).parents[2] / "docs" / "lake"


def test_the_page_of_tables_has_every_column(filled: Filled) -> None:
    page = (DOCS / "tables.md").read_text()
    for table in TABLES.values():
        section = page.split(f"\n## {table.name}\n")[1].split("\n## ")[0]
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", section, re.MULTILINE)
        assert rows == [(c.name, c.type, c.meaning) for c in table.columns], table.name


def queries() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", (DOCS / "cookbook.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(queries())))
def test_every_query_of_the_cookbook_runs(filled: Filled, number: int) -> None:
    assert ask(filled.lake, queries()[number]).columns


def test_the_notebook_runs(
    filled: Filled, no_settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in filled.environment.items():
        monkeypatch.setenv(name, value)
    book = json.loads((DOCS / "exploring.ipynb").read_text())
    cells = ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code"]
    assert len(cells) >= 5
    namespace: dict[str, Any] = {}
    for cell in cells:
        exec(compile(cell, "exploring.ipynb", "exec"), namespace)
    assert len(namespace["modules"]) == 6
    assert namespace["story"]["event"].iloc[0] in ("accepted", "started")
