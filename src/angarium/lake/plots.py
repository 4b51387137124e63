"""Plots as SVG text: lines over time, stacked bars over time, and rows of bars.

Small and plain on purpose: one HTML file must open anywhere, offline, in light and in dark, and be
printed. Colours are classes of the page that holds the plot, which a library that draws SVG fixes
when it draws, and one that draws in the browser brings as a script, which the report must do
without. Pure: numbers in, text out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 720, 250
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 12, 28
ROW_HEIGHT = 26
LABEL_CHARS_MAX = 24

Points = Sequence[tuple[float, float]]
Series = Mapping[str, Points]
Span = tuple[float, float]
"""From when to when: the same for all plots of a page, so that they can be compared."""
Say = Callable[[float], str]


@dataclass(frozen=True)
class Scale:
    """From values to places on the page, in proportion or by powers of ten."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        share = 0.0 if high == low else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def line_chart(
    series: Series, about: str, say: Say, span: Span, *, logarithmic: bool = False
) -> str:
    """One line for each name, over time in ms."""
    values = [value for points in series.values() for _, value in points]
    if not values:
        return nothing()
    ticks = _powers(values) if logarithmic else nice_ticks(max(values))
    x, y = _time_scale(span), Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP, logarithmic)
    parts = [_frame(x, y, ticks, say)]
    for number, (name, points) in enumerate(series.items()):
        path = " ".join(f"{x.at(time):.1f},{y.at(value):.1f}" for time, value in points)
        parts.append(f'<polyline class="line c{number}" points="{path}"/>')
        # Single points would be no line at all.
        for time, value in points if len(points) <= 60 else ():
            told = f"{name}, {clock(time)}: {say(value)}"
            parts.append(
                f'<circle class="dot c{number}" cx="{x.at(time):.1f}" cy="{y.at(value):.1f}" '
                f'r="2.5"><title>{escape(told)}</title></circle>'
            )
    return _svg(HEIGHT, parts, about) + legend(series)


def stacked_bars(series: Series, about: str, say: Say, span: Span, step: float) -> str:
    """Bars over time in ms, `step` ms wide, the names on top of one another."""
    heights: dict[float, float] = {}
    for points in series.values():
        for time, value in points:
            heights[time] = heights.get(time, 0.0) + value
    if not heights:
        return nothing()
    ticks = nice_ticks(max(heights.values()))
    x = _time_scale(span)
    y = Scale(0.0, ticks[-1], HEIGHT - BOTTOM, TOP)
    wide = max(2.0, x.at(x.low + step) - x.at(x.low) - 1)
    parts, bases = [_frame(x, y, ticks, say)], dict.fromkeys(heights, 0.0)
    for number, (name, points) in enumerate(series.items()):
        for time, value in points:
            top, bottom = y.at(bases[time] + value), y.at(bases[time])
            bases[time] += value
            told = f"{name}, {clock(time)}: {say(value)}"
            parts.append(
                f'<rect class="bar c{number}" x="{x.at(time):.1f}" y="{top:.1f}" '
                f'width="{wide:.1f}" height="{max(0.0, bottom - top):.1f}">'
                f"<title>{escape(told)}</title></rect>"
            )
    return _svg(HEIGHT, parts, about) + legend(series)


def row_bars(rows: Sequence[tuple[str, float]], about: str, say: Say) -> str:
    """One bar for each row, longest first, with its name and value as text."""
    if not rows:
        return nothing()
    most = max(value for _, value in rows) or 1.0
    label_width, number_width = 250, 90
    scale = Scale(0.0, most, 0.0, WIDTH - label_width - number_width)
    parts = []
    for number, (name, value) in enumerate(rows):
        y = number * ROW_HEIGHT
        width = max(2.0, scale.at(value))
        parts.append(
            f"<g><title>{escape(name)}: {escape(say(value))}</title>"
            f'<text class="label" x="{label_width - 8}" y="{y + 17}" text-anchor="end">'
            f"{escape(shortened(name))}</text>"
            f'<rect class="bar c0" x="{label_width}" y="{y + 5}" width="{width:.1f}" '
            f'height="{ROW_HEIGHT - 9}" rx="2"/>'
            f'<text class="value" x="{label_width + width + 6:.1f}" y="{y + 17}">'
            f"{escape(say(value))}</text></g>"
        )
    return _svg(len(rows) * ROW_HEIGHT + 4, parts, about)


def nothing() -> str:
    return '<p class="nothing">Nothing of this kind happened.</p>'


def legend(series: Series) -> str:
    if len(series) < 2:
        return ""
    items = "".join(
        f'<li><span class="key c{number}"></span>{escape(name)}</li>'
        for number, name in enumerate(series)
    )
    return f'<ul class="legend">{items}</ul>'


def nice_ticks(most: float) -> list[float]:
    """From 0 to at least `most`, in four to six steps that are easy to read."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def shortened(text: str) -> str:
    """The middle of a long name goes: ids differ at their ends."""
    if len(text) <= LABEL_CHARS_MAX:
        return text
    half = (LABEL_CHARS_MAX - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def clock(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _powers(values: Sequence[float]) -> list[float]:
    low = math.floor(math.log10(max(1.0, min(values))))
    high = max(low + 1, math.ceil(math.log10(max(1.0, *values))))
    return [10.0**power for power in range(low, high + 1)]


def _time_scale(span: Span) -> Scale:
    low, high = span
    return Scale(low, high if high > low else low + 1, LEFT, WIDTH - RIGHT)


def _frame(x: Scale, y: Scale, ticks: Sequence[float], say: Say) -> str:
    lines = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y.at(tick):.1f}" '
        f'y2="{y.at(tick):.1f}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{y.at(tick) + 4:.1f}" text-anchor="end">'
        f"{escape(say(tick))}</text>"
        for tick in ticks
    ]
    days = (x.high - x.low) > 36 * 3600 * 1000
    form = "%d %b %H:%M" if days else "%H:%M:%S" if x.high - x.low < 600_000 else "%H:%M"
    told = ""
    for number in range(5):
        time = x.low + (x.high - x.low) * number / 4
        anchor = ("start", "middle", "middle", "middle", "end")[number]
        text = datetime.fromtimestamp(time / 1000, UTC).strftime(form)
        if text == told:
            continue  # a span of a few seconds
        told = text
        lines.append(
            f'<text class="tick" x="{x.at(time):.1f}" y="{HEIGHT - 8}" '
            f'text-anchor="{anchor}">{text}</text>'
        )
    return "".join(lines)


def _svg(height: int, parts: Sequence[str], about: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(about)}">'
        f"{''.join(parts)}</svg>"
    )
