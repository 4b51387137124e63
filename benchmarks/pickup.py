"""The pickup gateway: one gateway, its clients and Redis, all on this machine.

The known gateway (Node) can't be installed from a registry; its figures, measured on two cores
with 1.2 KB payloads in the same kind of run, stand beside ours for orientation. Each case runs in
several rounds, interleaved; a round from which CPU time was stolen is repeated.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

from benchmarks.measure import ATTEMPTS_MAX, STEAL_MAX, cpu_times, redis_figures, steal_since
from benchmarks.sizes import count, rounds, sizes

ROUNDS = rounds(3)
CLIENTS = count(10_000, least=50)
TICK = os.sysconf("SC_CLK_TCK")
ENV = {
    "ANGARIUM_PICKUP__PORT": "0",
    # What one case leaves behind must not be moved to the database in the middle of another.
    "ANGARIUM_PICKUP__THRESHOLD_TIMESTAMP": "3600000",
    # Without removals nothing is acknowledged, and the window must not end the run.
    "ANGARIUM_LIMITS__PICKUP_SENDING_MESSAGES_MAX": "1000000",
    "ANGARIUM_LIMITS__PICKUP_QUEUE_MESSAGES_MAX": "1000000",
    "ANGARIUM_LIMITS__PICKUP_QUEUE_BYTES_MAX": "2000000000",
}


@dataclass
class Case:
    title: str
    name: str
    options: Mapping[str, Any]
    known: str
    rates: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    redis_us: list[float] = field(default_factory=list)
    gateway_us: list[float] = field(default_factory=list)


def _cases() -> list[Case]:
    many = {"messages": count(20_000, least=200), "in_flight": 64}
    queued = count(16_000, least=1_600) // 16 * 16
    few = {"messages": count(3_000, least=100), "in_flight": 1}
    return [
        Case("add, one by one", "add", few, "1.5"),
        Case("add, 64 in flight", "add", many, "12"),
        Case("add → live, 1 session", "live", {**many, "sessions": 1, "remove": False}, "5.7"),
        Case("add → live, 100 sessions", "live", {**many, "sessions": 100, "remove": False}, "4.2"),
        Case(
            "add → live → remove, 1 session", "live", {**many, "sessions": 1, "remove": True}, "2.1"
        ),
        Case("add → live → remove, 100", "live", {**many, "sessions": 100, "remove": True}, "1.4"),
        Case("take + remove, 1 queue of 1,000", "take", {"messages": 1_000, "queues": 1}, "1.4"),
        Case("take + remove, 16 queues", "take", {"messages": queued, "queues": 16}, "4.6"),
    ]


def main() -> None:
    with ServerProcess() as server, RoleProcess(["serve", "gateway"], _env(server)) as role:
        cases = _cases()
        for _ in range(ROUNDS):
            for case in cases:
                _measure(case, server, role)
        _print_rates(cases)
    # Each on a server of its own, which nothing was left on.
    with ServerProcess() as server, RoleProcess(["serve", "gateway"], _env(server)) as role:
        _print_latency(role)
    with ServerProcess() as server, RoleProcess(["serve", "gateway"], _env(server)) as role:
        _print_depth(role)
    _print_crowd()


def _env(server: ServerProcess) -> dict[str, str]:
    return {**ENV, "ANGARIUM_REDIS_URL": server.url}


def _url(role: RoleProcess) -> str:
    return f"ws://127.0.0.1:{role.ports['gateway']}/"


def _drive(role: RoleProcess, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.pickup_driver", _url(role), name]
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [*command, json.dumps(options)], cwd=root, capture_output=True, text=True, timeout=170,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-800:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(case: Case, server: ServerProcess, role: RoleProcess) -> None:
    witness = server.client()
    for _ in range(ATTEMPTS_MAX):
        before, cpu, stolen = redis_figures(witness), _process_s(role.pid), cpu_times()
        found = _drive(role, case.name, case.options)
        after, cpu_after = redis_figures(witness), _process_s(role.pid)
        if steal_since(stolen) <= STEAL_MAX:
            break
    messages = case.options["messages"]
    case.rates.append(found["rate"])
    case.calls.append((after[0] - before[0]) / messages)
    case.redis_us.append((after[1] - before[1]) * 1e6 / messages)
    case.gateway_us.append((cpu_after - cpu) * 1e6 / messages)


def _process_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _print_rates(cases: list[Case]) -> None:
    print("## One gateway, 1.2 KB payloads, journal on\n")
    print(
        "| | messages/s | spread | known gateway, thousand/s | ratio | ratio spread "
        "| Redis calls per message | Redis CPU µs | gateway CPU µs |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for case in cases:
        rate, known = statistics.median(case.rates), 1000 * float(case.known)
        print(
            f"| {case.title} | {rate:,.0f} | {min(case.rates):,.0f}–{max(case.rates):,.0f} "
            f"| {case.known} | {rate / known:.2f} "
            f"| {min(case.rates) / known:.2f}–{max(case.rates) / known:.2f} "
            f"| {statistics.median(case.calls):.3f} | {statistics.median(case.redis_us):.0f} "
            f"| {statistics.median(case.gateway_us):.0f} |"
        )


def _print_depth(role: RoleProcess) -> None:
    print("\n## What a take and a removal of ten cost, by the length of the queue\n")
    print("| messages waiting | p50 ms |\n|---:|---:|")
    for waiting in sizes(1_000, 10_000, 100_000):
        print(f"| {waiting:,} | {_drive(role, 'depth', {'waiting': waiting})['p50_ms']:.2f} |")


def _print_latency(role: RoleProcess) -> None:
    print("\n## Added → received, with removal\n")
    print("| | p50 ms | p99 ms | received |\n|---|---:|---:|---:|")
    for sessions, per_s in ((1, 100), (100, 100), (1_000, 100), (100, 1_000), (100, 5_000)):
        seconds = count(10 if per_s == 100 else 6)
        options = {"sessions": sessions, "per_s": per_s, "seconds": seconds}
        found = _undisturbed(role, options)
        print(
            f"| {sessions:,} session{'s' if sessions > 1 else ''}, {per_s:,}/s "
            f"| {found['p50_ms']:.2f} | {found['p99_ms']:.2f} "
            f"| {found['received']:,} of {found['sent']:,} |"
        )


def _undisturbed(role: RoleProcess, options: Mapping[str, Any]) -> dict[str, Any]:
    """One stall of another machine would be the whole of a p99."""
    for _ in range(ATTEMPTS_MAX):
        stolen = cpu_times()
        found = _drive(role, "latency", options)
        if steal_since(stolen) <= STEAL_MAX:
            break
    return found


def _print_crowd() -> None:
    print("\n## A crowd of clients, each with a live session\n")
    print("| clients | opened in s | gateway MB | KB per client | messages/s to all | received |")
    print("|---:|---:|---:|---:|---:|---:|")
    with ServerProcess() as server, RoleProcess(["serve", "gateway"], _env(server)) as role:
        before = _memory_mb(role.pid)
        with _crowd(role) as (opened_mb, found):
            after = opened_mb - before
            print(
                f"| {CLIENTS:,} | {found['opened_s']:.1f} | {opened_mb:.0f} "
                f"| {after * 1024 / CLIENTS:.1f} | {found['rate']:,.0f} | {found['received']:,} |"
            )


@contextmanager
def _crowd(role: RoleProcess) -> Iterator[tuple[float, dict[str, Any]]]:
    command = [sys.executable, "-m", "benchmarks.pickup_driver", _url(role), "crowd"]
    with subprocess.Popen(
        [*command, json.dumps({"clients": CLIENTS})],
        cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True,
    ) as driver:  # fmt: skip
        assert driver.stdout is not None
        json.loads(driver.stdout.readline())
        time.sleep(1)
        memory_mb = _memory_mb(role.pid)
        yield memory_mb, json.loads(driver.stdout.readline())


def _memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
