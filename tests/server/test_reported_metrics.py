"""Every number that a role reports is declared in the manifest of its module."""

from __future__ import annotations

from dataclasses import fields

from angarium.dispatch.metrics import DispatcherMetrics, WorkerMetrics
from angarium.modules import MODULES
from angarium.runtime.process_report import ProcessReport, read_processes
from angarium.runtime.runtime import Runtime
from angarium.server.process_metrics import declared_metric
from tests.dashboard.harness import run, running_system
from tests.kit.eventually import eventually


def test_the_counters_of_dispatch_are_declared() -> None:
    for role, kind in (("dispatcher", DispatcherMetrics), ("worker", WorkerMetrics)):
        for field in fields(kind):
            metric = declared_metric(role, field.name)
            assert metric is not None, field.name
            assert metric.kind == "counter"


def test_rates_come_from_declared_counters() -> None:
    for module in MODULES:
        for rate in module.rates:
            metric = declared_metric(rate.role, rate.counter)
            assert metric is not None, rate
            assert metric.kind == "counter"


def test_a_metric_is_declared_once_for_a_role_of_its_module() -> None:
    for module in MODULES:
        roles = {role.name for role in module.roles}
        names = [(each.role, each.name) for each in module.metrics]
        assert {role for role, _ in names} <= roles
        assert len(names) == len(set(names))


def test_all_roles_report_what_is_declared() -> None:
    with running_system() as system:

        async def reports() -> list[ProcessReport]:
            async with Runtime.open(system.settings) as runtime:
                wanted = {role for module in MODULES for role in _reporting(module.name)}
                wanted -= {"lake"}  # needs Java: tests/lake/test_service.py

                async def all_there() -> list[ProcessReport] | None:
                    found = await read_processes(runtime)
                    return found if wanted <= {each.role for each in found} else None

                found = await eventually(all_there, 60)
                assert found is not None
                return found

        undeclared = [
            (process.role, name)
            for process in run(reports())
            for name, value in process.figures.items()
            if not isinstance(value, str) and declared_metric(process.role, name) is None
        ]
    assert undeclared == []


def _reporting(name: str) -> set[str]:
    return {each.role for module in MODULES if module.name == name for each in module.metrics}
