"""Plots as SVG: pure, a few rectangles and lines, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 780
LABELS = 290
BAR, GAP, TOP = 18, 10, 44
HEIGHT, LEFT, RIGHT, BOTTOM, HEAD = 340, 60, 200, 46, 60
COLOURS = ("#4c78d0", "#d9822b", "#3f9d6b", "#b65fcf", "#c8504f", "#8a8f3a")
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#333}.t{font-weight:600;font-size:15px}"
    ".q{fill:#777}.g{stroke:#ddd;stroke-width:1}"
    ".w{stroke:#555;stroke-width:1.5}"
    "@media (prefers-color-scheme:dark){text{fill:#ddd}.q{fill:#aaa}.g{stroke:#444}"
    ".w{stroke:#ccc}}</style>"
)


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    low: float | None = None
    high: float | None = None
    ours: bool = False


def bars(title: str, unit: str, given: Sequence[Bar]) -> str:
    """One line each; a thin line shows the spread."""
    height = TOP + len(given) * (BAR + GAP) + GAP
    top = max(max(each.value, each.high or 0.0) for each in given) or 1.0
    scale = (WIDTH - LABELS - 90) / top
    parts = [_text(12, 24, title, "t"), _text(WIDTH - 12, 24, unit, "q", "end")]
    for place, each in enumerate(given):
        y = TOP + place * (BAR + GAP)
        middle = y + BAR / 2
        colour = COLOURS[0] if each.ours else "#999"
        parts.append(_text(LABELS - 8, middle + 4, each.name, "", "end"))
        parts.append(
            f'<rect x="{LABELS}" y="{y}" width="{each.value * scale:.1f}" height="{BAR}" rx="2" '
            f'fill="{colour}"/>'
        )
        if each.low is not None and each.high is not None:
            low, high = (LABELS + end * scale for end in (each.low, each.high))
            parts.append(_line(low, middle, high, middle, "w"))
        end = LABELS + max(each.value, each.high or 0.0) * scale
        parts.append(_text(end + 6, middle + 4, _short(each.value), "q"))
    return _svg(height, parts)


def lines(title: str, x: str, y: str, given: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Sizes on a logarithmic axis, from the left; costs from zero."""
    points = [point for each in given.values() for point in each]
    low = math.floor(math.log10(min(size for size, _ in points)))
    high = math.ceil(math.log10(max(size for size, _ in points)))
    top = max(1.5, max(value for _, value in points) * 1.1)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - HEAD - BOTTOM

    def at(size: float, value: float) -> tuple[float, float]:
        across = (math.log10(size) - low) / max(1, high - low)
        return LEFT + across * wide, HEAD + tall * (1 - value / top)

    parts = [_text(12, 24, title, "t")]
    for power in range(low, high + 1):
        across, _ = at(10**power, 0)
        parts.append(_line(across, HEAD, across, HEAD + tall, "g"))
        parts.append(_text(across, HEAD + tall + 18, f"{10**power:,}", "q", "middle"))
    step = 10 ** math.floor(math.log10(top / 2))
    for number in range(int(top / step) + 1):
        _, down = at(10**low, number * step)
        parts.append(_line(LEFT, down, LEFT + wide, down, "g"))
        parts.append(_text(LEFT - 8, down + 4, _short(number * step), "q", "end"))
    parts.append(_text(LEFT + wide / 2, HEIGHT - 8, x, "q", "middle"))
    parts.append(_text(LEFT, HEAD - 6, y, "q"))
    for place, (name, series) in enumerate(given.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(
            f"{across:.1f},{down:.1f}" for across, down in (at(*point) for point in series)
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for across, down in (at(*point) for point in series):
            parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3.5" fill="{colour}"/>')
        down = HEAD + 10 + place * 20
        edge = LEFT + wide + 18
        parts.append(f'<rect x="{edge}" y="{down - 9}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(edge + 18, down + 2, name))
    return _svg(HEIGHT, parts)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    given = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{given} text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _svg(height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" role="img">\n{STYLE}\n{body}\n</svg>\n'
    )
