"""Repeated warnings: the first are logged, the others are counted, and none is lost."""

from __future__ import annotations

from typing import Any, cast

from angarium.runtime.log import INTERVAL_S, KINDS_MAX, LINES_FIRST, RepeatedWarnings
from tests.kit.clock import FakeClock


class Lines:
    """Records the lines of a logger."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def warning(self, event: str, **values: Any) -> None:
        self.written.append({"event": event, **values})

    @property
    def counted(self) -> int:
        return sum(each["count"] for each in self.written)


def made() -> tuple[RepeatedWarnings, Lines, FakeClock]:
    lines, clock = Lines(), FakeClock()
    return RepeatedWarnings(cast(Any, lines), clock), lines, clock


async def test_the_first_of_a_kind_are_logged_and_the_others_are_counted_in_one_line() -> None:
    warnings, lines, clock = made()
    for n in range(1_000):
        warnings.warn("failed", "bug", error=f"no {n}")
    assert [each["error"] for each in lines.written] == [f"no {n}" for n in range(LINES_FIRST)]
    warnings.flush()
    assert len(lines.written) == LINES_FIRST, "the interval is not over"
    await clock.advance(INTERVAL_S)
    warnings.flush()
    assert lines.written[-1] == {"event": "failed", "count": 1_000 - LINES_FIRST, "error": "no 999"}
    assert lines.counted == 1_000


async def test_a_kind_that_continues_is_one_line_per_interval_and_one_that_ended_starts_again() -> (
    None
):
    warnings, lines, clock = made()
    for _ in range(100):
        for _ in range(10):
            warnings.warn("failed", "bug")
        await clock.advance(INTERVAL_S)
        warnings.flush()
    assert len(lines.written) == LINES_FIRST + 100
    assert lines.counted == 1_000
    await clock.advance(INTERVAL_S)
    warnings.flush()  # nothing happened: forgotten
    for _ in range(LINES_FIRST):
        warnings.warn("failed", "bug")
    assert len(lines.written) == LINES_FIRST + 100 + LINES_FIRST


def test_the_number_of_kinds_has_a_limit() -> None:
    warnings, lines, _ = made()
    for kind in range(10_000):
        warnings.warn("failed", str(kind), count=2)
    assert len(lines.written) == KINDS_MAX + LINES_FIRST
    warnings.flush(at_end=True)
    assert lines.counted == 20_000
    assert len(lines.written) == KINDS_MAX + LINES_FIRST + 1
