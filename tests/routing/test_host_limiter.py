"""The limit of deliveries to one host: order, independence of hosts, slow hosts."""

from __future__ import annotations

from angarium.routing.host_limiter import ACTIVE_MAX, SLOW_AFTER_S, HostLimiter


def test_deliveries_over_the_limit_start_in_their_order() -> None:
    limiter: HostLimiter[int] = HostLimiter()
    started = [number for number in range(ACTIVE_MAX + 3) if limiter.start("a", number, 0.0)]
    assert started == list(range(ACTIVE_MAX))
    assert limiter.start("b", 99, 0.0), "another host has a limit of its own"
    assert [limiter.finish("a", 0.1) for _ in range(4)] == [
        ACTIVE_MAX, ACTIVE_MAX + 1, ACTIVE_MAX + 2, None,
    ]  # fmt: skip


def test_deliveries_that_wait_for_a_slow_host_are_given_back() -> None:
    limiter: HostLimiter[int] = HostLimiter()
    for number in range(ACTIVE_MAX + 2):
        limiter.start("slow", number, 0.0)
        limiter.start("fast", number, SLOW_AFTER_S)
    assert limiter.remove_waiting_for_slow(SLOW_AFTER_S) == []
    assert limiter.remove_waiting_for_slow(SLOW_AFTER_S + 0.1) == [ACTIVE_MAX, ACTIVE_MAX + 1]
    assert limiter.remove_waiting_for_slow(SLOW_AFTER_S + 0.1) == []
    assert limiter.remove_waiting() == [ACTIVE_MAX, ACTIVE_MAX + 1], "those of the fast host"


def test_a_host_without_deliveries_is_forgotten() -> None:
    limiter: HostLimiter[int] = HostLimiter()
    for number in range(1_000):
        assert limiter.start(f"r{number}", number, 0.0)
        assert limiter.finish(f"r{number}", 0.0) is None
    assert len(limiter) == 0
