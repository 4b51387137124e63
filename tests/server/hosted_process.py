"""Runs sample services under the host: `python -m tests.server.hosted_process …`.

Each argument is a service, `name` or `name:quirk`. It prints each of its transitions on stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Sequence

from angarium.runtime import log
from angarium.runtime.service import Service
from angarium.server import host

# Short, so that the deadline's tests are short; long enough for a normal stop.
DEADLINE_S = 2.0


class LoggedService(Service):
    def __init__(self, name: str, quirk: str) -> None:
        super().__init__(name)
        self.quirk = quirk

    async def on_start(self) -> None:
        self.log_line("start")
        self.ports = {f"{self.name}-port": 1000 + len(self.name)}
        if self.quirk == "slow-start":
            await asyncio.Event().wait()
        if self.quirk == "no-start":
            raise ValueError("no luck")

    async def on_quiet(self) -> None:
        self.log_line("quiet")
        if self.quirk == "collector":
            self.log_line(f"{gc.get_freeze_count() > 1_000} {gc.get_threshold()[0] > 1_000}")

    async def on_stop(self) -> None:
        self.log_line("stop")
        if self.quirk == "slow-stop":
            await asyncio.Event().wait()
        if self.quirk == "blocked-stop":
            threading.Event().wait()

    async def on_close(self) -> None:
        self.log_line("close")

    def log_line(self, what: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(f"{what} {self.name}", flush=True)


def main(arguments: list[str]) -> int:
    log.configure()
    services = [
        LoggedService(name, quirk) for name, _, quirk in (a.partition(":") for a in arguments)
    ]
    composition = contextlib.nullcontext(services)
    return host.run(composition, deadline_s=DEADLINE_S, on_ready=all_ready)


def all_ready(_: Sequence[Service]) -> None:
    print("all", flush=True)
    log.logger("hosted").info("all_ready")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
