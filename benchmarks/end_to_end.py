"""Measuring systems of several processes: rounds in turn, ratios round by round, cost by process.

What `measure.py` does for calls, for messages that travel through processes: besides rate, calls
and CPU of Redis it takes the CPU time of each process from the kernel. A round from which more
than `STEAL_MAX` was stolen is repeated. Nothing is flushed, for leaders live in Redis: each system
clears away its own results before a round.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.measure import ATTEMPTS_MAX, STEAL_MAX, cpu_times, steal_since

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class System(Protocol):
    """Processes that do messages."""

    name: str

    def reset(self) -> None:
        """Clear away what the last round left."""

    def run(self, messages: int) -> None:
        """Send so many in, and return when all have come out."""

    def pids(self) -> Mapping[str, Sequence[int]]:
        """Of its processes, by role."""


@dataclass(frozen=True)
class Round:
    """One round; everything but the rate and the steal is per message."""

    rate: float
    commands: float  # inside scripts too
    scripts: float
    redis_us: float
    role_us: Mapping[str, float]
    steal: float


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


def in_turn(systems: Mapping[System, int], witness: Any, rounds: int) -> dict[str, list[Round]]:
    """Each system does its number of messages in each round, one after the other."""
    results: dict[str, list[Round]] = {system.name: [] for system in systems}
    for system, messages in systems.items():
        system.run(max(1, messages // 10))
    for _ in range(rounds):
        for system, messages in systems.items():
            results[system.name].append(measured(system, messages, witness))
    return results


def measured(system: System, messages: int, witness: Any) -> Round:
    for _ in range(ATTEMPTS_MAX):
        system.reset()
        before, roles_before, stolen = _redis(witness), _roles(system), cpu_times()
        began = time.perf_counter()
        system.run(messages)
        seconds = time.perf_counter() - began
        after, roles_after, steal = _redis(witness), _roles(system), steal_since(stolen)
        if steal <= STEAL_MAX:
            break
    commands, scripts, cpu_s = (b - a for a, b in zip(before, after, strict=True))
    return Round(
        rate=messages / seconds,
        commands=commands / messages,
        scripts=scripts / messages,
        redis_us=cpu_s * 1e6 / messages,
        role_us={
            role: (roles_after[role] - used_s) * 1e6 / messages
            for role, used_s in roles_before.items()
        },
        steal=steal,
    )


def table(results: Mapping[str, Sequence[Round]]) -> str:
    """Ratios are taken to the first system, round by round."""
    base = next(iter(results.values()))
    lines = [
        "| | messages/s | ratio | spread | Redis commands | script calls | Redis CPU µs "
        "| CPU spread | CPU µs of the processes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, rounds in results.items():
        ratio = Spread.of([one.rate / other.rate for one, other in zip(rounds, base, strict=True)])
        redis_us = Spread.of([one.redis_us for one in rounds])
        roles = ", ".join(
            f"{role} {statistics.median(one.role_us[role] for one in rounds):.1f}"
            for role in rounds[0].role_us
        )
        lines.append(
            f"| {name} | {statistics.median(one.rate for one in rounds):,.0f} "
            f"| {ratio.median:.2f} | {ratio.low:.2f}–{ratio.high:.2f} "
            f"| {statistics.median(one.commands for one in rounds):.2f} "
            f"| {statistics.median(one.scripts for one in rounds):.4f} "
            f"| {redis_us.median:.1f} | {redis_us.low:.1f}–{redis_us.high:.1f} | {roles} |"
        )
    steal = max(one.steal for rounds in results.values() for one in rounds)
    return "\n".join([*lines, "", f"{len(base)} rounds; at most {steal:.1%} of the CPU stolen."])


def wait_for(done: Any, deadline_s: float, what: str) -> None:
    """Look every 10 ms until `done()`; a benchmark that hangs must say where."""
    end = time.monotonic() + deadline_s
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {deadline_s:.0f} s")
        time.sleep(0.01)


def _redis(witness: Any) -> tuple[float, float, float]:
    """Commands, script calls and CPU seconds so far."""
    stats = witness.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in stats.items()}
    cpu = witness.info("cpu")
    return (
        sum(calls.values()),
        calls.get("evalsha", 0) + calls.get("eval", 0),
        float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
    )


def _roles(system: System) -> dict[str, float]:
    """CPU seconds of each role so far, all its processes together."""
    return {role: sum(map(_cpu_s, pids)) for role, pids in system.pids().items()}


def _cpu_s(pid: int) -> float:
    # The name stands in parentheses and may hold anything; times are the 12th and 13th behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
