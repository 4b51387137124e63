"""A service that records its hook calls, for the tests of `runtime/service.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from angarium.runtime.service import Service
from tests.kit.clock import FakeClock
from tests.kit.eventually import Signal


class Recorder(Service):
    """Records its hook calls; a test may add code to three of them."""

    def __init__(self, name: str = "recorder", clock: FakeClock | None = None) -> None:
        super().__init__(name, clock=clock)
        self.hooks_called: list[str] = []
        self.starting: Callable[[], Awaitable[None]] | None = None
        self.stopping: Callable[[], Awaitable[None]] | None = None
        self.closing: Callable[[], Awaitable[None]] | None = None

    async def on_start(self) -> None:
        self.hooks_called.append("start")
        self.ports = {"http": 1}
        if self.starting is not None:
            await self.starting()

    async def on_quiet(self) -> None:
        self.hooks_called.append("quiet")

    async def on_stop(self) -> None:
        self.hooks_called.append("stop")
        if self.stopping is not None:
            await self.stopping()
        await super().on_stop()

    async def on_close(self) -> None:
        self.hooks_called.append("close")
        if self.closing is not None:
            await self.closing()


@dataclass
class Block:
    """An async function that waits until `release`, and signals its start and cancellation."""

    entered: Signal = field(default_factory=Signal)
    cancelled: Signal = field(default_factory=Signal)
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self) -> None:
        self.entered.fire()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.fire()
            raise


def others() -> set[asyncio.Task[object]]:
    current = asyncio.current_task()
    return {task for task in asyncio.all_tasks() if task is not current}
