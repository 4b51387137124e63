"""Every role under load for a while: nothing that runs grows without end.

In `make test` for a quarter of a minute, which shows that every figure is taken and that nothing
grows with each message; under `make faults` for half an hour, with the verdict on every slope.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from tests.faults.campaign.load import Pace
from tests.faults.campaign.schedule import MEMBERS
from tests.faults.profile import LONG, rounds
from tests.faults.soak.report import SoakReport, trends
from tests.faults.soak.run import HALF_LOAD, Soak
from tests.faults.soak.samples import Kind
from tests.faults.soak.trend import fit, judge

MINUTES = 30.0 if LONG else 0.25
EVERY_S = 5.0 if LONG else 1.0
PACE = HALF_LOAD if LONG else Pace(users=12, senders=4, keys=40, pause_s=0.4)
# What a short run may have more when its work is done: far less than one for each message.
SHORT_GROWTH = {"tasks": 40, "files": 40, "connections": 60, "MB": 15, "lasting keys": 60}


@pytest.mark.faults
@pytest.mark.timeout(rounds(300, 2_700))
async def test_memory_tasks_files_and_connections_do_not_grow(tmp_path: Path) -> None:
    report = await Soak(MINUTES, EVERY_S, PACE, tmp_path).run()
    print(f"\n{report}")
    assert report.problems == []
    assert (report.unfinished, report.doubled) == (0, 0)
    assert report.sent > rounds(100, 10_000)
    found = trends(report.samples)
    for what in ("MB", "tasks", "files"):
        named = [name for name in found if name.endswith(f": {what}")]
        assert len([name for name in named if not name.startswith("redis")]) == MEMBERS
    if LONG:
        assert report.leaks == []
        return
    first = report.samples[0][1]
    for name in found:
        allowed = SHORT_GROWTH.get(name.partition(": ")[2], math.inf)
        grown = report.at_rest[name] - first[name]
        assert grown < allowed, f"{name} was {first[name]}, and is {report.at_rest[name]} at rest"


# The judgement


def series(
    slope_per_h: float, *, noise: float = 0.3, step: float = 0.0
) -> list[tuple[float, float]]:
    """Half an hour, a sample each 5 s; `step` comes at half time and stays."""
    chance = random.Random(7)
    return [
        (at_s, 60 + slope_per_h * at_s / 3600 + chance.gauss(0, noise) + step * (at_s > 900))
        for at_s in range(0, 1_805, 5)
    ]


def test_a_slope_is_found_with_its_uncertainty() -> None:
    line = fit(series(12.0))
    assert abs(line.slope_per_h - 12.0) < line.error_per_h < 1.0
    assert line.growth == pytest.approx(6.0, abs=0.5)


def test_noise_is_flat_and_a_steady_rise_is_a_leak() -> None:
    assert judge(series(0.0), 0.5).verdict == "flat"
    assert judge(series(-5.0), 0.5).verdict == "flat"
    assert judge(series(0.5), 0.5).verdict == "flat", "less than is allowed"
    assert judge(series(6.0), 0.5).verdict == "leaking"


def test_one_step_that_is_not_repeated_has_settled() -> None:
    assert judge(series(0.0, step=4.0), 0.5).verdict == "settled"


def test_what_happens_in_the_first_third_is_not_judged() -> None:
    warming = [(at_s, min(at_s, 500) / 10.0) for at_s in range(0, 1_805, 5)]
    assert judge(warming, 0.5).verdict == "flat"


def test_too_few_samples_say_nothing() -> None:
    assert judge([(0.0, 1.0), (1.0, 100.0)], 0.5).verdict == "flat"
    assert fit([(0.0, 1.0)]).error_per_h == math.inf


def report_of(leak_mb_per_h: float, in_use_mb: float = 5.0, **more: int) -> SoakReport:
    """`in_use_mb`: of libc's heap at the beginning; it grows as the whole does, or not at all."""
    samples = [
        (
            at_s,
            {
                "node 1: tasks": 14.0,
                "node 1: MB": mb,
                "node 1: MB in use": mb if in_use_mb == 0 else in_use_mb,
                "node 1: blocks": 300_000.0,
                "node 1: files": 20.0,
                "node 1: CPU s": at_s / 100,
                "redis: MB": 5.0,
                "redis: resident MB": 20.0 + leak_mb_per_h * at_s / 360,
                "redis: lasting keys": 60.0,
                "redis: expiring keys": at_s,
                "redis: connections": 90.0,
                "redis: CPU s": at_s / 50,
            },
        )
        for at_s, mb in series(leak_mb_per_h)
    ]
    grown = {"messages:#": Kind(2_000, 1_000_000, 0)}
    figures = {"sent": 10, "unfinished": 0, "doubled": 0, **more}
    return SoakReport(samples, {}, grown, events=20, problems=[], at_rest={}, **figures)


def test_a_report_names_what_leaks_and_what_grew_in_redis() -> None:
    good, bad = report_of(0.0), report_of(6.0, in_use_mb=0)
    assert good.ok
    assert good.leaks == [], "expiring keys are as many as come in"
    assert "| node 1 |" in str(good)
    assert "verdict: flat" in str(good)
    assert not bad.ok
    assert bad.leaks == ["node 1: MB", "node 1: MB in use"]
    assert "leaking: node 1: MB" in str(bad)
    assert "grown in Redis: messages:#: 0 → 2,000 keys" in str(bad)
    holes = report_of(6.0)
    assert holes.ok, "what is in use does not grow, neither there nor in Redis"
    assert [line[-9:] for line in str(holes).splitlines() if "holes" in line] == ["| holes |"] * 2
    assert not report_of(0.0, unfinished=1).ok
    assert not report_of(0.0, sent=0).ok
