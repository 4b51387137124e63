"""The blocks of the pages: where they stand, what language they are in, and their lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kit.roles import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What a line of a shell begins with on our pages.
SHELL = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:angarium|make|curl|pip|redis-cli|python) ")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Of a block for the shell, with continued lines joined."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    name = str(page.relative_to(ROOT))
    for match in BLOCK.finditer(text):
        yield Block(name, text[: match.start()].count("\n") + 1, match[1], match[2])


def of_page(name: str, *languages: str) -> list[Block]:
    return [each for each in blocks(ROOT / name) if each.language in languages]
