"""The verdict of a soak: pure, one row for each process and one for Redis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.faults.soak.samples import MIB, Kind, Sample
from tests.faults.soak.trend import Trend, judge

# What a series may grow in the whole run without being noticed: at least so much, or a share.
ALLOWED: Mapping[str, tuple[float, float]] = {
    "MB": (0.5, 0.01),
    "MB in use": (0.5, 0.01),
    # Python keeps what it frees for reuse until a full collection, which hardly ever comes: up to
    # 2,000 tuples of each of twenty sizes.
    "blocks": (40_000.0, 0.02),
    "resident MB": (2.0, 0.05),
    "lasting keys": (50.0, 0.01),
    "expiring keys": (math.inf, 0.0),  # as many as come in while one of them lives
    "tasks": (2.0, 0.0),
    "files": (2.0, 0.0),
    "connections": (2.0, 0.0),
}
GROWN_BYTES = 50_000  # less of one kind of key is not worth a line


def trends(samples: Sequence[tuple[float, Sample]]) -> dict[str, Trend]:
    """Every series but the CPU, which grows as it should."""
    found = {}
    for name in samples[0][1]:
        what = name.partition(": ")[2]
        if what not in ALLOWED:
            continue
        points = [(at_s, sample[name]) for at_s, sample in samples if name in sample]
        least, share = ALLOWED[what]
        found[name] = judge(points, max(least, share * points[-1][1]))
    return found


# Resident memory, and what is in use of it: a leak is what nobody gives back, and holes that an
# allocator keeps for later are not.
IN_USE = {"MB": ("MB in use", "blocks"), "resident MB": ("MB",)}


def _word(name: str, found: Mapping[str, Trend]) -> str:
    verdict = found[name].verdict
    return "holes" if verdict == "leaking" and _only_holes(name, found) else verdict


def _only_holes(name: str, found: Mapping[str, Trend]) -> bool:
    whose, _, what = name.partition(": ")
    inside = IN_USE.get(what, ()) if (whose == "redis") == (what == "resident MB") else ()
    verdicts = [found[f"{whose}: {each}"].verdict for each in inside if f"{whose}: {each}" in found]
    return bool(verdicts) and "leaking" not in verdicts


@dataclass(frozen=True)
class SoakReport:
    samples: Sequence[tuple[float, Sample]]
    before: Mapping[str, Kind]
    after: Mapping[str, Kind]
    sent: int
    events: int
    unfinished: int
    doubled: int
    problems: Sequence[str]
    at_rest: Sample  # when everything that was sent is finished

    @property
    def leaks(self) -> list[str]:
        found = trends(self.samples)
        return [
            name
            for name, each in found.items()
            if each.verdict == "leaking" and not _only_holes(name, found)
        ]

    @property
    def ok(self) -> bool:
        return not (self.leaks or self.problems or self.unfinished or self.doubled) and bool(
            self.sent
        )

    @property
    def seconds(self) -> float:
        return self.samples[-1][0] - self.samples[0][0]

    def __str__(self) -> str:
        found = trends(self.samples)
        names = list(dict.fromkeys(name.partition(": ")[0] for name in found))
        lines = [
            f"soak of {self.seconds / 60:.1f} min: {self.sent:,} messages into the intake "
            f"({self.sent / max(1.0, self.seconds):.1f}/s), {self.events:,} events, "
            f"{self.unfinished} unfinished, {self.doubled} doubled; "
            f"{self._cpu('redis') + sum(map(self._cpu, names[:-1])):.2f} cores in use by the roles "
            "and Redis",
            "",
            "| process | MB at first | at last | MB/hour | of libc's in use | Python's blocks/hour "
            "| tasks | files | CPU | |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
            *(self._line(name, found) for name in names if name != "redis"),
            "",
            "| Redis | at first | at last | per hour | |",
            "|---|---:|---:|---:|---|",
            *(
                f"| {what} | {each.first:,.1f} | {each.last:,.1f} "
                f"| {each.line.slope_per_h:+,.1f} ± {each.line.error_per_h:,.1f} "
                f"| {_word(name, found)} |"
                for name, each in found.items()
                for whose, _, what in [name.partition(": ")]
                if whose == "redis"
            ),
            "",
            *self._grown(),
            *(f"problem: {each}" for each in self.problems),
            f"verdict: {'flat' if self.ok else 'NOT GOOD'}"
            + (f", leaking: {', '.join(self.leaks)}" if self.leaks else ""),
        ]
        return "\n".join(lines)

    def _line(self, name: str, found: Mapping[str, Trend]) -> str:
        series = ("MB", "MB in use", "blocks", "tasks", "files")
        memory, in_use, blocks, tasks, files = (found[f"{name}: {what}"] for what in series)
        words = {_word(f"{name}: {what}", found) for what in series}
        worst = next(word for word in ("leaking", "holes", "settled", "flat") if word in words)
        return (
            f"| {name} | {memory.first:.1f} | {memory.last:.1f} "
            f"| {memory.line.slope_per_h:+.2f} ± {memory.line.error_per_h:.2f} "
            f"| {in_use.line.slope_per_h:+.2f} ± {in_use.line.error_per_h:.2f} "
            f"| {blocks.line.slope_per_h:+,.0f} ± {blocks.line.error_per_h:,.0f} "
            f"| {tasks.first:.0f} → {tasks.last:.0f} | {files.first:.0f} → {files.last:.0f} "
            f"| {self._cpu(name):.1%} | {worst} |"
        )

    def _cpu(self, name: str) -> float:
        first, last = (self.samples[place][1].get(f"{name}: CPU s", 0.0) for place in (0, -1))
        return (last - first) / max(1.0, self.seconds)

    def _grown(self) -> list[str]:
        """What makes Redis larger than it was after the first third."""
        nothing = Kind(0, 0, 0)
        lines = []
        for name, now in sorted(self.after.items(), key=lambda item: -item[1].bytes):
            then = self.before.get(name, nothing)
            if now.bytes - then.bytes > GROWN_BYTES:
                lines.append(
                    f"grown in Redis: {name}: {then.keys:,} → {now.keys:,} keys "
                    f"({now.expiring:,} expire), "
                    f"{then.bytes / MIB:.2f} → {now.bytes / MIB:.2f} MB"
                )
        return lines
