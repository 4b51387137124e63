"""Events per second in each module, from what its processes counted between two reports.

Pure. A process counts from its own start, so it is compared with itself alone: one that begins or
ends changes no rate of the others, and one that is seen for the first time has none yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from angarium.modules import MODULES
from angarium.runtime.process_report import ProcessReport

# Name of the rate -> role, and the counter that it reports; a star stands for any ending.
COUNTERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        f"{module.name}.{rate.name}": (rate.role, rate.counter)
        for module in MODULES
        for rate in module.rates
    }
)
JOURNAL = "journal.events"


class Rates:
    """Remembers the last report of each process; `update` gives the sums per second."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], ProcessReport] = {}
        self._found: dict[tuple[str, str], dict[str, float]] = {}
        self._events: tuple[int, int] | None = None
        self._events_per_s = 0.0

    def update(
        self, processes: Sequence[ProcessReport], events: int, now_ms: int
    ) -> dict[str, float]:
        """All rates; `events` were ever written to the journal."""
        live = {(each.role, each.actor): each for each in processes}
        self._found = {whose: rates for whose, rates in self._found.items() if whose in live}
        for whose, report in live.items():
            before = self._last.get(whose)
            if before is not None and before.at_ms < report.at_ms:
                self._found[whose] = _between(before, report)
        self._last = live
        sums = dict.fromkeys(COUNTERS, 0.0)
        for rates in self._found.values():
            for name, rate in rates.items():
                sums[name] += rate
        sums[JOURNAL] = self._written(events, now_ms)
        return {name: round(rate, 1) for name, rate in sums.items()}

    def _written(self, events: int, now_ms: int) -> float:
        if self._events is None or events < self._events[0]:
            self._events = events, now_ms
        elif now_ms > self._events[1]:
            self._events_per_s = (events - self._events[0]) * 1000 / (now_ms - self._events[1])
            self._events = events, now_ms
        return self._events_per_s


def _between(before: ProcessReport, now: ProcessReport) -> dict[str, float]:
    passed_s = (now.at_ms - before.at_ms) / 1000
    return {
        name: max(0.0, _count(now.figures, figure) - _count(before.figures, figure)) / passed_s
        for name, (role, figure) in COUNTERS.items()
        if role == now.role
    }


def _count(figures: Mapping[str, float | str], name: str) -> float:
    if not name.endswith("*"):
        return _number(figures.get(name))
    return sum(_number(value) for each, value in figures.items() if each.startswith(name[:-1]))


def _number(value: float | str | None) -> float:
    return value if isinstance(value, float | int) else 0.0
