"""What was aimed at, and where in the results it is found: pure.

A target that names a peer is a ratio inside one run. «Flat» is a quarter more at the largest size
than at the smallest, at the most. `why` is said beside a target that was missed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.printed import number, span
from benchmarks.result import Result

FLAT = 1.25
PYTHON_QUEUES = ("taskiq", "streaq", "arq", "dramatiq", "celery", "rq")


@dataclass(frozen=True)
class Value:
    value: float
    spread: tuple[float, float] | None = None


Find = Callable[[Result], Value | None]


@dataclass(frozen=True)
class Target:
    part: str
    claim: str
    find: Find
    least: float | None = None
    most: float | None = None
    unit: str = ""
    why: str = ""
    readme: str = ""  # what the README calls it; only what ran beside its peer

    @property
    def bound(self) -> str:
        sign, value = ("≥", self.least) if self.least is not None else ("≤", self.most)
        return f"{sign} {value:g}{self.unit}"

    def met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def distance(self, value: float) -> str:
        """How far off, as a share of what was wanted."""
        wanted = self.least if self.least is not None else self.most
        assert wanted
        return f"{abs(value - wanted) / wanted:.0%}"


def cell(section: str, row: str, column: str, spread: str = "") -> Find:
    def find(result: Result) -> Value | None:
        found = result.section(section)
        value = number(found.cell(row, column)) if found else None
        if found is None or value is None:
            return None
        return Value(value, span(found.cell(row, spread)) if spread else None)

    return find


def beside(section: str, peer: str, find: Find) -> Find:
    """Only where that peer took part: without it, ratios are to somebody else."""

    def found(result: Result) -> Value | None:
        table = result.section(section)
        return find(result) if table and table.row(peer) else None

    return found


def growth(section: str, column: str, first: str, last: str) -> Find:
    """The cost at the largest size as a multiple of that at the smallest."""

    def find(result: Result) -> Value | None:
        found = result.section(section)
        ends = [number(found.cell(row, column)) if found else None for row in (first, last)]
        return Value(ends[1] / ends[0]) if ends[0] and ends[1] else None

    return find


def ends(section: str, column: str) -> Find:
    """The last row as a multiple of the first, whatever sizes a run came to."""

    def find(result: Result) -> Value | None:
        found = result.section(section)
        values = [number(each) for each in found.column(column)] if found else []
        if len(values) < 2 or not values[0] or not values[-1]:
            return None
        return Value(values[-1] / values[0])

    return find


def lowest(section: str, rows: Sequence[str], column: str, spread: str) -> Find:
    def find(result: Result) -> Value | None:
        found = [cell(section, row, column, spread)(result) for row in rows]
        return min((each for each in found if each), key=lambda each: each.value, default=None)

    return find


def highest(section: str, rows: Sequence[str], column: str) -> Find:
    def find(result: Result) -> Value | None:
        found = [cell(section, row, column)(result) for row in rows]
        return max((each for each in found if each), key=lambda each: each.value, default=None)

    return find


def said(pattern: str) -> Find:
    """A figure that stands in a sentence."""

    def find(result: Result) -> Value | None:
        text = " ".join(line for each in result.sections for line in each.text)
        found = re.search(pattern, text)
        return Value(float(found.group(1).replace(",", ""))) if found else None

    return find


RATIO = ("ratio", "spread")
BATCHED = "64 tasks, one-item transitions, journal "
END_TO_END = "Dispatch, end to end"
PENDING = "With messages already pending"
QUEUES = "Start to completion"
FASTER = ("ours is × as fast", "spread")
GATEWAY = "One gateway"
LATENCY = "Added → received"
ALLOCATOR = "libc's allocator; with jemalloc less (part «reach»)"

TARGETS: Sequence[Target] = (
    Target(
        "batching", "64 callers gathered, against redis-py one by one",
        cell(BATCHED + "off", "Angarium, batched", *RATIO), least=10, unit=" ×",
        why="with 64 callers a batch holds 32 items",
    ),
    Target(
        "batching", "the same, journal on",
        cell(BATCHED + "on", "Angarium, batched", *RATIO), least=10, unit=" ×",
        why="with 64 callers a batch holds 32 items",
        readme="64 callers, each with one transition | the same script by redis-py, one call each",
    ),
    Target(
        "batching", "throughput left with the journal on",
        cell("What the journal costs", "journal on", *RATIO), least=0.8,
    ),
    Target(
        "dispatch", "published → in the stream, against BullMQ",
        beside(END_TO_END, "BullMQ", cell(END_TO_END, "Angarium", *RATIO)), least=3, unit=" ×",
        readme="dispatch: published → result in the stream | BullMQ",
    ),
    Target(
        "dispatch", "Redis CPU per message",
        cell(END_TO_END, "Angarium", "Redis CPU µs", "CPU spread"), most=15, unit=" µs",
        why="less than the spread of a shared machine",
    ),
    Target(
        "dispatch", "two leaders against one",
        cell("Leaders", "two partitions, two dispatchers", *RATIO), least=1.0, unit=" ×",
        why="four busy processes and Redis share two cores",
    ),
    Target(
        "dispatch", "Redis CPU at 1,000,000 pending against 10",
        cell(PENDING, "1,000,000", "CPU ratio", "CPU spread"), most=FLAT, unit=" ×",
        why=ALLOCATOR,
    ),
    Target(
        "routing", "POST → handler, against five round trips",
        cell("POST", "Angarium, handled", *RATIO), least=3, unit=" ×",
        readme="routing: POST → handler | five round trips, as the published plugin makes them",
    ),
    Target(
        "routing", "deliveries, against one at a time",
        cell("Deliveries", "Angarium", *RATIO), least=5, unit=" ×",
    ),
    Target(
        "routing", "Redis CPU at 1,000,000 keys against 1,000",
        growth("Cost of a message", "Redis CPU µs per item", "1,000 keys", "1,000,000 keys"),
        most=FLAT, unit=" ×", why=ALLOCATOR,
    ),
    Target(
        "conversations", "replies through all steps, against a bare script",
        cell("Replies through", "Angarium, journal on", *RATIO), least=0.6,
    ),
    Target(
        "conversations", "ACK → next send, one process, p99",
        cell("From an ACK", "one process", "p99 ms"), most=10, unit=" ms",
    ),
    Target(
        "conversations", "ACK → next send, two processes, p99",
        cell("From an ACK", "two processes", "p99 ms"), most=25, unit=" ms",
    ),
    Target(
        "conversations_size", "Redis CPU at 1,000,000 open against 10",
        growth("A reply among", "Redis CPU µs per reply", "10", "1,000,000"),
        most=FLAT, unit=" ×", why=ALLOCATOR,
    ),
    Target(
        "pickup", "add → live, against the known gateway",
        lowest(GATEWAY, ("add → live, 1 ", "add → live, 100"), "ratio", "ratio spread"),
        least=2, unit=" ×",
    ),
    Target(
        "pickup", "add → live → remove, against the known gateway",
        lowest(GATEWAY, ("add → live → remove, 1 ", "add → live → remove, 100"), "ratio",
               "ratio spread"),
        least=4, unit=" ×",
    ),
    Target(
        "pickup", "take + remove, against the known gateway",
        lowest(GATEWAY, ("take + remove, 1 queue", "take + remove, 16"), "ratio", "ratio spread"),
        least=4, unit=" ×", why="the known figures are of another machine of the same kind",
    ),
    Target(
        "pickup", "p99 at 100 messages/s, the worst of 1, 100 and 1,000 sessions",
        highest(LATENCY, ("1 session, 100/s", "100 sessions, 100/s", "1,000 sessions, 100/s"),
                "p99 ms"),
        most=5, unit=" ms",
        why="a thousand sockets, their clients and Redis wake one another on two cores",
    ),
    Target(
        "pickup", "p99 at 5,000 messages/s over 100 sessions",
        cell(LATENCY, "100 sessions, 5,000/s", "p99 ms"), most=25, unit=" ms",
    ),
    Target(
        "pickup", "gateway with 10,000 live sessions",
        cell("A crowd", "10,000", "gateway MB"), most=1_000, unit=" MB",
    ),
    Target(
        "pickup", "take and removal of ten, 100,000 waiting against 1,000",
        growth("What a take", "p50 ms", "1,000", "100,000"), most=FLAT, unit=" ×",
        why="single calls of about a millisecond, most of which is scheduling",
    ),
    Target(
        "pickup", "Redis calls per message under load",
        highest(GATEWAY, ("add, 64", "add → live, 100", "add → live → remove, 100",
                          "take + remove, 16"), "Redis calls per message"),
        most=0.2,
    ),
    Target(
        "pickup_sessions", "Redis CPU at 1,000,000 live sessions against 1,000",
        growth("A message among", "Redis CPU µs per message", "1,000", "1,000,000"),
        most=FLAT, unit=" ×", why=ALLOCATOR,
    ),
    Target(
        "transactions", "start → end, against BullMQ",
        cell(QUEUES, "bullmq", *FASTER), least=1.5, unit=" ×",
        readme="transactions: start → end of one step | BullMQ",
    ),
    Target(
        "transactions", "start → end, against the fastest Python queue",
        lowest(QUEUES, PYTHON_QUEUES, *FASTER), least=8, unit=" ×",
        readme="the same | the fastest of taskiq, dramatiq, arq, celery, streaq, rq",
    ),
    Target(
        "transactions", "one look at 1,000,000 sleepers against 1,000",
        growth("One look", "sleepers, µs", "1,000", "1,000,000"), most=FLAT, unit=" ×",
    ),
    Target(
        "transactions", "one look at 1,000,000 to archive against 1,000",
        growth("One look", "to archive, µs", "1,000", "1,000,000"), most=FLAT, unit=" ×",
    ),
    Target(
        "transactions", "HTTP with long poll, 100 connections (4 × the known 950)",
        cell("PUT start", "100", "transactions/s"), least=3_800, unit="/s",
        why="the known figure is of another machine; load, API, node and Redis share two cores",
    ),
    Target(
        "transactions", "the same, Redis CPU (a quarter of the known 350 µs)",
        cell("PUT start", "100", "Redis CPU µs each"), most=87.5, unit=" µs",
        why="a call's fixed cost is shared by few: more connections make it less",
    ),
    Target(
        "lake", "journal → bronze, against a redis-py loop that only reads",
        cell("The lake", "lake, into bronze", *RATIO), least=1.2, unit=" ×",
    ),
    Target(
        "lake", "journal → all tables, against the same loop",
        cell("The journal into all tables", "all tables, then", "ratio"), least=0.6, unit=" ×",
    ),
    Target(
        "lake", "transition → row of the worst table at 5,000/s, median",
        said(r"([\d.]+) s at the median"), most=2, unit=" s",
    ),
    Target(
        "lake", "the same, 99 of 100",
        said(r"([\d.]+) s at 99 of 100"), most=3, unit=" s",
    ),
    Target(
        "lake", "CPU while nothing comes",
        said(r"uses ([\d.]+) % of a core"), most=3, unit=" % of a core",
    ),
    Target(
        "lake", "events/s at the last million against the first",
        ends("As the tables grow", "events/s"), least=0.9, unit=" ×",
    ),
    Target(
        "lake", "memory of Spark's workers, at the last million against the first",
        ends("As the tables grow", "workers MiB"), most=FLAT, unit=" ×",
    ),
)  # fmt: skip


def missing(result: Result) -> list[str]:
    """Targets of its part that its tables do not answer."""
    mine = [target for target in TARGETS if target.part == result.part]
    return [target.claim for target in mine if target.find(result) is None]


def rows(results: Mapping[str, Result]) -> list[list[str]]:
    """Part, claim, wanted, measured, spread, verdict."""
    found = []
    for target in TARGETS:
        result = results.get(target.part)
        value = target.find(result) if result else None
        found.append([target.part, target.claim, target.bound, *_verdict(target, value)])
    return found


def readme_rows(results: Mapping[str, Result]) -> list[list[str]]:
    """What, beside whom, how many times as fast, spread."""
    found = []
    for target in TARGETS:
        result = results.get(target.part) if target.readme else None
        value = target.find(result) if result else None
        if value is not None:
            measured, spread, _ = _verdict(target, value)
            found.append([*target.readme.split(" | "), measured, spread])
    return found


def _verdict(target: Target, value: Value | None) -> list[str]:
    if value is None:
        return ["", "", "not measured in the last run"]
    spread = f"{value.spread[0]:g}–{value.spread[1]:g}" if value.spread else ""
    shown = f"{value.value:,.3g}" if value.value < 1_000 else f"{value.value:,.0f}"
    if target.met(value.value):
        return [f"{shown}{target.unit}", spread, "met"]
    reason = f": {target.why}" if target.why else ""
    return [
        f"{shown}{target.unit}",
        spread,
        f"**missed by {target.distance(value.value)}**{reason}",
    ]
