"""Exports the reports of all processes to Prometheus, as the manifests declare their numbers.

A scrape returns the last reading without a call to Redis. An outdated reading is left out, so a
dead process or an unavailable Redis leaves a gap in the series. Text values are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from angarium.modules import MODULES
from angarium.runtime.module import ReportedMetric
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
        """Returns the number of reports."""
        self._processes = await read_processes(self._runtime)
        self._read_s = self._runtime.clock.monotonic()
        return len(self._processes)

    def collect(self) -> Iterable[Metric]:
        if self._runtime.clock.monotonic() - self._read_s > TTL_MS / 1000:
            return
        # Keyed by name and labels: Prometheus refuses a page with a repeated series.
        found: dict[str, dict[tuple[str, ...], float]] = {}
        metrics: dict[str, ReportedMetric | None] = {}
        unmatched: dict[tuple[str, ...], int] = {}
        for process in self._processes:
            labels = (process.host, str(process.pid), process.actor)
            unmatched[labels] = process.unmatched_replies
            for key, value in process.figures.items():
                if not isinstance(value, str):
                    name = NOT_IN_NAMES.sub("_", f"angarium_{process.role}_{key}")
                    metrics.setdefault(name, declared_metric(process.role, key))
                    found.setdefault(name, {})[labels] = value
        for name, values in sorted(found.items()):
            family = _family(name, metrics[name])
            for whose, value in values.items():
                family.add_metric(whose, value)
            yield family
        yield _unmatched(unmatched)


def _family(name: str, metric: ReportedMetric | None) -> CounterMetricFamily | GaugeMetricFamily:
    """A number that no manifest declares, perhaps of another version, is a gauge."""
    if metric is None:
        return GaugeMetricFamily(name, "As each process last reported it.", labels=LABELS)
    text = f"{metric.unit}: {metric.help}"
    if metric.kind == "counter":
        return CounterMetricFamily(name, text, labels=LABELS)
    return GaugeMetricFamily(name, text, labels=LABELS)


@lru_cache(maxsize=4_096)
def declared_metric(role: str, key: str) -> ReportedMetric | None:
    for module in MODULES:
        for each in module.metrics:
            exact = each.name == key
            begins = each.name.endswith("*") and key.startswith(each.name[:-1])
            if each.role == role and (exact or begins):
                return each
    return None


def _unmatched(counts: Mapping[tuple[str, ...], int]) -> Metric:
    """Exported from 0 on: a rate needs a value before the first increase."""
    text = "Connections to Redis closed because their replies did not match their commands."
    family = CounterMetricFamily("angarium_redis_unmatched_replies", text, labels=LABELS)
    for whose, count in counts.items():
        family.add_metric(whose, count)
    return family
