"""The dashboard's operations: the overview, its history, the modules' lists, the static files.

A service of the role `api` samples all modules every few seconds and keeps the last minutes of
rates. A new page has its charts at once, and a hundred open pages cost Redis no more than one. An
outdated sample is never returned: the API takes a new one or reports that Redis is unavailable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from angarium.runtime.application import Application
from angarium.runtime.errors import RedisUnavailable
from angarium.runtime.http_api import HttpApi, Operation, reply
from angarium.runtime.process_report import INTERVAL_S
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.server.dashboard.overview import Overview, OverviewSampler
from angarium.server.dashboard.page import Files, asset_routes
from angarium.server.dashboard.transaction_views import TransactionViews
from angarium.server.dashboard.views import ModuleViews

# Five minutes at a sample every three seconds.
POINTS_MAX = 100
# A sample that takes longer is abandoned.
SAMPLE_S_MAX = 2.5
OLD_S = 2 * INTERVAL_S + SAMPLE_S_MAX


class History(msgspec.Struct, frozen=True):
    """The last minutes, oldest first: the times, and the values at each time."""

    at_ms: list[int]
    rates: dict[str, list[float]]
    waiting: dict[str, list[int]]


class DashboardSampler(Service):
    """Takes the samples, and closes the views' databases when it stops."""

    def __init__(self, runtime: Runtime, views: Sequence[ModuleViews | TransactionViews]) -> None:
        super().__init__("dashboard", clock=runtime.clock)
        self._runtime = runtime
        self._sampler = OverviewSampler(runtime)
        self._views = views
        self._points: deque[Overview] = deque(maxlen=POINTS_MAX)
        self._taken_s = 0.0

    async def on_start(self) -> None:
        self.loop("sample", self.run_once, INTERVAL_S)

    async def on_close(self) -> None:
        for views in self._views:
            await views.close()

    async def run_once(self) -> int:
        """Returns the number of stored samples."""
        try:
            async with asyncio.timeout(SAMPLE_S_MAX):
                sample = await self._sampler.sample()
        except TimeoutError:
            raise RedisUnavailable(f"no sample within {SAMPLE_S_MAX} s") from None
        self._points.append(sample)
        self._taken_s = self.clock.monotonic()
        return len(self._points)

    async def overview(self, _: Request) -> Response:
        if not self._points or self.clock.monotonic() - self._taken_s > OLD_S:
            # The loop backs off after failures; a caller does not wait for it.
            await self.run_once()
        return reply(self._points[-1])

    async def history(self, _: Request) -> Response:
        return reply(_history(self._points))


def _history(points: Sequence[Overview]) -> History:
    rates: dict[str, list[float]] = {}
    waiting: dict[str, list[int]] = {}
    for point in points:
        for name, rate in point.rates.items():
            rates.setdefault(name, []).append(rate)
        for module in point.modules:
            waiting.setdefault(module.name, []).append(module.waiting)
    return History([point.at_ms for point in points], rates, waiting)


def http_api(runtime: Runtime, app: Application) -> HttpApi:
    modules, transactions = ModuleViews(runtime), TransactionViews(runtime)
    sampler = DashboardSampler(runtime, (modules, transactions))
    operations = [
        Operation(
            "GET", "/v1/dashboard", "show_dashboard",
            "All modules: waiting work, rates, and notices that need attention",
            sampler.overview, answers={200: Overview},
        ),
        Operation(
            "GET", "/v1/dashboard/history", "show_dashboard_history",
            "Rates and waiting work of the last minutes, as this process sampled them",
            sampler.history, answers={200: History},
        ),
        *modules.operations(),
        *transactions.operations(),
    ]  # fmt: skip
    return HttpApi("dashboard", operations, sampler, asset_routes(Files()))
