"""Computes events per second in each module from the counters in process reports. Pure.

A counter starts at zero with its process. Each process is compared with its own last report, so a
process that starts or ends does not change the rate of others. Its first report gives no rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from angarium.modules import MODULES
from angarium.runtime.process_report import ProcessReport

# Name of the rate -> role and counter; `*` matches any ending of the counter's name.
COUNTERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        f"{module.name}.{rate.name}": (rate.role, rate.counter)
        for module in MODULES
        for rate in module.rates
    }
)
JOURNAL = "journal.events"


class Rates:
    """Stores the last report of each process."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], ProcessReport] = {}
        self._found: dict[tuple[str, str], dict[str, float]] = {}
        self._events: tuple[int, int] | None = None
        self._events_per_s = 0.0

    def update(
        self, processes: Sequence[ProcessReport], events: int, now_ms: int
    ) -> dict[str, float]:
        """Returns all rates. `events` is the number ever written to the journal."""
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
        name: max(0.0, _count(now.figures, counter) - _count(before.figures, counter)) / passed_s
        for name, (role, counter) in COUNTERS.items()
        if role == now.role
    }


def _count(counters: Mapping[str, float | str], name: str) -> float:
    if not name.endswith("*"):
        return _number(counters.get(name))
    return sum(_number(value) for each, value in counters.items() if each.startswith(name[:-1]))


def _number(value: float | str | None) -> float:
    return value if isinstance(value, float | int) else 0.0
