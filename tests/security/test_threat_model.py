"""The threat model names tests, and those tests are there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.roles import ROOT

PAGE = (ROOT / "docs" / "security" / "threat-model.md").read_text()


def test_every_test_that_the_threat_model_names_exists_and_every_attack_is_on_the_page() -> None:
    named = re.findall(r"`((?:tests/[\w/]+/)?test_\w+\.py)`", PAGE)
    here = Path(__file__).parent
    missing = [each for each in named if not ((ROOT / each).exists() or (here / each).exists())]
    assert missing == []
    unnamed = [path.name for path in here.glob("test_*.py") if path.name not in PAGE]
    assert unnamed == [Path(__file__).name]


def test_every_attack_says_which_test_makes_it() -> None:
    attacks = PAGE.split("## Attacks and defences")[1].split("## Not defended")[0]
    for attack in re.findall(r"^\*\*.*?(?=^\*\*|\Z)", attacks, re.MULTILINE | re.DOTALL):
        assert "test" in attack or "make check" in attack, attack[:60]
