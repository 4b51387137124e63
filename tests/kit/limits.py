"""Tests that fill a declared limit: which they are, and how much memory they took.

A test that fills limits is marked with `@pytest.mark.limit("name", …)`. It asserts the documented
answer of a full queue and that work goes on when there is space again. By how much the memory of
the test process grew at its peak is printed, and the peak of its Redis; `pytest -m limit` prints
both for each limit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

ROOT = Path(__file__).parents[1]
PROPERTY = "limit"
MIB = 1024 * 1024


def declared_limits() -> list[str]:
    """The limits of all manifests, each once."""
    from angarium.modules import MODULES
    from angarium.runtime.limits import described

    names = (name for module in MODULES for name, _, _ in described(module.limits))
    return list(dict.fromkeys(names))


@cache
def marked_tests() -> Sequence[tuple[str, str]]:
    """Limit and test, for each marker in the source of the tests."""
    return list(_marked_tests())


def _marked_tests() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("test_*.py")):
        text = path.read_text()
        if "mark.limit(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                test = f"{path.relative_to(ROOT.parent)}::{node.name}"
                for decorator in node.decorator_list:
                    yield from ((name, test) for name in _limits_of(decorator))


def _limits_of(decorator: ast.expr) -> list[str]:
    if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("mark.limit")):
        return []
    return [each.value for each in decorator.args if isinstance(each, ast.Constant)]  # type: ignore[misc]


class LimitMemory:
    """Measures the tests that fill a limit, and prints a summary."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, float, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        marker = item.get_closest_marker("limit")
        if marker is None:
            return (yield)
        redis = getattr(item, "funcargs", {}).get("redis_url")
        _forget_peak()
        before_mib = _peak_mib()
        with _RedisPeak(redis) as redis_peak:
            result = yield
            values = (item.nodeid, _peak_mib() - before_mib, redis_peak())
        item.user_properties += [(PROPERTY, (name, *values)) for name in marker.args]
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    limit, test, process_mib, redis_mib = cast(tuple[str, str, float, float], value)
                    self._found[limit] = test, process_mib, redis_mib

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._found or hasattr(terminalreporter.config, "workerinput"):
            return
        write = terminalreporter.write_line
        if "limit" in (terminalreporter.config.option.markexpr or ""):
            write("limit, growth of the process at its peak, peak of Redis, test")
            for name, (test, process, redis) in sorted(self._found.items()):
                write(f"{name:36} {process:7.1f} MiB {redis:7.1f} MiB  {test}")
        process = max(value for _, value, _ in self._found.values())
        redis = max(value for _, _, value in self._found.values())
        write(f"{len(self._found)} limits filled; a process grew by {process:.0f} MiB at most, "
              f"peak of a Redis {redis:.0f} MiB")  # fmt: skip


class _RedisPeak:
    """The peak of Redis' memory since its start; 0 without a server of the run."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._client: Any = None

    def __enter__(self) -> Any:
        if self._url is not None and "+" not in self._url:
            import redis

            self._client = redis.Redis.from_url(self._url)
        return self._peak_mib

    def _peak_mib(self) -> float:
        if self._client is None:
            return 0.0
        return float(self._client.info("memory")["used_memory_peak"]) / MIB

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_mib() -> float:
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
