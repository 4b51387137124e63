"""A service that writes down what happens to it, for the tests of `runtime/service.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from angarium.runtime.service import Service
from tests.kit.clock import FakeClock
from tests.kit.eventually import Signal


class Recorder(Service):
    """Writes down its hooks; a test may replace any of them."""

    def __init__(self, name: str = "recorder", clock: FakeClock | None = None) -> None:
        super().__init__(name, clock=clock)
        self.story: list[str] = []
        self.starting: Callable[[], Awaitable[None]] | None = None
        self.stopping: Callable[[], Awaitable[None]] | None = None
        self.closing: Callable[[], Awaitable[None]] | None = None

    async def on_start(self) -> None:
        self.story.append("start")
        self.ports = {"http": 1}
        if self.starting is not None:
            await self.starting()

    async def on_quiet(self) -> None:
        self.story.append("quiet")

    async def on_stop(self) -> None:
        self.story.append("stop")
        if self.stopping is not None:
            await self.stopping()
        await super().on_stop()

    async def on_close(self) -> None:
        self.story.append("close")
        if self.closing is not None:
            await self.closing()


@dataclass
class Block:
    """Something that waits for ever, and can be watched doing it."""

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
