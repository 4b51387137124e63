"""What each running process says of itself every few seconds, and how others read it.

A role reports a flat table of numbers and words; the report lives as long as the next two would
take to come, so a process that died is gone from the list by itself. The API role reads all of
them for Prometheus, the dashboard and `top`. The report is for people: nothing decides by it.
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

# The seed's live figure comes every 3 s; all roles keep to it.
INTERVAL_S = 3.0
# Two reports may be missed before a process counts as gone.
TTL_MS = 10_000


def tasks_running() -> int:
    """Tasks of this process's loop: what a leak of them shows in. 0 outside of the loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


Gauge("angarium_tasks", "Asyncio tasks of this process.").set_function(tasks_running)


class ProcessReport(msgspec.Struct, frozen=True):
    """One role of one process, as it last reported."""

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
    """A role's own report: `report` in a loop of INTERVAL_S, `withdraw` on the way out."""

    def __init__(self, runtime: Runtime, role: str) -> None:
        self._runtime = runtime
        self._role = role
        self._keys = [runtime.keyspace.name(keys.PROCESSES, 0)]

    async def report(self, figures: Mapping[str, float | str]) -> None:
        runtime = self._runtime
        # JSON knows no infinity, and a mean of nothing is no figure.
        sayable = {
            name: value if isinstance(value, str) else float(value)
            for name, value in figures.items()
            if isinstance(value, str) or math.isfinite(value)
        }
        report = ProcessReport(
            self._role,
            runtime.actor,
            socket.gethostname(),
            os.getpid(),
            sayable,
            tasks=tasks_running(),
            heap_bytes=heap_bytes(),
            python_blocks=python_blocks(),
            unmatched_replies=runtime.redis.unmatched,
        )
        await self._send(msgspec.json.encode(report))

    async def withdraw(self) -> None:
        """Gone on purpose: the list need not wait for the report to grow old."""
        await self._send(b"")

    async def _send(self, report: bytes) -> None:
        name = f"{self._role}@{self._runtime.actor}"
        args = (name, report, TTL_MS)
        await self._runtime.run(REPORT_PROCESS, 0, self._keys, args, durable=False)


async def read_processes(runtime: Runtime) -> list[ProcessReport]:
    """Every role of every live process that this version can read, by role and actor."""
    reply = await runtime.run(
        LIST_PROCESSES, 0, [runtime.keyspace.name(keys.PROCESSES, 0)], [TTL_MS]
    )
    found = []
    for at_ms, report in zip(reply[::2], reply[1::2], strict=True):
        # One that another version wrote differently must not hide all the others.
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            figures = msgspec.json.decode(report, type=ProcessReport)
            found.append(msgspec.structs.replace(figures, at_ms=int(at_ms)))
    return sorted(found, key=lambda each: (each.role, each.actor))
