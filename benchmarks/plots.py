"""Which plots there are, and what of the results they show. Only `write` touches files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import plot
from benchmarks.printed import Section, number, plain, span
from benchmarks.result import Result

Results = Mapping[str, Result]


@dataclass(frozen=True)
class Plot:
    """`draw` gives nothing where the results are not there."""

    part: str
    file: str
    draw: Callable[[Results], str | None]
    alt: str


def _section(results: Results, part: str, title: str) -> Section | None:
    return results[part].section(title) if part in results else None


def _bars(part: str, title: str, column: str, spread: str, heading: str, unit: str) -> Plot:
    def draw(results: Results) -> str | None:
        section = _section(results, part, title)
        if section is None or column not in section.columns:
            return None
        found = []
        for row in section.rows:
            value = number(section.cell(plain(row[0]), column))
            low, high = span(section.cell(plain(row[0]), spread)) or (None, None)
            if value is not None:
                ours = part == "pickup" or "Angarium" in row[0] or "lake" in row[0]
                found.append(plot.Bar(plain(row[0]), value, low, high, ours))
        return plot.bars(heading, unit, found) if found else None

    return Plot(part, f"bench-{part}.svg", draw, heading)


# Module -> part, table, column of the size, column of the cost.
SIZES: Mapping[str, tuple[str, str, str]] = {
    "dispatch: pending": ("dispatch", "With messages already pending", "Redis CPU µs"),
    "routing: keys": ("routing", "Cost of a message", "Redis CPU µs per item"),
    "conversations: open": ("conversations_size", "A reply among", "Redis CPU µs per reply"),
    "pickup: live sessions": ("pickup_sessions", "A message among", "Redis CPU µs per message"),
    "transactions: sleepers": ("transactions", "One look", "sleepers, µs"),
}
SMALLEST = 1_000  # what each line is a multiple of; below it the caches of the CPU are measured


def _sizes(results: Results) -> str | None:
    given = {}
    for name, (part, title, column) in SIZES.items():
        section = _section(results, part, title)
        points = _points(section, column) if section else []
        base = next((cost for size, cost in points if size == SMALLEST), None)
        if base:
            given[name] = [(size, cost / base) for size, cost in points]
    heading = "Cost of one message against what is already there"
    if not given:
        return None
    return plot.lines(heading, "messages, keys, conversations, …", f"× that at {SMALLEST:,}", given)


def _points(section: Section, column: str) -> list[tuple[float, float]]:
    found = []
    for row in section.rows:
        size, cost = number(row[0]), number(section.cell(plain(row[0]), column))
        if size and cost and "mail for" not in row[0]:
            found.append((size, cost))
    return sorted(found)


PLOTS: Sequence[Plot] = (
    _bars("batching", "64 tasks, one-item transitions, journal on", "ratio", "spread",
          "64 callers, journal on", "× redis-py"),
    _bars("dispatch", "Dispatch, end to end", "ratio", "spread",
          "Published → in the stream", "× BullMQ"),
    _bars("routing", "POST", "ratio", "spread", "POST → handler", "× five round trips"),
    _bars("pickup", "One gateway", "ratio", "ratio spread", "One gateway", "× the known gateway"),
    _bars("transactions", "Start to completion", "items/s", "", "Start → end, one worker process",
          "items/s"),
    _bars("memory", "Memory of a queued message", "bytes per message", "",
          "Redis memory of a queued message", "bytes"),
    _bars("lake", "The lake", "ratio", "spread", "Events read, and into Delta",
          "× a loop that reads single entries"),
    Plot("", "bench-size.svg", _sizes, "Cost against size"),
)  # fmt: skip


def write(results: Results, folder: Path) -> dict[str, list[Plot]]:
    """Draws what can be drawn; part → its plots."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, list[Plot]] = {}
    for each in PLOTS:
        picture = each.draw(results)
        if picture is not None:
            (folder / each.file).write_text(picture)
            drawn.setdefault(each.part, []).append(each)
    return drawn
