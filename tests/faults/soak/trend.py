"""Whether a series of measurements grows: pure.

The first third of a run is left out, for caches and pools fill up then. What remains is gathered
into a few blocks, because neighbouring samples are not independent, and a line is fitted through
the means of the blocks. Memory also grows in single steps that are never repeated, so a rise that
is over before the last third is called settled, and only one that goes on is called a leak.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BLOCKS = 18
ERRORS = 2.0  # standard errors that count as noise
HOUR_S = 3600.0

Verdict = Literal["flat", "settled", "leaking"]
Point = tuple[float, float]
"""Seconds since the beginning, and the value."""


@dataclass(frozen=True)
class Line:
    """`error_per_h` is two standard errors of the slope; infinite where nothing can be said."""

    slope_per_h: float
    error_per_h: float
    growth: float

    def rises(self, allowed: float) -> bool:
        return self.growth > allowed and self.slope_per_h > self.error_per_h


@dataclass(frozen=True)
class Trend:
    first: float
    last: float
    line: Line
    verdict: Verdict


def fit(points: Sequence[Point]) -> Line:
    blocks = _blocks(points)
    if len(blocks) < 3:
        return Line(0.0, math.inf, 0.0)
    middle_s = statistics.fmean(at_s for at_s, _ in blocks)
    mean = statistics.fmean(value for _, value in blocks)
    width = sum((at_s - middle_s) ** 2 for at_s, _ in blocks)
    slope = sum((at_s - middle_s) * (value - mean) for at_s, value in blocks) / width
    left = sum((value - mean - slope * (at_s - middle_s)) ** 2 for at_s, value in blocks)
    error = math.sqrt(left / (len(blocks) - 2) / width)
    span_s = points[-1][0] - points[0][0]
    return Line(slope * HOUR_S, ERRORS * error * HOUR_S, slope * span_s)


def judge(points: Sequence[Point], allowed: float) -> Trend:
    """`allowed` is what a series may grow within a run without being noticed."""
    end_s = points[-1][0] if points else 0.0
    line = fit([point for point in points if point[0] >= end_s / 3])
    later = fit([point for point in points if point[0] >= end_s * 2 / 3])
    verdict: Verdict = "flat"
    if line.rises(allowed):
        # Half the time, so half of what is allowed.
        verdict = "leaking" if later.rises(allowed / 2) else "settled"
    return Trend(points[0][1], points[-1][1], line, verdict)


def _blocks(points: Sequence[Point]) -> list[Point]:
    size = max(1, len(points) // BLOCKS)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [
        (statistics.fmean(at_s for at_s, _ in chunk), statistics.fmean(v for _, v in chunk))
        for chunk in chunks
    ]
