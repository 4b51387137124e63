"""The role `inbox`: an instance of the application that gets the messages of its keys.

Each process is one instance with a uid of its own. Its function, `@app.inbox()`, gets a `Message`
and may return an answer for a caller that waits at a relay.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from angarium.routing.items import Message
from angarium.routing.listening import check_layout, rules_of
from angarium.routing.mailbox import Mailbox, MailboxOptions
from angarium.routing.store import RoutingStore
from angarium.runtime.application import Angarium, Caller
from angarium.runtime.process_report import INTERVAL_S, ProcessReporter
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import Settings


def check(settings: Settings, app: Angarium) -> None:
    check_layout(settings)
    app.handler("inbox", "inbox")


def build(runtime: Runtime, app: Angarium) -> Service:
    return Inbox(runtime, app)


class Inbox(Mailbox):
    def __init__(self, runtime: Runtime, app: Angarium) -> None:
        settings = runtime.settings
        routing = settings.routing
        options = MailboxOptions(
            stale_after_ms=routing.stale_after_ms,
            handlers=routing.inbox_handlers,
            attempts_max=routing.inbox_attempts,
            keys_max=settings.limits.inbox_keys_max,
        )
        store = RoutingStore(runtime, rules_of(settings), settings.limits)
        handler = app.handler("inbox", "inbox")
        self._caller = Caller(routing.inbox_handlers)
        # An async function is awaited as it is: a frame less for each message.
        handle = handler.function if handler.is_async else self._call
        super().__init__(store, str(uuid4()), handle, options, clock=runtime.clock)
        self._function = handler
        self._reporter = ProcessReporter(runtime, "inbox")
        self._reported = 0

    async def on_start(self) -> None:
        await super().on_start()
        self.loop("figures", self._report, INTERVAL_S, until="stop")

    async def on_stop(self) -> None:
        await super().on_stop()
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        self._caller.close()

    async def _call(self, message: Message) -> Any:
        return await self._caller.call(self._function, message)

    async def _report(self) -> None:
        now = self.figures
        figures: dict[str, float | str] = {
            "uid": self.uid,
            "keys_in_hand": self.in_hand,
            "handled": now.handled,
            "handled_per_s": round((now.handled - self._reported) / INTERVAL_S, 1),
            "failed_attempts": now.failed,
            "dead": now.dead,
            "let_go": now.let_go,
        }
        self._reported = now.handled
        await self._reporter.report(figures)
        self.log.info("figures", **figures)
