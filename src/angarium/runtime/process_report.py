"""Every running process reports its metrics to Redis every few seconds; others read the reports.

A role reports a flat table of numbers and texts. A report expires after about three intervals, so
the list drops a dead process by itself. The API role reads all reports for Prometheus, the
dashboard and `top`. Reports are for people; no code makes decisions from them.

A report has the memory that the process uses, as its two allocators report it. Resident memory also
contains free memory that the allocators keep, so it can rise for hours without a leak. The memory
in use does not; use it to decide whether a process leaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from prometheus_client import Gauge

from angarium.runtime import keys
from angarium.runtime.keyspace import Key
from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


def _find_mallinfo() -> Callable[[], _Mallinfo2] | None:
    """Only glibc 2.33 and later has mallinfo2."""
    try:
        found = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    found.restype = _Mallinfo2
    found.argtypes = ()
    asked: Callable[[], _Mallinfo2] = found
    return asked


_mallinfo = _find_mallinfo()


def heap_bytes() -> int:
    """Bytes of libc's heap in use by large objects and extensions; 0 where unknown."""
    if _mallinfo is None:
        return 0
    found = _mallinfo()
    return int(found.uordblks) + int(found.hblkhd)


def python_blocks() -> int:
    """Number of blocks of up to 512 bytes that Python has allocated."""

    return sys.getallocatedblocks()


Gauge("angarium_heap_bytes", "Bytes of libc's heap in use.").set_function(heap_bytes)
Gauge("angarium_python_blocks", "Small blocks of memory in use by Python.").set_function(
    python_blocks
)


class Report(NamedTuple):
    process: str
    report: bytes
    ttl_ms: int


class TimeToLive(NamedTuple):
    ttl_ms: int


class ReportRow(NamedTuple):
    at_ms: int
    report: bytes


class Reports(NamedTuple):
    rows: list[ReportRow]


# The dashboard shows new numbers every 3 s; all roles report at that interval.
INTERVAL_S = 3.0
# Two reports may be missed before a process counts as gone.
TTL_MS = 10_000


@cache
def report_under(key: Key) -> Transition[Any]:
    return Transition(
        "angarium.runtime",
        "report_process",
        keys={"processes": key},
        args=Report,
        replies={"reported": None, "withdrawn": None},
    )


@cache
def list_under(key: Key) -> Transition[Any]:
    return Transition(
        "angarium.runtime",
        "list_processes",
        keys={"processes": key},
        args=TimeToLive,
        replies={"found": Reports},
    )


REPORT_PROCESS = report_under(keys.PROCESSES)
LIST_PROCESSES = list_under(keys.PROCESSES)


class ProcessReports:
    """The reports of all processes under one key, by the process's name."""

    def __init__(self, runtime: Runtime, key: Key) -> None:
        self._runtime = runtime
        self._key = key

    async def put(self, process: str, report: bytes) -> str:
        """An empty report withdraws the one before."""
        args = Report(process, report, TTL_MS)
        return str(await self._runtime.call(report_under(self._key), 0, args, durable=False))

    async def read(self) -> list[ReportRow]:
        """Those that are not older than the time to live."""
        found: Reports = await self._runtime.call(list_under(self._key), 0, TimeToLive(TTL_MS))
        return found.rows


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
        self._process = f"{role}@{runtime.actor}"
        self._reports = ProcessReports(runtime, keys.PROCESSES)

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
        await self._reports.put(self._process, msgspec.json.encode(report))

    async def withdraw(self) -> None:
        """Remove the report now instead of waiting for it to expire."""
        await self._reports.put(self._process, b"")


async def read_processes(runtime: Runtime) -> list[ProcessReport]:
    """The reports of all live processes that this version can decode, by role and actor."""
    found = []
    for at_ms, report in await ProcessReports(runtime, keys.PROCESSES).read():
        # A report of another version that can't be decoded must not hide the others.
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            decoded = msgspec.json.decode(report, type=ProcessReport)
            found.append(msgspec.structs.replace(decoded, at_ms=at_ms))
    return sorted(found, key=lambda each: (each.role, each.actor))
