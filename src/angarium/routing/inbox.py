"""The role `inbox`: one instance of the application, which handles the messages of its keys.

Each process is one instance with its own uid. Its function, `@app.inbox()`, gets an
`InboundMessage` and may return a response for a caller that waits at a relay.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from angarium.routing.consumer import ConsumerOptions, InstanceConsumer
from angarium.routing.items import InboundMessage
from angarium.routing.limits import RoutingLimits
from angarium.routing.recorded_rules import record_stale_after
from angarium.routing.role_settings import check_layout, routing_store
from angarium.routing.settings import RoutingSettings
from angarium.runtime.application import Application, Caller
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import CommonSettings


def check(settings: CommonSettings, app: Application) -> None:
    check_layout(settings)
    app.handler("inbox", "inbox")


def build(runtime: Runtime, app: Application) -> Service:
    return Inbox(runtime, app)


class Inbox(InstanceConsumer):
    def __init__(self, runtime: Runtime, app: Application) -> None:
        settings = runtime.settings
        routing, limits = settings.group(RoutingSettings), settings.limits_of(RoutingLimits)
        handler = app.handler("inbox", "inbox")
        options = ConsumerOptions(
            stale_after_ms=routing.stale_after_ms,
            handlers=routing.inbox_handlers,
            attempts_max=routing.inbox_attempts,
            keys_max=limits.inbox_keys_max,
            delayed_keys_max=limits.inbox_delayed_keys_max,
            retry=handler.retry,
        )
        store = runtime.store(routing_store)
        self._caller = Caller(routing.inbox_handlers)
        uid = routing.inbox_uid or str(uuid4())
        super().__init__(store, uid, self._call, options, clock=runtime.clock)
        self._runtime = runtime
        self._function = handler
        self._reporter = ProcessReporter(runtime, "inbox")
        self._reported = 0

    async def on_start(self) -> None:
        settings = self._runtime.settings.group(RoutingSettings)
        await record_stale_after(self._runtime, settings.stale_after_ms)
        await super().on_start()
        self.loop("report", self._report, INTERVAL_S, until="stop")

    async def on_stop(self) -> None:
        await super().on_stop()
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        self._caller.close()

    async def _call(self, message: InboundMessage) -> Any:
        if self._function.is_async:
            return await self._caller.call(self._function, message)
        running = asyncio.ensure_future(self._caller.call(self._function, message))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread can't be interrupted. After a time-out the key waits for its end, so that two
            # functions never work on one key.
            if self._taking_work() and not running.done():
                await asyncio.wait({running})
            running.cancel()
            raise

    async def _report(self) -> None:
        now = self.metrics
        metrics: dict[str, float | str] = {
            "uid": self.uid,
            "keys_in_hand": self.claimed_keys,
            "handled": now.handled,
            "handled_per_s": round((now.handled - self._reported) / INTERVAL_S, 1),
            "failed_attempts": now.failed,
            "dead": now.dead,
            "let_go": now.released,
        }
        self._reported = now.handled
        await self._reporter.report(metrics)
        self.log.debug("metrics", **metrics)
