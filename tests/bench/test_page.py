"""From what a benchmark prints to the page: read back, judged by targets, drawn, written."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from benchmarks import page, plot, targets
from benchmarks.parts import NAMES, PARTS
from benchmarks.printed import number, read_sections, span, table
from benchmarks.result import RESULTS, Result, load, save
from benchmarks.sizes import count, sizes
from benchmarks.targets import TARGETS, Target, Value

PRINTED = """
(a peer that was left out)

## Dispatch, end to end (Valkey 9.1.2)

| | messages/s | ratio | spread | Redis CPU µs | CPU spread |
|---|---:|---:|---:|---:|---:|
| BullMQ | 6,105 | 1.00 | 1.00–1.00 | 131.6 | 94.7–169.7 |
| **Angarium**, one dispatcher | 46,842 | 7.67 | 5.81–9.54 | 15.9 | 10.6–18.1 |

21 rounds; at most 0.3% of the CPU stolen.

## With messages already pending

| pending | CPU ratio | CPU spread |
|---:|---:|---:|
| 10 | 1.00 | 1.00–1.00 |
| 1,000,000 | 1.10 | 0.90–1.30 |
"""


def result(part: str = "dispatch", printed: str = PRINTED) -> Result:
    sections = read_sections(printed.splitlines())
    return Result(part, "today", "make bench", 1.0, 0.01, 2, {"Python": "3"}, sections)


def test_tables_titles_and_sentences_are_read_back() -> None:
    words, first, second = result().sections
    assert words.text == ["(a peer that was left out)"]
    assert first.title == "Dispatch, end to end (Valkey 9.1.2)"
    assert first.text == ["21 rounds; at most 0.3% of the CPU stolen."]
    assert first.columns[:3] == ["", "messages/s", "ratio"]
    assert first.cell("Angarium", "messages/s") == "46,842"
    assert first.cell("Angarium", "no such column") is None
    assert first.cell("nobody", "ratio") is None
    assert second.column("pending") == ["10", "1,000,000"]
    assert second.cell("1,000,000", "CPU ratio") == "1.10"


def test_a_table_that_was_written_is_read_back_the_same() -> None:
    for section in result().sections[1:]:
        (again,) = read_sections(table(section).splitlines())
        assert (again.columns, again.right, again.rows) == (
            section.columns,
            section.right,
            section.rows,
        )


def test_a_second_table_under_a_title_is_a_section_of_its_own() -> None:
    text = "## One\n\n| a |\n|---:|\n| 1 |\n\nand\n\n| b |\n|---:|\n| 2 |\n"
    first, second = read_sections(text.splitlines())
    assert (first.title, first.rows, first.text) == ("One", [["1"]], ["and"])
    assert (second.title, second.columns, second.rows) == ("", ["b"], [["2"]])


@pytest.mark.parametrize(
    ("cell", "value"),
    [("46,842", 46_842), ("**7.67**", 7.67), ("0.3%", 0.3), ("1,000 keys", 1_000), ("", None),
     ("-2.5", -2.5), (None, None), ("none", None)],
)  # fmt: skip
def test_the_number_of_a_cell(cell: str | None, value: float | None) -> None:
    assert number(cell) == value


def test_the_spread_of_a_cell() -> None:
    assert span("5.81–9.54") == (5.81, 9.54)
    assert span("5.81") is None
    assert span(None) is None


# Targets


def verdicts(found: Result) -> dict[str, list[str]]:
    return {row[1]: row[3:] for row in targets.rows({found.part: found}) if row[0] == found.part}


def test_a_target_is_met_missed_by_so_much_or_not_measured() -> None:
    found = verdicts(result())
    assert found["published → in the stream, against BullMQ"] == ["7.67 ×", "5.81–9.54", "met"]
    assert found["Redis CPU per message"][0] == "15.9 µs"
    assert found["Redis CPU per message"][2].startswith("**missed by 6%**")
    assert found["Redis CPU at 1,000,000 pending against 10"][2] == "met"
    assert found["two leaders against one"] == ["", "", "not measured in the last run"]
    assert targets.missing(result()) == ["two leaders against one"]


def test_without_the_peer_a_ratio_to_somebody_else_is_no_answer() -> None:
    alone = "\n".join(line for line in PRINTED.splitlines() if "BullMQ" not in line)
    found = verdicts(result(printed=alone))
    assert found["published → in the stream, against BullMQ"][2] == "not measured in the last run"


def test_bounds_hold_at_their_edge() -> None:
    def nothing(_: Result) -> Value | None:
        return None

    assert Target("x", "y", nothing, least=3).met(3)
    assert not Target("x", "y", nothing, least=3).met(2.99)
    assert Target("x", "y", nothing, most=3).met(3)
    assert Target("x", "y", nothing, most=3, unit=" ms").bound == "≤ 3 ms"
    assert Target("x", "y", nothing, most=4).distance(5) == "25%"


def test_every_target_belongs_to_a_part_and_has_one_bound() -> None:
    for target in TARGETS:
        assert target.part in NAMES
        assert (target.least is None) != (target.most is None)


# Plots and the page


def test_plots_are_pictures_with_every_name_and_a_dark_style() -> None:
    bars = plot.bars("A < B", "×", [plot.Bar("one & two", 3, 1, 5), plot.Bar("ours", 0, ours=True)])
    lines = plot.lines("Cost", "size", "×", {"a": [(10, 1.0), (1_000_000, 1.4)], "b": [(1_000, 1)]})
    for picture, words in ((bars, ("one &amp; two", "ours")), (lines, (">a<", ">b<", "1,000,000"))):
        ElementTree.fromstring(picture)
        assert "prefers-color-scheme:dark" in picture
        for word in words:
            assert word in picture


def test_a_page_is_written_from_the_results_and_a_part_replaces_only_its_own(
    tmp_path: Path,
) -> None:
    save(result(), tmp_path / "results")
    printed = "## One gateway\n\n| | ratio |\n|---|---:|\n| add | 1.30 |\n"
    save(result("pickup", printed), tmp_path / "results")
    text = page.write(tmp_path / "results", tmp_path)
    assert "46,842" in text
    assert "![Published → in the stream](img/bench-dispatch.svg)" in text
    assert (tmp_path / "img" / "bench-dispatch.svg").exists()
    assert "Not run yet: `make bench ONLY=routing`." in text
    save(result(printed=PRINTED.replace("46,842", "50,000")), tmp_path / "results")
    again = page.write(tmp_path / "results", tmp_path)
    assert again == text.replace("46,842", "50,000")
    assert (tmp_path / "benchmarks.md").read_text() == again


def test_results_are_the_same_when_they_are_read_again(tmp_path: Path) -> None:
    save(result(), tmp_path)
    assert load("dispatch", tmp_path) == result()
    assert load("pickup", tmp_path) is None


def test_the_committed_page_is_what_the_committed_results_say(tmp_path: Path) -> None:
    assert (page.DOCS / "benchmarks.md").read_text() == page.write(RESULTS, tmp_path)
    for picture in sorted((tmp_path / "img").iterdir()):
        assert (page.DOCS / "img" / picture.name).read_bytes() == picture.read_bytes()


def test_the_readme_says_what_the_committed_results_say() -> None:
    results = {name: found for name in NAMES if (found := load(name, RESULTS))}
    text = page.README.read_text()
    assert page.readme(text, results) == text
    assert len(targets.readme_rows(results)) == sum(bool(each.readme) for each in targets.TARGETS)


def test_every_part_has_a_note_and_every_note_a_part() -> None:
    notes = {path.stem for path in page.NOTES.glob("*.md")}
    assert notes == {part.name for part in PARTS} | {"_intro", "_targets"}


# Sizes


def test_a_scale_makes_counts_smaller_and_leaves_large_sizes_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert count(1_000) == 1_000
    assert sizes(1_000, 1, 1_000_000) == (1_000, 1, 1_000_000)
    monkeypatch.setattr("benchmarks.sizes.SCALE", 0.01)
    assert count(1_000) == 10
    assert count(1_000, least=64) == 64
    assert count(5, least=64) == 5
    assert sizes(10, 1_000, 100_000, 1_000_000) == (10, 1_000)
