"""Which senders the running processes have.

A process that sends replies reports its senders every few seconds. A report expires when the next
ones fail to come, so the senders of a dead process do not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from angarium.conversations import keys
from angarium.runtime.process_report import LIST_PROCESSES, REPORT_PROCESS, TTL_MS, read_processes
from angarium.runtime.runtime import Runtime

ROLE = "conversations"


class SenderProcess(msgspec.Struct, frozen=True):
    actor: str
    senders: tuple[str, ...]


class SenderRegistry:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._keys = [runtime.keyspace.name(keys.SENDER_PROCESSES, 0)]

    async def register(self, senders: Sequence[str]) -> None:
        process = SenderProcess(self._runtime.actor, tuple(senders))
        await self._report(msgspec.json.encode(process))

    async def withdraw(self) -> None:
        await self._report(b"")

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
        reply = await self._runtime.run(LIST_PROCESSES, 0, self._keys, [TTL_MS])
        found = []
        for report in reply[1::2]:
            # A report in another version's format must not hide the others.
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(msgspec.json.decode(report, type=SenderProcess))
        return found

    async def _report(self, report: bytes) -> None:
        args = (self._runtime.actor, report, TTL_MS)
        await self._runtime.run(REPORT_PROCESS, 0, self._keys, args, durable=False)
