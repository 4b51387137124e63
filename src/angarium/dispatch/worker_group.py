"""The workers of one process that serve several queues: one for each function of the application.

Each has a port, a window and slots of its own, so that a slow queue does not hold up another one.
The process reports their metrics as one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from angarium.dispatch.worker import Worker
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service

# The deadline of the group ends the wait for its workers.
NO_DEADLINE_S = 1e9
CLOSE_S_MAX = 1.0


class WorkerGroup(Service):
    def __init__(self, runtime: Runtime, workers: Sequence[Worker]) -> None:
        super().__init__("worker", clock=runtime.clock)
        self.workers = workers
        self._reporter = ProcessReporter(runtime, "worker")

    async def on_start(self) -> None:
        for each in self.workers:
            await each.start()
            self.ports.update(each.ports)
        self.loop("metrics", self._report_once, INTERVAL_S, until="stop")

    async def on_quiet(self) -> None:
        await asyncio.gather(*(each.quiet() for each in self.workers))

    async def on_stop(self) -> None:
        await asyncio.gather(*(each.stop(NO_DEADLINE_S) for each in self.workers))
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        await asyncio.gather(*(each.stop(CLOSE_S_MAX) for each in self.workers))

    async def _report_once(self) -> None:
        total: Counter[str] = Counter()
        for each in self.workers:
            total.update(each.figures())
            each.warnings.flush()
        await self._reporter.report(total)
