"""The role `lake`: Spark as a child process, watched, started again when it fails, reported.

Spark and its Java never share a process with the modules: a pause of theirs would be everybody's.
Where Spark can't run (no Java, packages not installed, too little memory) the role says so once, in
one line, and the rest of the process goes on without a lake.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process

from angarium.lake.runner import Report, told_to_child
from angarium.lake.settings import LakeSettings
from angarium.lake.spark import fresh_log
from angarium.lake.tables import check_packages
from angarium.runtime import process_report
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError, SettingInvalid
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Service
from angarium.runtime.settings import CommonSettings

# Spark finishes the batch it is in; what is left of the host's deadline is for killing it.
END_S_MAX = 4.0
LINE_BYTES_MAX = 1 << 20
# In the home folder; begun anew with each start of Spark, with the one before beside it.
LOG = "lake.log"


class LakeFailed(AngariumError):
    """The child ended; it is started again after a pause."""

    code = "lake_failed"


def check(settings: CommonSettings, app: Application) -> None:
    """Nothing is refused here: a lake that can't run must not keep the modules from running."""


def build(runtime: Runtime, app: Application) -> Service:
    return LakeService(runtime)


class LakeService(Service):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("lake", clock=runtime.clock)
        self._runtime = runtime
        self._settings = runtime.settings
        self._figures = process_report.ProcessReporter(runtime, "lake")
        self._child: Process | None = None
        self._ending = False
        self.report: Report = {"state": "waiting"}

    async def on_start(self) -> None:
        self.spawn("spark", self._run)
        self.loop("metrics", self._tell, process_report.INTERVAL_S)

    async def on_stop(self) -> None:
        await self._end_child()
        await self._figures.withdraw()

    async def on_close(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.wait()

    async def _run(self) -> None:
        """One life of the child. Returning or raising has it started again, after a pause."""
        await self.clock.sleep(self._settings.group(LakeSettings).start_delay_ms / 1000)
        problem = await asyncio.to_thread(_problem, self._settings)
        if problem is not None:
            self.report = {"state": "off", "reason": problem}
            self.log.warning("no_lake", reason=problem)
            await asyncio.Event().wait()  # until the role is stopped: nothing will have changed
        child = self._child = await self._start_child()
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps(told_to_child(self._settings)).encode() + b"\n")
            async for line in child.stdout:
                with contextlib.suppress(ValueError):
                    self.report = {**self.report, **json.loads(line)}
            code = await child.wait()
        finally:
            # Cancelled, or the child is broken: it must not be left to itself.
            if child.returncode is None:
                child.kill()
                await child.wait()
            if child.stdin is not None:
                child.stdin.close()
        if code != 0 and not self._ending:
            reason = self.report.get("reason", f"it ended with code {code}")
            raise LakeFailed(f"{reason}; its log is {self._settings.home / LOG}")

    async def _start_child(self) -> Process:
        """Spark and Java write much, and not as our log does: they have a file of their own."""
        with fresh_log(self._settings.home / LOG) as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "angarium.lake.runner",
                stdin=PIPE, stdout=PIPE, stderr=log, limit=LINE_BYTES_MAX,
                # A terminal's Ctrl-C is for this process, which then ends the child and Java.
                start_new_session=True,
            )  # fmt: skip

    async def _end_child(self) -> None:
        self._ending = True  # a child that is still loading ends by the signal, with its code
        child = self._child
        if child is None or child.returncode is not None:
            return
        child.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S_MAX):
                await child.wait()

    async def _tell(self) -> None:
        shown = dict(self.report)
        newest_ms = shown.pop("newest_ms", 0)
        if isinstance(newest_ms, int | float) and newest_ms:
            seconds, _ = await self._runtime.redis.call("TIME")
            shown["freshest_s"] = max(0.0, int(seconds) - newest_ms / 1000)
        await self._figures.report(shown)


def _problem(settings: CommonSettings) -> str | None:
    """Why Spark can't run here, if it can't."""
    from angarium.lake.java import find_java
    from angarium.lake.spark import heap_mib, memory_mib
    from angarium.lake.tables import Lake

    try:
        check_packages()
        find_java(settings.home.absolute())
        heap_mib(memory_mib())
        Lake.of(settings).check()
    except SettingInvalid as error:
        return str(error)
    return None
