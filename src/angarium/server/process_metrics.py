"""The figures of every process, for Prometheus: a gauge for each figure of each role.

A scrape shows what the last reading found and asks nobody, so it is as quick when Redis is slow.
A reading that has grown older than a report may is not shown at all: a process that is gone, or
a Redis that does not answer, leaves a gap and not a straight line. Words are not shown either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from angarium.runtime.process_report import TTL_MS, ProcessReport, read_processes
from angarium.runtime.runtime import Runtime

LABELS = ("host", "pid", "actor")
NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


class ProcessMetrics(Collector):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._processes: Sequence[ProcessReport] = ()
        self._read_s = 0.0

    async def run_once(self) -> int:
        """How many roles of live processes there are."""
        self._processes = await read_processes(self._runtime)
        self._read_s = self._runtime.clock.monotonic()
        return len(self._processes)

    def collect(self) -> Iterable[Metric]:
        if self._runtime.clock.monotonic() - self._read_s > TTL_MS / 1000:
            return
        # By name and labels: were a series there twice, Prometheus would refuse the whole page.
        found: dict[str, dict[tuple[str, ...], float]] = {}
        unmatched: dict[tuple[str, ...], int] = {}
        for process in self._processes:
            labels = (process.host, str(process.pid), process.actor)
            unmatched[labels] = process.unmatched_replies
            for figure, value in process.figures.items():
                if not isinstance(value, str):
                    name = NOT_IN_NAMES.sub("_", f"angarium_{process.role}_{figure}")
                    found.setdefault(name, {})[labels] = value
        for name, values in sorted(found.items()):
            family = GaugeMetricFamily(name, "As each process last reported it.", labels=LABELS)
            for whose, value in values.items():
                family.add_metric(whose, value)
            yield family
        yield _unmatched(unmatched)


def _unmatched(counts: Mapping[tuple[str, ...], int]) -> Metric:
    """Shown from 0 on: a rate can't tell that a series which was not there has grown."""
    text = "Connections to Redis closed because their replies did not match their commands."
    family = CounterMetricFamily("angarium_redis_unmatched_replies", text, labels=LABELS)
    for whose, count in counts.items():
        family.add_metric(whose, count)
    return family
