"""When a node may declare other nodes dead."""

from __future__ import annotations

import pytest

from angarium.transactions.liveness import LivenessCheck

TIMEOUT_MS = 8_000


def test_a_new_node_may_declare_others_dead_at_once() -> None:
    assert LivenessCheck(TIMEOUT_MS).heartbeat(1_000_000)


def test_a_node_with_regular_heartbeats_may_declare_others_dead() -> None:
    check = LivenessCheck(TIMEOUT_MS)
    assert all(check.heartbeat(now_ms) for now_ms in range(0, 60_000, 2_000))


@pytest.mark.parametrize("gap_ms", [6_001, 20_000, 3_600_000, -1, -3_600_000])
def test_after_a_gap_others_get_one_timeout_to_send_a_heartbeat(gap_ms: int) -> None:
    """Redis was unreachable or stood still, or its clock jumped forwards or back."""
    check, now_ms = LivenessCheck(TIMEOUT_MS), 10_000_000
    assert check.heartbeat(now_ms)
    back_ms = now_ms + gap_ms
    for later_ms in (0, 2_000, 4_000, 6_000):
        assert not check.heartbeat(back_ms + later_ms)
    assert check.heartbeat(back_ms + 8_000)
