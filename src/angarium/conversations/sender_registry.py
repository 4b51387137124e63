"""Which senders the running processes have.

A process that sends replies reports its senders every few seconds. A report expires when the next
ones fail to come, so the senders of a dead process do not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from angarium.conversations import keys
from angarium.runtime.process_report import ProcessReports, read_processes
from angarium.runtime.runtime import Runtime

ROLE = "conversations"


class SenderProcess(msgspec.Struct, frozen=True):
    actor: str
    senders: tuple[str, ...]


class SenderRegistry:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reports = ProcessReports(runtime, keys.SENDER_PROCESSES)

    async def register(self, senders: Sequence[str]) -> None:
        process = SenderProcess(self._runtime.actor, tuple(senders))
        await self._reports.put(self._runtime.actor, msgspec.json.encode(process))

    async def withdraw(self) -> None:
        await self._reports.put(self._runtime.actor, b"")

    async def running(self) -> Mapping[str, int]:
        """Sender name → number of running processes that have it."""
        found: dict[str, int] = {}
        for process in await self._processes():
            for name in process.senders:
                found[name] = found.get(name, 0) + 1
        return found

    async def old_version_runs(self) -> bool:
        """Whether a process of 0.1.0 runs: it takes every reply and registers no senders."""
        registered = {process.actor for process in await self._processes()}
        running = await read_processes(self._runtime)
        return any(process.role == ROLE and process.actor not in registered for process in running)

    async def _processes(self) -> list[SenderProcess]:
        found = []
        for _, report in await self._reports.read():
            # A report in another version's format must not hide the others.
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(msgspec.json.decode(report, type=SenderProcess))
        return found
