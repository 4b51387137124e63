"""The three statistics levels, and the sums of their counters over partitions and dimensions.

No I/O. Scripts write one field `group|pipeline|owner|event` per counter and one field
`queue:group|kind` per queue, with the last length that a node saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec


class StatisticsLevel(StrEnum):
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


_INTERVALS_S = {StatisticsLevel.FINE: 5, StatisticsLevel.MEDIUM: 100, StatisticsLevel.COARSE: 1_000}
_RETENTIONS_S = {
    StatisticsLevel.FINE: 300,
    StatisticsLevel.MEDIUM: 7_200,
    StatisticsLevel.COARSE: 86_400,
}

Counters = dict[str, int]


class StatisticsInterval(msgspec.Struct, frozen=True):
    """Event → count: in total and by each dimension. `queues` has the last queue lengths."""

    start_s: int
    all: Counters
    node_groups: dict[str, Counters]
    pipelines: dict[str, Counters]
    owners: dict[str, Counters]
    owner_pipelines: dict[str, Counters]
    queues: dict[str, Counters]


def merge_intervals(parts: Iterable[tuple[int, Mapping[bytes, bytes]]]) -> list[StatisticsInterval]:
    """Add up the counters of each interval. Newest first."""
    found: dict[int, StatisticsInterval] = {}
    for start_s, fields in parts:
        interval = found.get(start_s)
        if interval is None:
            interval = found[start_s] = StatisticsInterval(start_s, {}, {}, {}, {}, {}, {})
        for field, value in fields.items():
            _add(interval, field.decode(), int(value))
    return sorted(found.values(), key=lambda each: -each.start_s)


def _add(interval: StatisticsInterval, field: str, value: int) -> None:
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
