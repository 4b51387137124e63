"""When a node may judge the silence of others."""

from __future__ import annotations

import pytest

from angarium.transactions.liveness import LivenessCheck

TIMEOUT_MS = 8_000


def test_one_that_has_just_come_judges_at_once() -> None:
    assert LivenessCheck(TIMEOUT_MS).heartbeat(1_000_000)


def test_regular_signs_of_life_judge() -> None:
    check = LivenessCheck(TIMEOUT_MS)
    assert all(check.heartbeat(now_ms) for now_ms in range(0, 60_000, 2_000))


@pytest.mark.parametrize("gap_ms", [6_001, 20_000, 3_600_000, -1, -3_600_000])
def test_after_a_gap_others_get_the_time_for_their_own_sign(gap_ms: int) -> None:
    """Redis was away or stood still, or its clock jumped, forwards or back."""
    check, now_ms = LivenessCheck(TIMEOUT_MS), 10_000_000
    assert check.heartbeat(now_ms)
    back_ms = now_ms + gap_ms
    for later_ms in (0, 2_000, 4_000, 6_000):
        assert not check.heartbeat(back_ms + later_ms)
    assert check.heartbeat(back_ms + 8_000)
