"""Every running process reports its metrics to Redis every few seconds; others read the reports.

A role reports a flat table of numbers and texts. A report expires after about three intervals, so
the list drops a dead process by itself. The API role reads all reports for Prometheus, the
dashboard and `top`. Reports are for people; no code makes decisions from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from collections.abc import Mapping

import msgspec
from prometheus_client import Gauge

from angarium.runtime import keys
from angarium.runtime.process_memory import heap_bytes, python_blocks
from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script

REPORT_PROCESS = load_script("angarium.runtime", "report_process")
LIST_PROCESSES = load_script("angarium.runtime", "list_processes")

# The dashboard shows new numbers every 3 s; all roles report at that interval.
INTERVAL_S = 3.0
# Two reports may be missed before a process counts as gone.
TTL_MS = 10_000


def tasks_running() -> int:
    """Number of tasks in this process's event loop; 0 outside of a loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


Gauge("angarium_tasks", "Asyncio tasks of this process.").set_function(tasks_running)


class ProcessReport(msgspec.Struct, frozen=True):
    """The last report of one role of one process."""

    role: str
    actor: str
    host: str
    pid: int
    figures: dict[str, float | str]
    at_ms: int = 0
    tasks: int = 0
    heap_bytes: int = 0
    python_blocks: int = 0
    unmatched_replies: int = 0
    """Connections to Redis that were closed because their replies did not match."""


class ProcessReporter:
    """Reports for one role: call `report` every INTERVAL_S, and `withdraw` when the role stops."""

    def __init__(self, runtime: Runtime, role: str) -> None:
        self._runtime = runtime
        self._role = role
        self._keys = [runtime.keyspace.name(keys.PROCESSES, 0)]

    async def report(self, figures: Mapping[str, float | str]) -> None:
        runtime = self._runtime
        # JSON has no infinity and no NaN.
        finite = {
            name: value if isinstance(value, str) else float(value)
            for name, value in figures.items()
            if isinstance(value, str) or math.isfinite(value)
        }
        report = ProcessReport(
            self._role,
            runtime.actor,
            socket.gethostname(),
            os.getpid(),
            finite,
            tasks=tasks_running(),
            heap_bytes=heap_bytes(),
            python_blocks=python_blocks(),
            unmatched_replies=runtime.redis.unmatched,
        )
        await self._send(msgspec.json.encode(report))

    async def withdraw(self) -> None:
        """Remove the report now instead of waiting for it to expire."""
        await self._send(b"")

    async def _send(self, report: bytes) -> None:
        name = f"{self._role}@{self._runtime.actor}"
        args = (name, report, TTL_MS)
        await self._runtime.run(REPORT_PROCESS, 0, self._keys, args, durable=False)


async def read_processes(runtime: Runtime) -> list[ProcessReport]:
    """The reports of all live processes that this version can decode, by role and actor."""
    reply = await runtime.run(
        LIST_PROCESSES, 0, [runtime.keyspace.name(keys.PROCESSES, 0)], [TTL_MS]
    )
    found = []
    for at_ms, report in zip(reply[::2], reply[1::2], strict=True):
        # A report of another version that can't be decoded must not hide the others.

        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            decoded = msgspec.json.decode(report, type=ProcessReport)
            found.append(msgspec.structs.replace(decoded, at_ms=int(at_ms)))
    return sorted(found, key=lambda each: (each.role, each.actor))
