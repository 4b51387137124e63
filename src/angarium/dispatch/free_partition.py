"""When a dispatcher may acquire a partition that has no leader.

A dispatcher that received every message since the last covered epoch goes first: only it can close
the gap. A dispatcher with a gap, or with its full share of partitions, acquires a partition only
after several checks found it free. A lock that expired shows that its holder is dead or hangs, so
the holder has no share any more, and all its partitions are acquired as fast as one.
"""

from __future__ import annotations

from typing import Protocol

from angarium.dispatch.epochs import EpochRing
from angarium.dispatch.store import DispatchStore
from angarium.runtime.clock import Clock

# Consecutive checks, a third of the lock's expiry apart, that find the partition without a leader.
FREE_CHECKS_COMPLETE = 2
FREE_CHECKS_PARTIAL = 4
# A lock that has just expired is found free this long after its time.
EXPIRY_MARGIN_MS = 5


class LeadershipShare(Protocol):
    """How many partitions this dispatcher leads, compared with its share."""

    @property
    def may_lead(self) -> bool: ...
    @property
    def is_only_dispatcher(self) -> bool: ...
    @property
    def below_share(self) -> bool: ...
    @property
    def over_share(self) -> bool: ...
    def suspect(self, dispatcher: str) -> None: ...


class FreePartition:
    def __init__(self, number: int, store: DispatchStore, ring: EpochRing, clock: Clock) -> None:
        self._number = number
        self._store = store
        self._ring = ring
        self._clock = clock
        self._checks = 0
        self._leader: str | None = None  # that the last check found
        self._not_before_s = float("-inf")
        self.next_check_s = float("inf")

    def pause(self, pause_s: float) -> None:
        """Do not acquire for `pause_s`."""
        self._not_before_s = max(self._not_before_s, self._clock.monotonic() + pause_s)

    def announced(self) -> None:
        """The leader handed over in an orderly way, so it is not dead."""
        self._leader = None

    async def may_acquire(self, share: LeadershipShare) -> bool:
        self.next_check_s = float("inf")
        if self._clock.monotonic() < self._not_before_s:
            return False
        covered = await self._store.covered(self._number)
        complete = covered == 0 or self._ring.complete_since(covered) or share.is_only_dispatcher
        if share.below_share and complete:
            self._checks = 0
            return True
        leader, expiry_ms = await self._store.leader(self._number)
        if leader is not None:
            self._leader, self._checks = leader, 0
            self.next_check_s = (expiry_ms + EXPIRY_MARGIN_MS) / 1000
            return False
        if self._leader is not None:
            share.suspect(self._leader)
            self._leader = None
        self._checks += 1
        if share.below_share and complete:
            return True
        return self._checks >= (FREE_CHECKS_COMPLETE if complete else FREE_CHECKS_PARTIAL)
