"""What a benchmark printed, as data: pure.

Benchmarks print Markdown: `## title`, a table, a sentence or two. That is what a terminal shows,
and it is read back here, so that every benchmark has one way to give its results. A table without
a title of its own belongs to the title before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_NUMBER = re.compile(r"-?[\d,]*\.?\d+")
_RULE = re.compile(r"^\|[\s:|-]+\|$")


class Section(msgspec.Struct):
    """`rows` are the cells as printed; `right` tells which columns hold figures."""

    title: str
    columns: list[str] = []
    right: list[bool] = []
    rows: list[list[str]] = []
    text: list[str] = []

    def row(self, name: str) -> list[str] | None:
        """The row whose first cell is `name`, else the first that begins with it."""
        exact = [row for row in self.rows if plain(row[0]) == name]
        begins = [row for row in self.rows if plain(row[0]).startswith(name)]
        return next(iter(exact + begins), None)

    def cell(self, row: str, column: str) -> str | None:
        found = self.row(row)
        if found is None or column not in self.columns:
            return None
        return found[self.columns.index(column)]

    def column(self, name: str) -> list[str]:
        place = self.columns.index(name) if name in self.columns else None
        return [] if place is None else [row[place] for row in self.rows]


def read_sections(lines: Iterable[str]) -> list[Section]:
    found: list[Section] = []
    table = False
    for line in map(str.strip, lines):
        if line.startswith("#"):
            found.append(Section(line.lstrip("# ")))
        elif line.startswith("|"):
            if not found or (found[-1].rows and not table):
                found.append(Section(""))
            _read_row(found[-1], line)
        elif line:
            if not found:
                found.append(Section(""))
            found[-1].text.append(line)
        table = line.startswith("|")
    return [each for each in found if each.rows or each.text]


def _read_row(section: Section, line: str) -> None:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if _RULE.match(line):
        section.right = [cell.endswith(":") for cell in cells]
    elif not section.columns:
        section.columns = cells
    else:
        section.rows.append(cells)


def plain(cell: str) -> str:
    return cell.replace("**", "").strip()


def number(cell: str | None) -> float | None:
    """The first number of a cell: «46,842», «10.6 ms», «0.3%»."""
    found = _NUMBER.search(plain(cell or ""))
    return float(found.group().replace(",", "")) if found else None


def span(cell: str | None) -> tuple[float, float] | None:
    """«5.81–9.54»."""
    first, _, second = (cell or "").partition("–")
    low, high = number(first), number(second)
    return None if low is None or high is None else (low, high)


def table(section: Section) -> str:
    rule = ["---:" if right else "---" for right in section.right]
    rows = [section.columns, rule, *section.rows]
    return lines(rows)


def lines(rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(
        "|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in rows
    )
