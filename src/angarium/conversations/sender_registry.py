"""Which senders the running processes have, by their signs of life.

A process that sends replies says every few seconds which senders it has; what it said lives as
long as the next reports would take to come, so the senders of a dead process do not count. People
and the scripts' callers read it: a reply whose sender nobody has waits, and is shown as such.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from angarium.runtime import keyspace as keys
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

    async def live(self) -> Mapping[str, int]:
        """How many running processes have each sender, by its name."""
        found: dict[str, int] = {}
        for process in await self._processes():
            for name in process.senders:
                found[name] = found.get(name, 0) + 1
        return found

    async def older_beside(self) -> bool:
        """Whether a process of 0.1.0 runs, which takes every reply and registers no senders."""
        registered = {process.actor for process in await self._processes()}
        running = await read_processes(self._runtime)
        return any(process.role == ROLE and process.actor not in registered for process in running)

    async def _processes(self) -> list[SenderProcess]:
        reply = await self._runtime.run(LIST_PROCESSES, 0, self._keys, [TTL_MS])
        found = []
        for report in reply[1::2]:
            # One that another version wrote differently must not hide all the others.
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(msgspec.json.decode(report, type=SenderProcess))
        return found

    async def _report(self, report: bytes) -> None:
        args = (self._runtime.actor, report, TTL_MS)
        await self._runtime.run(REPORT_PROCESS, 0, self._keys, args, durable=False)
