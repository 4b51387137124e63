"""Every role at once, hurt by a seeded schedule: each module's books balance when it is over.

`CAMPAIGN_SEED=…` replays a schedule; without it each long run draws its own, and prints it.
`CAMPAIGN_SEEDS=…` is how many seeds of a hundred faults each to draw and run, shapes in turn.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest

from tests.faults.campaign.balance import Account, descending
from tests.faults.campaign.load import Pace
from tests.faults.campaign.report import Report, Row
from tests.faults.campaign.run import Campaign
from tests.faults.campaign.schedule import SHAPES, Shape, draw, kinds_of
from tests.faults.profile import LONG, rounds

PACE = Pace(users=12, senders=4, keys=40, pause_s=0.8)
SHORT_PACE = Pace(users=6, senders=2, keys=8, pause_s=0.3)


@dataclass(frozen=True)
class Run:
    shape: Shape
    seed: int
    faults: int
    span_s: float

    def __str__(self) -> str:
        return f"{self.shape}-{self.seed}"


# So many faults in such a time; starting a role takes a second of a processor, hence the span.
LONGEST: dict[Shape, tuple[int, float]] = {
    "single": (520, 840.0),
    "sentinel": (250, 540.0),
    "cluster": (250, 540.0),
}
# Schedules that once found something.
KNOWN = (
    Run("single", 5564268, 70, 90.0),
    Run("cluster", 7788120827, 60, 100.0),
    Run("cluster", 3, 60, 90.0),
)


def runs() -> Iterator[Run]:
    chance = random.SystemRandom()
    if count := int(os.environ.get("CAMPAIGN_SEEDS") or 0):
        for shape, _ in zip(cycle(SHAPES), range(count), strict=False):
            yield Run(shape, chance.randrange(2**32), 100, 150.0)
    elif LONG:
        given = os.environ.get("CAMPAIGN_SEED")
        seed = int(given) if given else chance.randrange(2**32)
        for shape, (faults, span_s) in LONGEST.items():
            yield Run(shape, seed, faults, span_s)
        yield from () if given else KNOWN
    else:
        # One seed, so that a red test is a change and not a draw; the long ones search.
        yield Run("single", int(os.environ.get("CAMPAIGN_SEED") or 1), 12, 6.0)


@pytest.mark.faults
@pytest.mark.timeout(rounds(300, 2_400))
@pytest.mark.parametrize("run", list(runs()), ids=str)
async def test_nothing_is_lost_doubled_or_out_of_order_in_any_module(
    run: Run, tmp_path: Path
) -> None:
    print(f"\nCAMPAIGN_SEED={run.seed} shape={run.shape}")
    pace = PACE if LONG else SHORT_PACE
    report = await Campaign(run.seed, run.faults, run.span_s, run.shape, tmp_path, pace).run()
    print(report)
    assert report.injected == run.faults
    assert report.ok, str(report)


def test_a_seed_draws_the_same_schedule_again() -> None:
    for shape in SHAPES:
        first, second = (draw(7, 200, 100.0, shape) for _ in range(2))
        assert first == second
        assert first != draw(8, 200, 100.0, shape)
        assert {fault.kind for fault in first} == set(kinds_of(shape))
        assert [fault.at_s for fault in first] == sorted(fault.at_s for fault in first)


def test_an_account_knows_what_is_missing_and_what_came_twice() -> None:
    account = Account()
    for subject, at_ms in (("a", 0), ("b", 10), ("c", 20), ("c", 25)):
        account.begin(subject, at_ms)
    account.end("a", 500, "delivered")
    account.end("a", 600, "delivered")
    account.end("b", 700, "dead")
    account.end("d", 800, "delivered")
    assert account.unfinished == ["c"]
    assert account.doubled == ["c", "a"]
    assert account.bad == ["b"]
    assert account.unannounced == ["d"]
    assert account.stall_ms == 500


def test_what_comes_behind_a_later_one_is_out_of_order() -> None:
    assert descending([("a", 0), ("c", 2), ("b", 1), ("d", 3)]) == ["b"]


def test_a_report_with_anything_wrong_is_not_good_and_names_its_seed() -> None:
    good = Row("pickup", 3)
    assert Report(5, "single", 1, 1, {"kill": 1}, [good], 9).ok
    for bad in (Row("pickup", 0), Row("pickup", 3, ["x"]), Row("pickup", 3, [], ["x"])):
        report = Report(5, "single", 1, 1, {"kill": 1}, [good, bad], 9)
        assert not report.ok
        assert "CAMPAIGN_SEED=5" in str(report)
    assert not Report(5, "single", 1, 1, {}, [good], 9, ["a role ended by itself"]).ok
