"""Measuring honestly on a shared machine: ratios inside one run, interleaved, with the spread.

Stolen CPU time cuts rates fourfold, so a round in which more than `STEAL_MAX` was stolen is
thrown away and repeated. Redis is asked what it did: commands and CPU time per item.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEAL_MAX = 0.025
# A round that was stolen from is repeated; a machine that is always stolen from ends it.
ATTEMPTS_MAX = 6


@dataclass(frozen=True)
class Round:
    rate: float
    commands_per_item: float
    redis_cpu_us_per_item: float
    steal: float


@dataclass(frozen=True)
class Row:
    name: str
    rate: float
    ratio: float
    ratio_low: float
    ratio_high: float
    commands_per_item: float
    redis_cpu_us_per_item: float


Contender = Callable[[int], Awaitable[None]]
"""Does that many items, however it likes."""


async def compare(
    contenders: Mapping[str, Contender], witness: Any, *, items: int, rounds: int = 21
) -> list[Row]:
    """Interleaved rounds; ratios are taken to the first contender, round by round."""
    results: dict[str, list[Round]] = {name: [] for name in contenders}
    for contender in contenders.values():
        await contender(items // 10)
    for _ in range(rounds):
        for name, contender in contenders.items():
            results[name].append(await _round(contender, witness, items))
    base = [result.rate for result in next(iter(results.values()))]
    return [_row(name, measured, base) for name, measured in results.items()]


async def _round(contender: Contender, witness: Any, items: int) -> Round:
    for _ in range(ATTEMPTS_MAX):
        witness.flushall()  # every round finds the same, empty server
        before, stolen = redis_figures(witness), cpu_times()
        began = time.perf_counter()
        await contender(items)
        seconds = time.perf_counter() - began
        after, steal = redis_figures(witness), steal_since(stolen)
        if steal <= STEAL_MAX:
            break
    return Round(
        rate=items / seconds,
        commands_per_item=(after[0] - before[0]) / items,
        redis_cpu_us_per_item=(after[1] - before[1]) * 1e6 / items,
        steal=steal,
    )


def _row(name: str, measured: Sequence[Round], base: Sequence[float]) -> Row:
    ratios = sorted(result.rate / other for result, other in zip(measured, base, strict=True))
    return Row(
        name=name,
        rate=statistics.median(result.rate for result in measured),
        ratio=statistics.median(ratios),
        ratio_low=ratios[0],
        ratio_high=ratios[-1],
        commands_per_item=statistics.median(r.commands_per_item for r in measured),
        redis_cpu_us_per_item=statistics.median(r.redis_cpu_us_per_item for r in measured),
    )


def redis_figures(witness: Any) -> tuple[int, float]:
    """Calls that clients made (not those inside scripts), and CPU seconds of the server."""
    calls = sum(
        int(figures["calls"])
        for name, figures in witness.info("commandstats").items()
        if name.removeprefix("cmdstat_").partition("|")[0]
        in ("evalsha", "eval", "publish", "waitaof", "wait", "set")
    )
    cpu = witness.info("cpu")
    return calls, float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def cpu_times() -> tuple[int, int]:
    fields = [int(part) for part in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return fields[7], sum(fields)


def steal_since(before: tuple[int, int]) -> float:
    stolen, total = cpu_times()
    return (stolen - before[0]) / max(1, total - before[1])


def table(rows: Sequence[Row], unit: str) -> str:
    lines = [
        f"| | {unit}/s | ratio | spread | Redis calls per item | Redis CPU µs per item |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.name} | {row.rate:,.0f} | {row.ratio:.2f} "
        f"| {row.ratio_low:.2f}–{row.ratio_high:.2f} "
        f"| {row.commands_per_item:.3f} | {row.redis_cpu_us_per_item:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)
