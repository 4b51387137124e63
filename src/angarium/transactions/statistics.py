"""The three levels of statistics: their intervals, and counters put together from partitions.

Pure. A field is `group|pipeline|owner|event` for a counter, as the scripts write them, or
`queue:group|kind` for the last length that a node saw. Sums by dimension are made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec


class Level(StrEnum):
    FINE = "fine"
    MEDIUM = "medium"
    COARSE = "coarse"

    @property
    def interval_s(self) -> int:
        return _INTERVALS_S[self]

    @property
    def retention_s(self) -> int:
        return _RETENTIONS_S[self]

    @property
    def intervals_max(self) -> int:
        return self.retention_s // self.interval_s


_INTERVALS_S = {Level.FINE: 5, Level.MEDIUM: 100, Level.COARSE: 1_000}
_RETENTIONS_S = {Level.FINE: 300, Level.MEDIUM: 7_200, Level.COARSE: 86_400}

Counters = dict[str, int]


class Interval(msgspec.Struct, frozen=True):
    """Event → count, for everything and by each dimension."""

    start_s: int
    all: Counters
    node_groups: dict[str, Counters]
    pipelines: dict[str, Counters]
    owners: dict[str, Counters]
    owner_pipelines: dict[str, Counters]
    queues: dict[str, Counters]


def merged(parts: Iterable[tuple[int, Mapping[bytes, bytes]]]) -> list[Interval]:
    """Newest first; counts of the same interval are added up."""
    found: dict[int, Interval] = {}
    for start_s, fields in parts:
        interval = found.get(start_s)
        if interval is None:
            interval = found[start_s] = Interval(start_s, {}, {}, {}, {}, {}, {})
        for field, value in fields.items():
            _add(interval, field.decode(), int(value))
    return sorted(found.values(), key=lambda each: -each.start_s)


def _add(interval: Interval, field: str, value: int) -> None:
    if field.startswith("queue:"):
        group, _, kind = field.removeprefix("queue:").partition("|")
        _count(interval.queues.setdefault(group, {}), kind, value)
        return
    group, pipeline, owner, event = field.split("|")
    _count(interval.all, event, value)
    _count(interval.node_groups.setdefault(group, {}), event, value)
    _count(interval.pipelines.setdefault(pipeline, {}), event, value)
    _count(interval.owners.setdefault(owner, {}), event, value)
    _count(interval.owner_pipelines.setdefault(f"{owner}|{pipeline}", {}), event, value)


def _count(counters: Counters, event: str, value: int) -> None:
    counters[event] = counters.get(event, 0) + value
