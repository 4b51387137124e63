"""Places of receivers: so many at once, in turn, and slow ones do not hold up the rest."""

from __future__ import annotations

from angarium.routing.lanes import ACTIVE_MAX, SLOW_AFTER_S, Lanes


def test_so_many_begin_and_the_others_follow_in_turn() -> None:
    lanes: Lanes[int] = Lanes()
    begun = [number for number in range(ACTIVE_MAX + 3) if lanes.offer("a", number, 0.0)]
    assert begun == list(range(ACTIVE_MAX))
    assert lanes.offer("b", 99, 0.0), "another receiver has places of its own"
    assert [lanes.ended("a", 0.1) for _ in range(4)] == [
        ACTIVE_MAX, ACTIVE_MAX + 1, ACTIVE_MAX + 2, None,
    ]  # fmt: skip


def test_what_waits_for_a_slow_receiver_is_handed_back() -> None:
    lanes: Lanes[int] = Lanes()
    for number in range(ACTIVE_MAX + 2):
        lanes.offer("slow", number, 0.0)
        lanes.offer("fast", number, SLOW_AFTER_S)
    assert lanes.stuck(SLOW_AFTER_S) == []
    assert lanes.stuck(SLOW_AFTER_S + 0.1) == [ACTIVE_MAX, ACTIVE_MAX + 1]
    assert lanes.stuck(SLOW_AFTER_S + 0.1) == []
    assert lanes.drain() == [ACTIVE_MAX, ACTIVE_MAX + 1], "those of the fast one"


def test_a_receiver_that_is_done_with_is_forgotten() -> None:
    lanes: Lanes[int] = Lanes()
    for number in range(1_000):
        assert lanes.offer(f"r{number}", number, 0.0)
        assert lanes.ended(f"r{number}", 0.0) is None
    assert lanes._lanes == {}
