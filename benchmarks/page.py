"""Writes docs/benchmarks.md and its plots from the stored results and the notes beside them.

`python -m benchmarks.page` writes, `--check` only says whether the page is what would be written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import plots, targets
from benchmarks.parts import NAMES, PARTS, Part
from benchmarks.printed import lines, table
from benchmarks.result import RESULTS, ROOT, Result, load

DOCS = ROOT / "docs"
NOTES = ROOT / "benchmarks" / "notes"
README = ROOT / "README.md"
# What stands between these two lines of the README is written here.
BEGIN, END = "<!-- by `make bench` -->\n", "<!-- until here -->\n"


def write(results_folder: Path, docs: Path) -> str:
    """The page as it was written."""
    results = {name: found for name in NAMES if (found := load(name, results_folder))}
    drawn = plots.write(results, docs / "img")
    text = page(results, drawn)
    (docs / "benchmarks.md").write_text(text)
    if docs == DOCS:
        README.write_text(readme(README.read_text(), results))
    return text


def readme(text: str, results: Mapping[str, Result]) -> str:
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    titles = ["", "beside", "times as fast", "spread"]
    rows = [titles, ["---", "---", "---:", "---:"], *targets.readme_rows(results)]
    return f"{head}{BEGIN}\n{lines(rows)}\n\n{END}{tail}"


def page(results: Mapping[str, Result], drawn: Mapping[str, Sequence[plots.Plot]]) -> str:
    blocks = [
        "# Benchmarks",
        "<!-- Written by `make bench` (`python -m benchmarks.page`) from benchmarks/results and "
        "benchmarks/notes. Edit those, not this page. -->",
        _note("_intro"),
        "## Targets",
        _note("_targets"),
        _targets(results),
        *_pictures(drawn.get("", ())),
    ]
    for part in PARTS:
        blocks += _part(part, results.get(part.name), drawn.get(part.name, ()))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _targets(results: Mapping[str, Result]) -> str:
    head = ["part", "what", "wanted", "measured", "spread", ""]
    rows = [head, ["---", "---", "---:", "---:", "---:", "---"], *targets.rows(results)]
    return lines(rows)


def _part(part: Part, result: Result | None, drawn: Sequence[plots.Plot]) -> list[str]:
    blocks = [f"## {part.title}", _note(part.name)]
    if result is None:
        return [*blocks, f"Not run yet: `make bench ONLY={part.name}`."]
    blocks.append(_stamp(result))
    blocks += _pictures(drawn)
    for section in result.sections:
        if section.title:
            blocks.append(f"**{section.title}**")
        if section.rows:
            blocks.append(table(section))
        blocks.append("\n".join(section.text))
    return blocks


def _stamp(result: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    quiet = f"{result.cores} cores"
    if result.steal is not None:
        quiet += f", {result.steal:.1%} of the CPU stolen"
    return f"`{result.command}`, {result.at}, {quiet}. {versions}."


def _pictures(drawn: Sequence[plots.Plot]) -> list[str]:
    return [f"![{each.alt}](img/{each.file})" for each in drawn]


def _note(name: str) -> str:
    path = NOTES / f"{name}.md"
    return path.read_text().strip() if path.exists() else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        write(RESULTS, DOCS)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        wanted = write(RESULTS, Path(folder))
    if (DOCS / "benchmarks.md").read_text() != wanted:
        print("docs/benchmarks.md is not what the results say: python -m benchmarks.page")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
