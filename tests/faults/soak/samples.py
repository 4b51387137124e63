"""What can be seen of the processes and of Redis from outside, at one moment.

Memory, files and CPU come from the kernel; tasks from what each process reports of itself, those of
the API from its metrics; keys, memory and connections from Redis. Nothing is asked of a role that
it does not tell its operators.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp

from angarium.runtime.process_report import read_processes
from angarium.runtime.runtime import Runtime
from tests.faults.campaign.fleet import Member

MIB = 1_048_576
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SCAN_COUNT = 1_000
# What differs between two keys of one kind: ids of any make, and numbers.
_DIFFERENT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9A-Za-z_=-]{20,}|\d+")

Sample = Mapping[str, float]
"""Name of a series, «whose: what», and its value."""


@dataclass(frozen=True)
class Kind:
    """All keys of one pattern."""

    keys: int
    bytes: int
    expiring: int


def of_process(name: str, pid: int) -> dict[str, float]:
    folder = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    # The name stands in parentheses and may hold anything; times are the 12th and 13th behind it.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return {
        f"{name}: MB": int(status["VmRSS"].split()[0]) / 1024,
        f"{name}: files": sum(1 for _ in (folder / "fd").iterdir()),
        f"{name}: CPU s": (int(fields[11]) + int(fields[12])) / TICKS_PER_S,
    }


async def reported(members: list[Member], runtime: Runtime, api_url: str) -> dict[str, float]:
    """What processes say of themselves: tasks, and memory in use."""
    by_pid = {each.pid: each for each in await read_processes(runtime)}
    found: dict[str, float] = {}
    for each in members:
        if each.pid in by_pid:
            told = by_pid[each.pid]
            found |= _inside(each.name, told.tasks, told.heap_bytes, told.python_blocks)
    async with aiohttp.ClientSession() as session, session.get(f"{api_url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    metrics = dict(each.split(" ", 1) for each in lines if each.startswith("angarium_"))
    names = ("angarium_tasks", "angarium_heap_bytes", "angarium_python_blocks")
    return found | _inside("api 1", *(float(metrics[name]) for name in names))


def _inside(name: str, tasks: float, heap_bytes: float, blocks: float) -> dict[str, float]:
    return {
        f"{name}: tasks": tasks,
        f"{name}: MB in use": heap_bytes / MIB,
        f"{name}: blocks": blocks,
    }


def of_redis(witness: Any) -> dict[str, float]:
    memory, keyspace = witness.info("memory"), witness.info("keyspace")["db0"]
    return {
        "redis: MB": memory["used_memory"] / MIB,
        "redis: resident MB": memory["used_memory_rss"] / MIB,
        "redis: lasting keys": keyspace["keys"] - keyspace["expires"],
        "redis: expiring keys": keyspace["expires"],
        "redis: connections": len(witness.client_list()),
    }


def kinds(witness: Any) -> dict[str, Kind]:
    """Every key by its pattern: how many, how large, how many of them expire."""
    found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    # Many at once: one by one, a hundred thousand keys are minutes beside the load.
    for keys in batched(witness.scan_iter(count=SCAN_COUNT), SCAN_COUNT):
        asked = witness.pipeline(transaction=False)
        for key in keys:
            asked.memory_usage(key, samples=0)
            asked.pttl(key)
        answers = iter(asked.execute())
        for key, size, ttl_ms in zip(keys, answers, answers, strict=True):
            if size is not None:  # else it has gone
                kind = found[_DIFFERENT.sub("#", key)]
                kind[0] += 1
                kind[1] += size
                kind[2] += ttl_ms >= 0
    return {name: Kind(*counts) for name, counts in found.items()}


def batched(items: Iterator[str], size: int) -> Iterator[list[str]]:
    while some := list(islice(items, size)):
        yield some
